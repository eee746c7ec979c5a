from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import ConfigError, DamageError
from tokenmill.store import (
    FileEntry,
    Metadata,
    ShardEntry,
    SourceEntry,
    SplitEntry,
    TokenizerEntry,
    open_store,
    write_metadata,
    write_tokenizer,
)
from tokenmill.store import format as layout
from tokenmill.store.stored_file import MAX_OPEN_FILES

BuildStore = Callable[..., Metadata]
DOCUMENTS = {"train": [[1, 2, 3], [4] * 30, [], [5, 6], [9] * 7], "val": [[7, 8]]}
TRAIN = [token for document in DOCUMENTS["train"] for token in document]


@pytest.fixture
def store(tmp_path: Path, build_store: BuildStore) -> Path:
    build_store(tmp_path / "store", DOCUMENTS, rejects=b'{"reason": "bad-json"}\n')
    return tmp_path / "store"


@settings(max_examples=60, deadline=None)
@given(data=st.data(), verify=st.sampled_from(["blocks", "size", "off"]))
def test_reads_equal_the_concatenation_of_the_documents(
    data: st.DataObject,
    verify: Any,
    build_store: BuildStore,
    tmp_path_factory: pytest.TempPathFactory,
):
    lengths = data.draw(st.lists(st.integers(0, 12), max_size=12))
    documents = [[(7 * i + j) % 70_000 for j in range(n)] for i, n in enumerate(lengths)]
    shard_tokens = data.draw(st.integers(1, 15))
    num_ids = data.draw(st.sampled_from([100, 70_000]))
    folder = tmp_path_factory.mktemp("store")
    build_store(folder, {"train": documents}, shard_tokens=shard_tokens, num_ids=num_ids)
    split = open_store(folder, verify=verify).splits["train"]
    whole = [token for document in documents for token in document]
    for _ in range(5):
        start = data.draw(st.integers(0, len(whole)))
        stop = data.draw(st.integers(start, len(whole)))
        assert split.read(start, stop).tolist() == whole[start:stop]
    assert split.read(0, len(whole)).tolist() == whole
    check_documents(split, documents)


def check_documents(split: Any, documents: list[list[int]]) -> None:
    """Compare everything that the document tables answer with the plain lists."""
    ends = list(accumulate(map(len, documents)))
    assert split.num_documents == len(documents)
    for index, document in enumerate(documents):
        found = split.document(index)
        assert found.ids.tolist() == document
        assert (found.start, found.position) == (ends[index] - len(document), 100 * index)
        assert found.source == ("b.txt" if index else "a.txt")
    owners = [index for index, document in enumerate(documents) for _ in document]
    assert [split.document_at(token) for token in range(len(owners))] == owners
    total = len(owners)
    for start in range(0, total + 1, 3):
        for stop in range(start, total + 1, 4):
            expected = [end for end in ends if start < end <= stop]
            assert split.document_ends(start, stop).tolist() == expected


def test_an_empty_store_has_no_shards_and_reads_nothing(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path, {"train": []})
    store = open_store(tmp_path)
    assert (store.num_tokens, store.num_documents, store.splits["train"].num_shards) == (0, 0, 0)
    assert store.read(0, 0).tolist() == []
    assert store.splits["train"].document_ends(0, 0).tolist() == []
    assert not list(tmp_path.rglob("*.npy"))


def test_documents_without_any_token_are_kept(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path, {"train": [[], [], []]})
    store = open_store(tmp_path)
    assert (store.num_tokens, store.num_documents) == (0, 3)
    assert store.document(2).ids.tolist() == []
    assert store.document(2).position == 200


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 43), (43, 43)])
def test_a_read_outside_the_split_is_an_index_error(store: Path, start: int, stop: int):
    split = open_store(store).splits["train"]
    with pytest.raises(IndexError, match=r"outside \[0, 42\]"):
        split.read(start, stop)
    with pytest.raises(IndexError):
        split.document_ends(start, stop)


@pytest.mark.parametrize("index", [-1, 5])
def test_a_document_outside_the_split_is_an_index_error(store: Path, index: int):
    with pytest.raises(IndexError, match=r"outside \[0, 5\)"):
        open_store(store).document(index)


def test_an_unknown_split_or_mode_is_named_with_those_that_exist(store: Path):
    with pytest.raises(ConfigError, match="no split 'test'; the store has train, val"):
        open_store(store).read(0, 1, split="test")
    with pytest.raises(ConfigError, match="expected one of blocks, size, off"):
        open_store(store, verify="yes")  # pyright: ignore[reportArgumentType]


def test_what_is_read_belongs_to_the_caller(store: Path):
    opened = open_store(store)
    ids = opened.read(0, 3)
    ids[:] = 0
    assert opened.read(0, 3).tolist() == [1, 2, 3]


