from __future__ import annotations

import pickle
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.dataset import Source, document_ends, get_dataset, open_source, token_files
from tokenmill.dataset.file_source import FileSource
from tokenmill.dataset.token_files import TokenFiles
from tokenmill.dataset.token_source import StoreSource, TokenSource
from tokenmill.errors import ConfigError, DamageError
from tokenmill.store import ConsolidateSettings, consolidate, open_store, verify

BuildStore = Callable[..., Any]
EOS = 1


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_store_and_plain_files_give_the_same_tokens_and_documents(
    data: st.DataObject, build_store: BuildStore, tmp_path_factory: pytest.TempPathFactory
):
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=12))
    documents = [[*range(2 + i, 2 + i + n), EOS] for i, n in enumerate(lengths)]
    folder = tmp_path_factory.mktemp("store")
    stream = [token for document in documents for token in document]
    shard_tokens = data.draw(st.integers(max(1, len(stream) // 5), len(stream)))
    build_store(folder, documents, shard_tokens=shard_tokens)
    files = sorted(folder.glob("train_*.npy"))
    for source in (
        StoreSource(open_store(folder)),
        FileSource(TokenFiles(files), eos_id=EOS, vocab_size=100),
    ):
        check_source(pickle.loads(pickle.dumps(source)), stream, documents=documents, data=data)


def check_source(
    source: TokenSource,
    stream: list[int],
    *,
    documents: list[list[int]],
    data: st.DataObject,
) -> None:
    ends = list(accumulate(map(len, documents)))
    assert (source.num_tokens, source.num_documents) == (len(stream), len(documents))
    assert source.document_ends(0, len(documents)).tolist() == ends
    owners = [i for i, document in enumerate(documents) for _ in document]
    assert [source.document_at(token) for token in range(len(stream))] == owners
    for _ in range(4):  # often enough for the ends to be kept in memory
        length = data.draw(st.integers(1, len(stream)))
        starts = data.draw(st.lists(st.integers(0, len(stream) - length), max_size=5))
        ids, rows, columns = source.read_windows(np.array(starts, dtype=np.int64), length)
        assert ids.tolist() == [stream[start : start + length] for start in starts]
        expected = [
            (row, column)
            for row, start in enumerate(starts)
            for column in range(1, length)
            if start + column in ends
        ]
        assert list(zip(rows.tolist(), columns.tolist(), strict=True)) == expected
        out = np.zeros(length + 2, dtype=source.dtype)
        source.read_runs(out, [(1, start, length) for start in starts[:1]])
        assert out[1 : 1 + length].tolist() == (
            stream[starts[0] :][:length] if starts else [0] * length
        )
        source.read_into(out[:length], len(stream) - length)
        assert out[:length].tolist() == stream[-length:]


def test_documents_without_tokens_do_not_break_anything_twice(
    tmp_path: Path, build_store: BuildStore
):
    build_store(tmp_path, [[], [2, 3], [], [], [4], [], [5, 6], []], shard_tokens=9, eos_id=None)
    source = StoreSource(open_store(tmp_path))
    for _ in range(3):
        assert source.read_windows(np.array([0]), 5).columns.tolist() == [2, 3]
    assert source._ends._all is not None
    assert source.document_ends(0, 8).tolist() == [0, 2, 2, 2, 3, 3, 5, 5]


def test_tables_in_memory_stay_within_their_bound(
    tmp_path: Path, build_store: BuildStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(document_ends, "MAX_KEPT_BYTES", 100)
    monkeypatch.setattr(document_ends, "_LOOKUPS_TO_KEEP", 0.5)
    documents = [[2, 3, EOS]] * 60
    build_store(tmp_path, documents, shard_tokens=18)
    sources = [StoreSource(open_store(tmp_path)) for _ in range(3)]
    rng, kept = np.random.default_rng(0), [0]
    for _ in range(100):
        source = sources[rng.integers(3)]
        starts = rng.integers(0, 170, size=4)
        ids, rows, columns = source.read_windows(starts, 8)
        expected = np.nonzero((ids == EOS)[:, :-1])
        assert np.array_equal((rows, columns - 1), expected)
        kept.append(sum(source._ends.num_kept_bytes for source in sources))
    assert 0 < max(kept) <= 100


def test_windows_outside_the_tokens_are_index_errors(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path, [[2, 3, EOS]])
    source = StoreSource(open_store(tmp_path))
    for start, length in ((-1, 2), (2, 2), (0, 4)):
        with pytest.raises(IndexError):
            source.read_windows(np.array([start]), length)
    out = np.zeros(3, dtype=source.dtype)
    for run in ((-1, 0, 1), (2, 0, 2), (0, -1, 1), (0, 2, 2)):
        with pytest.raises(IndexError):
            source.read_runs(out, [run])
    with pytest.raises(IndexError):
        source.document_ends(0, 2)


def save(path: Path, ids: list[int], dtype: str = "<u2") -> Path:
    array = np.array(ids, dtype=dtype)
    if path.suffix == ".npy":
        np.save(path, array)
    else:
        path.write_bytes(array.tobytes())
    return path


def test_files_are_one_sequence_and_the_last_document_needs_no_eos(tmp_path: Path):
    paths = [save(tmp_path / "a.bin", [5, 1, 6]), save(tmp_path / "b.bin", [7, 1, 8])]
    source = FileSource(TokenFiles(paths, dtype="uint16"), eos_id=1)
    assert source.document_ends(0, source.num_documents).tolist() == [2, 5, 6]
    assert source.num_files == 2
    whole = FileSource(TokenFiles(paths, dtype="uint16"), eos_id=None)
    assert (whole.num_documents, whole.read_windows(np.array([0]), 6).rows.size) == (1, 0)
    assert whole.document_at(5) == 0
    with pytest.raises(IndexError):
        whole.document_at(6)
    with pytest.raises(IndexError):
        source.read_windows(np.array([1]), 6)


def test_files_of_another_type_or_length_are_refused(tmp_path: Path):
    narrow, wide = save(tmp_path / "a.npy", [5, 1]), save(tmp_path / "b.npy", [7, 1], "<u4")
    with pytest.raises(ConfigError, match="its ids are uint32"):
        TokenFiles([narrow, wide])
    with pytest.raises(ConfigError, match="not uint32"):
        TokenFiles([narrow], dtype="uint32")
    with pytest.raises(ConfigError, match="float64"):
        TokenFiles([save(tmp_path / "c.npy", [1], "<f8")])
    np.save(tmp_path / "d.npy", np.zeros((2, 2), dtype=np.uint16))
    with pytest.raises(ConfigError, match="shape"):
        TokenFiles([tmp_path / "d.npy"])
    narrow.write_bytes(narrow.read_bytes()[:-1])
    with pytest.raises(DamageError, match="its header says"):
        TokenFiles([narrow])
    (tmp_path / "e.npy").write_bytes(b"\x93NUMPY\x01\x00\xff\xffnonsense")
    with pytest.raises(DamageError, match="header cannot be read"):
        TokenFiles([tmp_path / "e.npy"])


def test_files_without_a_header_need_a_type_that_fits(tmp_path: Path):
    path = save(tmp_path / "a.bin", [5, 1, 700])
    with pytest.raises(ConfigError, match="nothing in the file tells"):
        TokenFiles([path])
    with pytest.raises(ConfigError, match="not a whole number of uint32"):
        TokenFiles([path], dtype="uint32")
    with pytest.raises(ConfigError, match="no such file"):
        TokenFiles([tmp_path / "none.bin"], dtype="uint16")
    source = FileSource(TokenFiles([path], dtype="uint16"), eos_id=1, vocab_size=700)
    with pytest.raises(DamageError, match="token id 700 in a vocabulary of 700"):
        source.read_windows(np.array([0]), 3)
    with pytest.raises(ConfigError, match="EOS 70000 does not fit"):
        FileSource(TokenFiles([path], dtype="uint16"), eos_id=70_000)
    header = np.zeros(256, dtype="<i4")
    header[:3] = [20240520, 1, 0]
    path.write_bytes(header.tobytes())
    with pytest.raises(ConfigError, match=r"llm\.c"):
        TokenFiles([path], dtype="uint16")
    save(tmp_path / "raw.bin", [1, 2]).rename(tmp_path / "raw.npy")
    with pytest.raises(ConfigError, match=r"no \.npy header"):
        TokenFiles([tmp_path / "raw.npy"], dtype="uint16")


def test_files_that_change_while_they_are_read_are_damage(tmp_path: Path):
    path = save(tmp_path / "a.bin", [5, 1, 7])
    files = TokenFiles([path], dtype="uint16")
    frozen = pickle.dumps(files)
    save(path, [5, 1])
    with pytest.raises(DamageError, match="it was longer before"):
        files.read_into(np.empty(3, dtype=np.uint16), 0)
    with pytest.raises(DamageError, match="2 tokens in its files, 3 before"):
        pickle.loads(frozen)


def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(token_files, "MAX_OPEN_FILES", 2)
    files = TokenFiles([save(tmp_path / f"{i}.bin", [i, i]) for i in range(5)], dtype="uint16")
    for _ in range(2):
        out = np.empty(10, dtype=np.uint16)
        files.read_into(out, 0)
        assert out.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        assert len(files._descriptors) == 2


@pytest.mark.parametrize(
    "use",
    [
        open_store,
        verify,
        open_source,
        lambda url: open_source(url, dtype="uint16"),
        lambda url: get_dataset(f"{url}/tokens.bin", 8),
        lambda url: Source(path=url),
        lambda url: consolidate(url, ConsolidateSettings(seq_len=8)),
    ],
)
def test_a_url_with_a_password_is_refused_without_repeating_it(use: Callable[[str], object]):
    with pytest.raises(ConfigError) as caught:
        use("s3://somebody:canary-4711@bucket/store")
    assert "canary" not in str(caught.value)
    assert "somebody" not in str(caught.value)
