"""tokens.bin and sample_ids.bin: equal to an independent computation, resumable, never trusted."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from consolidating import LEVELS, expected_files, flip, run, write_plain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenmill.errors import BusyError, ConfigError, DamageError, NotAStoreError
from tokenmill.files import exclusive_lock
from tokenmill.store import (
    ConsolidateSettings,
    Metadata,
    consolidation,
    open_store,
    read_metadata,
    verify,
)

BuildStore = Callable[..., Metadata]
pytestmark = pytest.mark.usefixtures("without_waiting_for_the_disk")

GOLDEN_SAMPLE_IDS = [
    18058939085400907254,
    5455755599936783036,
    5455289930222759681,
    15566273438815194232,
]
GOLDEN_TOKENS_SHA256 = "64a240d34d0c29ec867f653721a1532de6e665e602e7c03e0b853c9ef3094126"


@pytest.mark.parametrize("shard_tokens", [1, 3, 5, 16, 100])
def test_the_golden_values_come_from_a_store(
    tmp_path: Path, build_store: BuildStore, shard_tokens: int
):
    before = build_store(tmp_path, {"train": [list(range(16))]}, shard_tokens=shard_tokens)
    (split,) = run(tmp_path).splits
    assert split.tokens_sha256 == GOLDEN_TOKENS_SHA256
    found = np.fromfile(tmp_path / "sample_ids.bin", dtype="<u8")
    assert found.tolist() == GOLDEN_SAMPLE_IDS
    assert np.fromfile(tmp_path / "tokens.bin", dtype="<u2").tolist() == list(range(16))
    after = read_metadata(tmp_path)
    assert after.digest == before.digest
    entry = open_store(tmp_path).splits["train"].consolidated
    assert entry is not None
    assert entry.tokens.sha256 == GOLDEN_TOKENS_SHA256
    assert entry.sample_ids.sha256 == hashlib.sha256(found.tobytes()).hexdigest()
    assert all(verify(tmp_path, level).ok for level in LEVELS)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_the_golden_values_come_from_plain_shards(tmp_path: Path, dtype: str):
    write_plain(tmp_path, range(16), size=7, dtype=dtype)
    (split,) = run(tmp_path).splits
    found = np.fromfile(tmp_path / "sample_ids.bin", dtype="<u8")
    assert found.tolist() == GOLDEN_SAMPLE_IDS
    if dtype == "uint16":
        assert split.tokens_sha256 == GOLDEN_TOKENS_SHA256
    assert all(verify(tmp_path, level).ok for level in LEVELS)
    record = json.loads((tmp_path / "consolidated.json").read_text())
    assert record["splits"]["train"]["consolidated"]["tokens"]["sha256"] == split.tokens_sha256


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    ids=st.lists(st.integers(0, 65535), max_size=70),
    size=st.integers(1, 80),
    seq_len=st.integers(1, 80),
    wide=st.booleans(),
)
def test_any_lengths_equal_an_independent_computation(
    tmp_path: Path, ids: list[int], size: int, seq_len: int, wide: bool
):
    dtype = "uint32" if wide else "uint16"
    shutil.rmtree(tmp_path, ignore_errors=True)
    write_plain(tmp_path, ids, size=size, dtype=dtype)
    (split,) = run(tmp_path, seq_len=seq_len).splits
    tokens, samples = expected_files(ids, seq_len=seq_len, dtype=dtype)
    assert (tmp_path / "tokens.bin").read_bytes() == tokens
    assert (tmp_path / "sample_ids.bin").read_bytes() == samples
    assert (split.num_samples, split.num_tail_tokens) == divmod(len(ids), seq_len)
    assert all(verify(tmp_path, level).ok for level in LEVELS)


def test_every_split_gets_files_of_its_own(tmp_path: Path, build_store: BuildStore):
    documents = {"train": [[1] * 7, [2] * 6], "val": [[3] * 9], "test": []}
    build_store(tmp_path, documents, shard_tokens=4)
    made = {split.split: split for split in run(tmp_path, seq_len=5).splits}
    assert {name: s.num_samples for name, s in made.items()} == {"train": 2, "val": 1, "test": 0}
    assert np.fromfile(tmp_path / "val_tokens.bin", dtype="<u2").tolist() == [3] * 9
    assert (tmp_path / "test_tokens.bin").read_bytes() == b""
    assert verify(tmp_path, "full").ok


def test_one_split_can_be_chosen(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path, {"train": [[1] * 7], "val": [[3] * 9]})
    assert [split.split for split in run(tmp_path, splits=("val",)).splits] == ["val"]
    assert not (tmp_path / "tokens.bin").exists()
    with pytest.raises(ConfigError, match="no split 'test'"):
        run(tmp_path, splits=("test",))


def test_thousands_of_shards(tmp_path: Path):
    ids = [number % 50_000 for number in range(2500)]
    write_plain(tmp_path, ids, size=1)
    run(tmp_path, seq_len=7)
    tokens, samples = expected_files(ids, seq_len=7, dtype="uint16")
    assert (tmp_path / "tokens.bin").read_bytes() == tokens
    assert (tmp_path / "sample_ids.bin").read_bytes() == samples


def test_what_is_neither_a_store_nor_shards_is_refused(tmp_path: Path):
    with pytest.raises(NotAStoreError):
        run(tmp_path)
    write_plain(tmp_path, range(4), size=10)
    (tmp_path / "_run").mkdir()
    with pytest.raises(NotAStoreError, match="not a store yet"):
        run(tmp_path)


@pytest.mark.parametrize("seq_len", [0, -1, (1 << 22) + 1])
def test_a_sequence_length_out_of_range_is_refused(seq_len: int):
    with pytest.raises(ConfigError, match="seq_len must be"):
        ConsolidateSettings(seq_len=seq_len)


def test_a_flipped_bit_in_a_shard_is_never_consolidated(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path, {"train": [list(range(60))]}, shard_tokens=30)
    flip(tmp_path / "train_000001.npy", 140)
    with pytest.raises(DamageError, match=r"train_000001\.npy"):
        run(tmp_path, skip_validation=True)
    assert not (tmp_path / "tokens.bin").exists()
    assert open_store(tmp_path).splits["train"].consolidated is None


@pytest.mark.parametrize("name", ["tokens.bin", "sample_ids.bin"])
@pytest.mark.parametrize("delete_shards", [False, True])
@pytest.mark.parametrize("is_store", [False, True])
def test_every_flipped_bit_is_found(
    tmp_path: Path, build_store: BuildStore, name: str, delete_shards: bool, is_store: bool
):
    ids = list(range(23))
    if is_store:
        build_store(tmp_path, {"train": [ids]}, shard_tokens=10)
    else:
        write_plain(tmp_path, ids, size=10)
    run(tmp_path, delete_shards=delete_shards)
    path = tmp_path / name
    for place in range(path.stat().st_size):
        flip(path, place)
        report = verify(tmp_path, "full")
        assert name in str(report.problems), place
        flip(path, place)
    assert verify(tmp_path, "full").ok
    whole = path.read_bytes()
    for level in LEVELS:
        for damaged in (whole[:-1], whole + b"\0"):
            path.write_bytes(damaged)
            assert not verify(tmp_path, level).ok
        path.unlink()
        assert "is missing" in str(verify(tmp_path, level).problems)
        path.write_bytes(whole)
        assert verify(tmp_path, level).ok


def test_a_sample_of_a_damaged_tokens_file_is_found(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path, {"train": [list(range(40))]}, shard_tokens=10)
    run(tmp_path)
    for name in ("tokens.bin", "sample_ids.bin"):
        flip(tmp_path / name, 5)
        assert not verify(tmp_path, "sample").ok
        flip(tmp_path / name, 5)


# -- continuing


def test_a_stopped_consolidation_goes_on_where_it_was(
    tmp_path: Path, build_store: BuildStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(consolidation, "STRETCH_BYTES", 20)
    monkeypatch.setattr(consolidation, "PIECE_BYTES", 20)
    build_store(tmp_path, {"train": [list(range(97))]}, shard_tokens=10)
    real, hashed = consolidation.sample_ids, []

    def stop_late(ids: np.ndarray, seq_len: int) -> np.ndarray:
        hashed.append(ids.tolist())
        if 60 in ids:
            raise KeyboardInterrupt
        return real(ids, seq_len)

    with monkeypatch.context() as patch:
        patch.setattr(consolidation, "sample_ids", stop_late)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    assert not (tmp_path / "tokens.bin").exists()
    hashed.clear()
    monkeypatch.setattr(consolidation, "sample_ids", lambda *a: hashed.append(1) or real(*a))
    run(tmp_path)
    assert 0 < len(hashed) < 7
    tokens, samples = expected_files(range(97), seq_len=4, dtype="uint16")
    assert (tmp_path / "tokens.bin").read_bytes() == tokens
    assert (tmp_path / "sample_ids.bin").read_bytes() == samples
    assert not list((tmp_path / ".consolidate").glob("train*"))


@pytest.mark.parametrize("name", ["train.tokens", "train.sample_ids", "train.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_what_a_power_loss_spoiled_is_made_again(
    tmp_path: Path,
    build_store: BuildStore,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    damage: str,
):
    monkeypatch.setattr(consolidation, "STRETCH_BYTES", 20)
    build_store(tmp_path, {"train": [list(range(97))]}, shard_tokens=10)
    with monkeypatch.context() as patch:
        patch.setattr(consolidation.Consolidation, "publish", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path)
    path = tmp_path / ".consolidate" / name
    if damage == "flip":
        flip(path, path.stat().st_size // 2)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.unlink()
    run(tmp_path)
    assert verify(tmp_path, "full").ok
    tokens, samples = expected_files(range(97), seq_len=4, dtype="uint16")
    assert (tmp_path / "tokens.bin").read_bytes() == tokens
    assert (tmp_path / "sample_ids.bin").read_bytes() == samples


def test_what_another_content_left_is_not_used(
    tmp_path: Path, build_store: BuildStore, monkeypatch: pytest.MonkeyPatch
):
    build_store(tmp_path, {"train": [list(range(40))]}, shard_tokens=10)
    with monkeypatch.context() as patch:
        patch.setattr(consolidation.Consolidation, "publish", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(tmp_path)
    build_store(tmp_path, {"train": [list(range(50, 90))]}, shard_tokens=10)
    run(tmp_path)
    assert np.fromfile(tmp_path / "tokens.bin", "<u2").tolist() == list(range(50, 90))


def test_what_the_disk_gives_back_is_compared(
    tmp_path: Path, build_store: BuildStore, monkeypatch: pytest.MonkeyPatch
):
    build_store(tmp_path, {"train": [list(range(40))]}, shard_tokens=10)
    real = consolidation.Consolidation.write

    def write_badly(self: consolidation.Consolidation, **options: object) -> None:
        real(self, **options)  # pyright: ignore[reportArgumentType]
        flip(tmp_path / ".consolidate" / "train.tokens", 8)

    monkeypatch.setattr(consolidation.Consolidation, "write", write_badly)
    with pytest.raises(DamageError, match="what was read back is not what was written"):
        run(tmp_path)
    assert not (tmp_path / "tokens.bin").exists()


def test_the_same_again_is_complete_and_mends_a_missing_file(
    tmp_path: Path, build_store: BuildStore
):
    build_store(tmp_path, {"train": [list(range(40))]}, shard_tokens=10)
    run(tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    assert run(tmp_path).splits[0].was_complete
    (tmp_path / "sample_ids.bin").unlink()
    with pytest.raises(DamageError, match=r"sample_ids\.bin") as caught:
        open_store(tmp_path)
    assert "tokenmill consolidate" in str(caught.value)
    assert not run(tmp_path).splits[0].was_complete
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()} == before


def test_another_sequence_length_refuses_and_shows_the_difference(
    tmp_path: Path, build_store: BuildStore
):
    build_store(tmp_path, {"train": [list(range(40))]}, shard_tokens=10)
    run(tmp_path)
    with pytest.raises(ConfigError, match="seq_len: 4 then, 8 now"):
        run(tmp_path, seq_len=8)
    assert run(tmp_path, seq_len=8, replace=True).splits[0].num_samples == 5
    assert verify(tmp_path, "full").ok
    run(tmp_path, seq_len=8, delete_shards=True)
    with pytest.raises(ConfigError, match="seq_len: 8 then, 4 now"):
        run(tmp_path, replace=True)
    assert verify(tmp_path, "full").ok


def test_a_file_that_is_not_ours_is_not_written_over(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path, {"train": [list(range(40))]}, shard_tokens=10)
    (tmp_path / "tokens.bin").write_bytes(b"precious")
    with pytest.raises(ConfigError, match="knows nothing of it"):
        run(tmp_path)
    assert (tmp_path / "tokens.bin").read_bytes() == b"precious"
    run(tmp_path, replace=True)
    assert verify(tmp_path, "full").ok


def test_two_at_once_are_refused(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path, {"train": [list(range(40))]}, shard_tokens=10)
    (tmp_path / ".consolidate").mkdir()
    with exclusive_lock(tmp_path / ".consolidate" / "lock"), pytest.raises(BusyError):
        run(tmp_path)