def test_reading_into_an_array_fills_it(store: Path):
    split = open_store(store).splits["train"]
    out = np.zeros((2, 8), dtype=split.dtype)
    split.read_into(out, 20)
    assert out.ravel().tolist() == TRAIN[20:36]
    with pytest.raises(IndexError):
        split.read_into(out, 40)
    with pytest.raises(TypeError, match="expected a contiguous array"):
        split.read_into(np.zeros(4, dtype=np.int64), 0)
    with pytest.raises(TypeError, match="expected a contiguous array"):
        split.read_into(np.zeros(8, dtype=split.dtype)[::2], 0)


@pytest.mark.parametrize(
    "name",
    [
        "train_000001.npy",
        "docs/val_000000.npy",
        "blocks/train_000000.npy",
        "tokenizer.json",
        "rejects.jsonl",
    ],
)
def test_a_cut_longer_or_missing_file_is_found_at_open(store: Path, name: str):
    data = (store / name).read_bytes()
    for damaged in (data[:-1], data + b"\0", b""):
        (store / name).write_bytes(damaged)
        with pytest.raises(DamageError, match=f"{name}: is {len(damaged)} bytes long"):
            open_store(store)
    (store / name).unlink()
    with pytest.raises(DamageError, match=f"{name}: is missing"):
        open_store(store)
    open_store(store, verify="off")


@pytest.mark.parametrize("length", [0, 1, 7, 25, 42])
def test_windows_are_the_same_as_reads_one_by_one(store: Path, length: int):
    split = open_store(store).splits["train"]
    starts = np.arange(42 - length, -1, -1)
    out = np.zeros((len(starts), length), dtype=split.dtype)
    for _ in range(2):  # shards are opened in the first round
        split.read_windows(out, starts)
        assert out.tolist() == [TRAIN[start : start + length] for start in starts]
    if length:
        with pytest.raises(IndexError, match="reach out of"):
            split.read_windows(out, starts + 1)
        with pytest.raises(IndexError, match="reach out of"):
            split.read_windows(out, starts - 1)
    with pytest.raises(TypeError, match="contiguous rows"):
        split.read_windows(out.astype(np.int64), starts)


def test_the_tokenizer_file_is_proved_before_it_is_given_out(store: Path):
    assert open_store(store).tokenizer_definition() == ("tokenizer.json", b'{"model": "test"}')
    (store / "tokenizer.json").write_bytes(b'{"model": "tost"}')
    for verify in ("blocks", "size", "off"):
        with pytest.raises(DamageError, match=r"tokenizer\.json: its SHA-256"):
            open_store(store, verify=verify).tokenizer_definition()


def test_the_tokenizer_must_have_the_fingerprint_of_the_ids(
    store: Path, monkeypatch: pytest.MonkeyPatch
):
    def load(data: bytes, name: str, *, special_ids: Any) -> Any:
        assert (data, name, special_ids.eos) == (b'{"model": "test"}', "tokenizer.json", None)
        return SimpleNamespace(fingerprint=fingerprint)

    monkeypatch.setattr("tokenmill.tokenizer.load_definition", load)
    fingerprint = open_store(store).metadata.tokenizer.fingerprint
    assert open_store(store).tokenizer().fingerprint == fingerprint
    fingerprint = f"sha256:{'6' * 64}"
    with pytest.raises(DamageError, match="its fingerprint is sha256:666666666666"):
        open_store(store).tokenizer()


def read_elsewhere(store: Any) -> list[int]:
    return store.read(0, 42).tolist()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_the_same(store: Path, method: str):
    opened = open_store(store)
    opened.read(0, 5)
    context = multiprocessing.get_context(method)
    with context.Pool(1) as pool:
        for thing in (opened, opened.splits["train"]):
            assert pool.apply(read_elsewhere, (thing,)) == TRAIN


def test_a_pickled_store_refuses_another_one_in_its_place(store: Path, build_store: BuildStore):
    pickled = pickle.dumps(open_store(store))
    assert pickle.loads(pickled).read(0, 3).tolist() == [1, 2, 3]
    build_store(store, {"train": [[3, 2, 1]]})
    with pytest.raises(DamageError, match="replaced by a store with other content"):
        pickle.loads(pickled)


