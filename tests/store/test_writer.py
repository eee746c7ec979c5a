from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import StorageError
from tokenmill.store import DOCS_DTYPE, ShardWriter, hash_file, write_tokenizer

UINT16 = np.dtype("<u2")
NO_DOCS = np.zeros(0, dtype=DOCS_DTYPE)


def documents(*ends: int) -> np.ndarray:
    table = np.zeros(len(ends), dtype=DOCS_DTYPE)
    table["end"] = ends
    return table


def test_the_three_files_load_with_plain_numpy(tmp_path: Path):
    ids = np.arange(100_000, dtype=UINT16)
    with ShardWriter(tmp_path, "train", index=3, dtype=UINT16, num_tokens=len(ids)) as writer:
        writer.write(ids)
        entry = writer.finish(documents(40, 100_000))
    shard = np.load(tmp_path / "train_000003.npy", allow_pickle=False)
    assert shard.dtype == UINT16
    np.testing.assert_array_equal(shard, ids)
    docs = np.load(tmp_path / "docs/train_000003.npy", allow_pickle=False)
    assert docs["end"].tolist() == [40, 100_000]
    data = (tmp_path / "train_000003.npy").read_bytes()
    blocks = np.load(tmp_path / "blocks/train_000003.npy", allow_pickle=False)
    pieces = [data[start : start + 65536] for start in range(0, len(data), 65536)]
    assert blocks.tolist() == [xxhash.xxh3_64_intdigest(piece) for piece in pieces]
    assert entry.shard.sha256 == hashlib.sha256(data).hexdigest()
    assert entry.blocks == hash_file(tmp_path / "blocks/train_000003.npy")
    assert entry.docs == hash_file(tmp_path / "docs/train_000003.npy")


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 1_200_000), max_size=8), itemsize=st.sampled_from([2, 4]))
def test_the_bytes_do_not_depend_on_how_ids_are_handed_over(
    cuts: list[int], itemsize: int, tmp_path_factory: pytest.TempPathFactory
):
    dtype = np.dtype(f"<u{itemsize}")
    ids = (np.arange(1_200_000) % 65_521).astype(dtype)  # more than one buffer
    entries = []
    for pieces in ([ids], np.split(ids, sorted(cuts))):
        folder = tmp_path_factory.mktemp("shard")
        with ShardWriter(folder, "train", index=0, dtype=dtype, num_tokens=len(ids)) as writer:
            for piece in pieces:
                writer.write(piece)
            entries.append(writer.finish(NO_DOCS, sync=False))
    assert entries[0] == entries[1]


def test_strided_ids_are_written_in_order(tmp_path: Path):
    ids = np.arange(20, dtype=UINT16)
    with ShardWriter(tmp_path, "train", index=0, dtype=UINT16, num_tokens=10) as writer:
        writer.write(ids[::2])
        writer.finish(NO_DOCS)
    assert np.load(tmp_path / "train_000000.npy").tolist() == ids[::2].tolist()


@pytest.mark.parametrize("dtype", ["<u4", "<i2", ">u2", "<f2"])
def test_ids_of_another_type_are_refused(tmp_path: Path, dtype: str):
    with ShardWriter(tmp_path, "train", index=0, dtype=UINT16, num_tokens=1) as writer:
        with pytest.raises(TypeError, match="expected one dimension"):
            writer.write(np.zeros(1, dtype=dtype))
        with pytest.raises(TypeError, match="expected one dimension"):
            writer.write(np.zeros((1, 1), dtype=UINT16))


@pytest.mark.parametrize("num_written", [4, 6])
def test_a_shard_of_another_length_than_promised_is_not_published(tmp_path: Path, num_written: int):
    def write() -> None:
        with ShardWriter(tmp_path, "train", index=0, dtype=UINT16, num_tokens=5) as writer:
            writer.write(np.zeros(num_written, dtype=UINT16))
            writer.finish(NO_DOCS)

    with pytest.raises(ValueError, match=f"{num_written} ids for a shard of 5"):
        write()
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("ends", [(3, 2), (1, 9)])
def test_documents_that_cannot_be_in_the_shard_are_refused(tmp_path: Path, ends: tuple[int, ...]):
    with ShardWriter(tmp_path, "train", index=0, dtype=UINT16, num_tokens=5) as writer:
        writer.write(np.zeros(5, dtype=UINT16))
        with pytest.raises(ValueError, match="documents"):
            writer.finish(documents(*ends))
    assert files_in(tmp_path) == []


def test_an_interrupted_shard_leaves_nothing_behind(tmp_path: Path):
    def write() -> None:
        with ShardWriter(tmp_path, "train", index=0, dtype=UINT16, num_tokens=5) as writer:
            writer.write(np.zeros(2, dtype=UINT16))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert files_in(tmp_path) == []


def test_a_second_attempt_replaces_the_first_with_the_same_bytes(tmp_path: Path):
    entries = []
    for _ in range(2):
        with ShardWriter(tmp_path, "val", index=0, dtype=UINT16, num_tokens=5) as writer:
            writer.write(np.arange(5, dtype=UINT16))
            entries.append(writer.finish(documents(5)))
    assert entries[0] == entries[1]
    assert files_in(tmp_path) == ["blocks/val_000000.npy", "docs/val_000000.npy", "val_000000.npy"]


def test_where_a_shard_has_its_name_its_tables_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    real, seen = Path.replace, []

    def watch(self: Path, target: Path) -> Path:
        seen.append(target.relative_to(tmp_path).as_posix())
        return real(self, target)

    monkeypatch.setattr(Path, "replace", watch)
    with ShardWriter(tmp_path, "train", index=0, dtype=UINT16, num_tokens=1) as writer:
        writer.write(np.zeros(1, dtype=UINT16))
        writer.finish(documents(1))
    assert seen[-1] == "train_000000.npy"
    assert len(seen) == 3


def test_a_fault_of_the_disk_names_the_file(tmp_path: Path):
    (tmp_path / "docs").write_text("in the way")
    with pytest.raises(StorageError, match="docs"):
        ShardWriter(tmp_path, "train", index=0, dtype=UINT16, num_tokens=1)


def test_a_tokenizer_is_written_under_a_plain_name_only(tmp_path: Path):
    with pytest.raises(ValueError, match="and a suffix"):
        write_tokenizer(tmp_path, "../tokenizer.json", data=b"{}")
    entry = write_tokenizer(tmp_path, "tokenizer.model", data=b"abc")
    assert entry == hash_file(tmp_path / "tokenizer.model")


def files_in(folder: Path) -> list[str]:
    paths = (Path(root) / name for root, _, names in os.walk(folder) for name in names)
    return sorted(path.relative_to(folder).as_posix() for path in paths)
