"""Shards are deleted only when the rest holds all of them, and then read as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from consolidating import LEVELS, flip, run, write_plain

from tokenmill.errors import ConfigError, DamageError
from tokenmill.store import Metadata, open_store, read_metadata, verify

BuildStore = Callable[..., Metadata]
pytestmark = pytest.mark.usefixtures("without_waiting_for_the_disk")


def test_a_store_without_its_shards_reads_the_same(tmp_path: Path, build_store: BuildStore):
    documents = {"train": [[1, 2, 3], [4] * 9, [], [5, 6]], "val": [[7, 8] * 20]}
    before = build_store(tmp_path, documents, shard_tokens=5)
    store = open_store(tmp_path)
    ids = {name: split.read(0, len(split)).tolist() for name, split in store.splits.items()}
    found = run(tmp_path, delete_shards=True)
    assert found.num_deleted_shards == 3 + 8
    assert not list(tmp_path.glob("*.npy"))
    store = open_store(tmp_path)
    assert store.digest == before.digest
    for name, split in store.splits.items():
        assert split.read(0, len(split)).tolist() == ids[name]
        assert split.read(3, 9).tolist() == ids[name][3:9]
    assert store.document(1).ids.tolist() == [4] * 9
    assert all(verify(tmp_path, level).ok for level in LEVELS)
    assert run(tmp_path, delete_shards=True).num_deleted_shards == 0


def test_a_flip_in_the_tokens_file_is_never_served_once_shards_are_gone(
    tmp_path: Path, build_store: BuildStore
):
    build_store(tmp_path, {"train": [list(range(30))]}, shard_tokens=10)
    run(tmp_path, delete_shards=True)
    for place in range(60):
        flip(tmp_path / "tokens.bin", place)
        with pytest.raises(DamageError, match=r"tokens\.bin: train_00000\d\.npy in it: block 0"):
            open_store(tmp_path).read(place // 2, place // 2 + 1)
        flip(tmp_path / "tokens.bin", place)


@pytest.mark.parametrize(
    "damaged",
    ["tokens.bin", "sample_ids.bin", "docs/train_000001.npy", "blocks/train_000001.npy"],
)
def test_nothing_is_deleted_when_what_would_remain_is_damaged(
    tmp_path: Path, build_store: BuildStore, damaged: str
):
    build_store(tmp_path, {"train": [list(range(30))]}, shard_tokens=10)
    run(tmp_path)
    flip(tmp_path / damaged, (tmp_path / damaged).stat().st_size - 3)
    with pytest.raises(DamageError, match="no shard was deleted") as caught:
        run(tmp_path, delete_shards=True)
    assert damaged in str(caught.value)
    assert len(list(tmp_path.glob("train_*.npy"))) == 3
    assert not read_metadata(tmp_path).splits["train"].shards_deleted


def test_no_plain_shard_is_deleted_when_the_tokens_file_is_damaged(tmp_path: Path):
    write_plain(tmp_path, range(16), size=7)
    run(tmp_path)
    flip(tmp_path / "tokens.bin", 3)
    with pytest.raises(DamageError, match="no shard was deleted"):
        run(tmp_path, delete_shards=True)
    assert len(list(tmp_path.glob("train_*.npy"))) == 3


@pytest.mark.parametrize("is_store", [False, True])
def test_a_deletion_that_stopped_half_way_goes_on(
    tmp_path: Path,
    build_store: BuildStore,
    monkeypatch: pytest.MonkeyPatch,
    is_store: bool,
):
    if is_store:
        build_store(tmp_path, {"train": [list(range(30))]}, shard_tokens=10)
    else:
        write_plain(tmp_path, range(30), size=10)
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name == "train_000001.npy":
            raise KeyboardInterrupt
        real(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, delete_shards=True)
    assert len(list(tmp_path.glob("train_*.npy"))) == 2
    if is_store:
        assert open_store(tmp_path).read(0, 30).tolist() == list(range(30))
        assert "did not finish" in str(verify(tmp_path).problems)
    assert run(tmp_path, delete_shards=True).num_deleted_shards == 2
    assert verify(tmp_path, "full").ok


@pytest.mark.parametrize("is_store", [False, True])
def test_a_file_that_only_has_the_name_of_a_deleted_shard_is_left_alone(
    tmp_path: Path, build_store: BuildStore, is_store: bool
):
    if is_store:
        build_store(tmp_path, {"train": [list(range(30))]}, shard_tokens=10)
    else:
        write_plain(tmp_path, range(30), size=10)
    run(tmp_path, delete_shards=True)
    np.save(tmp_path / "train_000001.npy", np.arange(5, dtype=np.uint16))
    with pytest.raises(ConfigError, match="it was not deleted"):
        run(tmp_path, delete_shards=True)
    assert (tmp_path / "train_000001.npy").exists()