def test_a_store_opened_by_a_relative_path_outlives_a_change_of_folder(
    store: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(store.parent)
    opened = open_store("store")
    monkeypatch.chdir("/")
    assert opened.read(0, 3).tolist() == [1, 2, 3]
    assert opened.path == store


def test_threads_share_a_store(tmp_path: Path, build_store: BuildStore):
    whole = (np.arange(300_000) % 97).tolist()
    build_store(
        tmp_path,
        {"train": [whole[k : k + 1_000] for k in range(0, 300_000, 1_000)]},
        shard_tokens=90_001,
    )
    split = open_store(tmp_path).splits["train"]

    def read_some(seed: int) -> bool:
        starts = np.random.default_rng(seed).integers(0, 299_000, size=200).tolist()
        ids = all(split.read(s, s + 900).tolist() == whole[s : s + 900] for s in starts)
        return ids and all(split.document_at(s) == s // 1_000 for s in starts)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read_some, range(8)))


def test_ten_thousand_shards_open_without_touching_them(tmp_path: Path):
    store = open_store(sparse_store(tmp_path, num_shards=10_000))
    assert store.num_tokens == 10_000 * 1_000_000
    assert repr(store).startswith(
        f"Store({tmp_path.name!r}: 10,000,000,000 tokens in 10,000 shards"
    )


def test_few_files_stay_open_however_many_shards_are_read(tmp_path: Path, build_store: BuildStore):
    count, before = 300, open_descriptors()
    build_store(tmp_path, {"train": [[k % 100] for k in range(count)]}, shard_tokens=1)
    store = open_store(tmp_path)
    for k in range(count):
        assert store.document(k).ids.tolist() == [k % 100]
    assert store.read(0, count).tolist() == [k % 100 for k in range(count)]
    assert len(open_descriptors() - before) <= MAX_OPEN_FILES + 1  # one more lists them
    del store
    assert open_descriptors() <= before


def test_when_the_process_has_no_descriptor_left_our_own_make_room(
    tmp_path: Path, build_store: BuildStore
):
    build_store(tmp_path, {"train": [[k % 100] for k in range(60)]}, shard_tokens=1)
    store = open_store(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(open_descriptors()) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        assert store.read(0, 60).tolist() == list(range(60))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_store_is_shown_in_one_line_in_a_few_and_as_a_table(
    tmp_path: Path, build_store: BuildStore
):
    folder = tmp_path / "<b>books"
    metadata = build_store(folder, DOCUMENTS)
    store = open_store(folder)
    assert repr(store) == (
        "Store('<b>books': 44 tokens in 6 shards, 6 documents, uint16, test, train+val)"
    )
    assert repr(store.splits["val"]) == "Split('val': 2 tokens in 1 shards, 1 documents)"
    assert metadata.digest in store.describe()
    assert "left out" in store.describe()
    html = store._repr_html_()
    assert "&lt;b&gt;books" in html
    assert "<b>" not in html


def test_what_is_left_out_is_shown(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path, DOCUMENTS, rejects=b"{}\n{}\n")
    assert "left out       rejected 2" in open_store(tmp_path).describe()


def open_descriptors() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/fd").iterdir()}


def sparse_store(folder: Path, *, num_shards: int) -> Path:
    """Make a store of holes: right sizes, no content."""
    dtype, num_tokens, num_documents = np.dtype("<u2"), 1_000_000, 1_000
    shard_bytes = layout.npy_bytes(dtype, num_tokens)
    sizes = {
        "shard": shard_bytes,
        "docs": layout.npy_bytes(layout.DOCS_DTYPE, num_documents),
        "blocks": layout.npy_bytes(layout.BLOCKS_DTYPE, layout.num_blocks(shard_bytes)),
    }
    places = {"shard": layout.shard_path, "docs": layout.docs_path, "blocks": layout.blocks_path}
    for name in ("docs", "blocks"):
        (folder / name).mkdir()
    for name, place in places.items():
        first = place(folder, "train", index=0)
        first.touch()
        os.truncate(first, sizes[name])
        for index in range(1, num_shards):
            place(folder, "train", index=index).hardlink_to(first)
    definition = write_tokenizer(folder, "tokenizer.json", data=b"{}")
    files = {name: FileEntry(bytes=size, sha256="a" * 64) for name, size in sizes.items()}
    entry = ShardEntry(num_tokens=num_tokens, num_documents=num_documents, **files)
    total_tokens, total_documents = num_shards * num_tokens, num_shards * num_documents
    totals: Any = {"num_tokens": total_tokens, "num_documents": total_documents}
    metadata = Metadata(
        created=datetime(2026, 1, 1, tzinfo=UTC),
        versions={},
        dtype="uint16",
        bos_id=None,
        eos_id=None,
        shard_tokens=num_tokens,
        tokenizer=TokenizerEntry(
            name="test",
            fingerprint=f"sha256:{'0' * 64}",
            num_ids=50_257,
            file="tokenizer.json",
            bytes=definition.bytes,
            sha256=definition.sha256,
        ),
        splits={"train": SplitEntry(num_bytes=0, shards=(entry,) * num_shards, **totals)},
        sources=(SourceEntry(path="a", size=1, format="text", **totals),),
    )
    write_metadata(folder, metadata)
    return folder
