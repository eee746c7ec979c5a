from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenmill.errors import DamageError
from tokenmill.store import Metadata, open_store
from tokenmill.store import format as layout
from tokenmill.store.stored_file import StoredFile

BuildStore = Callable[..., Metadata]


def test_a_flip_of_any_byte_of_a_shard_is_never_served(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path, {"train": [list(range(60))]}, shard_tokens=60)
    path = tmp_path / "train_000000.npy"
    data = path.read_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(DamageError, match=r"train_000000\.npy") as caught:
            open_store(tmp_path).read(place % 60, place % 60 + 1)
        assert f"tokenmill verify {tmp_path} --level full" in str(caught.value)


def test_a_flip_is_found_in_the_block_that_is_touched_and_only_there(
    tmp_path: Path, build_store: BuildStore
):
    num_tokens = 100_000
    build_store(tmp_path, {"train": [[1] * num_tokens]}, shard_tokens=num_tokens)
    path = tmp_path / "train_000000.npy"
    data = bytearray(path.read_bytes())
    assert len(data) > 3 * layout.BLOCK_BYTES
    data[2 * layout.BLOCK_BYTES + 5] ^= 4
    path.write_bytes(data)
    split = open_store(tmp_path).splits["train"]
    first_of_block = (2 * layout.BLOCK_BYTES - layout.HEADER_BYTES) // 2
    assert split.read(0, first_of_block).tolist() == [1] * first_of_block
    for start, stop in [(first_of_block, first_of_block + 1), (0, num_tokens), (50_000, 70_000)]:
        with pytest.raises(DamageError, match=r"block 2 \(bytes 131072 to 196608\)"):
            split.read(start, stop)
    last = num_tokens - 1
    assert split.read(last, num_tokens).tolist() == [1]
    relaxed = open_store(tmp_path, verify="size").read(0, num_tokens)
    assert relaxed.tolist().count(1) == num_tokens - 1


def test_what_is_served_is_what_was_hashed(
    tmp_path: Path, build_store: BuildStore, monkeypatch: pytest.MonkeyPatch
):
    """A read that goes wrong once must not slip past because a second read is right."""
    build_store(tmp_path, {"train": [[1] * 70_000]}, shard_tokens=70_000)
    split, real = open_store(tmp_path).splits["train"], StoredFile.read_into

    def fail_in_small_reads(self: StoredFile, out: memoryview, offset: int) -> None:
        real(self, out, offset)
        if len(out) <= 200 and self.name == "train_000000.npy":
            out[0] ^= 1

    monkeypatch.setattr(StoredFile, "read_into", fail_in_small_reads)
    assert split.read(100, 200).tolist() == [1] * 100
    across = (layout.BLOCK_BYTES - layout.HEADER_BYTES) // 2 + 32_768 - 50  # blocks 1 and 2
    assert split.read(across, across + 100).tolist() == [1] * 100


@pytest.mark.parametrize("table", ["docs", "blocks"])
def test_a_flip_of_any_byte_of_a_table_is_found_when_it_is_used(
    tmp_path: Path, build_store: BuildStore, table: str
):
    build_store(tmp_path, {"train": [[1, 2], [3, 4, 5]]}, shard_tokens=5)
    path = tmp_path / table / "train_000000.npy"
    data = path.read_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        split = open_store(tmp_path).splits["train"]
        with pytest.raises(DamageError, match=f"{table}/train_000000"):
            split.document(1) if table == "docs" else split.read(1, 2)


def test_a_shard_that_carries_pickle_is_refused_unread(tmp_path: Path, build_store: BuildStore):
    store = tmp_path / "store"
    build_store(store, {"train": [[1, 2, 3]]})

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(store / "sprung"),)

    path = store / "train_000000.npy"
    size = path.stat().st_size
    np.save(path, np.array([Trap()], dtype=object), allow_pickle=True)
    path.write_bytes(path.read_bytes().ljust(size, b"\0")[:size])
    for verify in ("blocks", "size", "off"):
        with pytest.raises(DamageError, match=r"\.npy header"):
            open_store(store, verify=verify).read(0, 3)
    assert not (store / "sprung").exists()


def test_a_shard_cut_after_open_is_an_error_and_not_a_crash(
    tmp_path: Path, build_store: BuildStore
):
    build_store(tmp_path, {"train": [[1] * 200_000]}, shard_tokens=200_000)
    store = open_store(tmp_path, verify="off")
    store.read(0, 10)
    os.truncate(tmp_path / "train_000000.npy", 1_000)
    with pytest.raises(DamageError, match="ends at byte"):
        store.read(150_000, 200_000)
