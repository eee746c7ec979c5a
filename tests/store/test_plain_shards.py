"""Folders of plain .npy shards: taken in order, refused when odd, recorded and checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from consolidating import run, write_plain

from tokenmill.errors import DamageError, TokenmillError
from tokenmill.store import Metadata, verify

BuildStore = Callable[..., Metadata]
pytestmark = pytest.mark.usefixtures("without_waiting_for_the_disk")


def test_plain_shards_go_by_number_whatever_their_zeros(tmp_path: Path):
    for number in (9, 10, 11):
        np.save(tmp_path / f"train_{number}.npy", np.full(2, number, dtype=np.uint16))
    run(tmp_path)
    assert np.fromfile(tmp_path / "tokens.bin", "<u2").tolist() == [9, 9, 10, 10, 11, 11]


def save(path: Path, array: np.ndarray) -> None:
    np.save(path, array, allow_pickle=True)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train_000002.npy", np.zeros(3, "<u2"), "shard 1 of train is missing"),
        ("train_0.npy", np.zeros(3, "<u2"), "the same number"),
        ("train_000001.npy", np.zeros(3, "<u4"), "its ids are uint32"),
        ("train_000001.npy", np.zeros(3, "<i8"), "int64"),
        ("train_000001.npy", np.zeros(3, ">u2"), "little-endian"),
        ("train_000001.npy", np.zeros((3, 2), "<u2"), "one dimension"),
        ("train_000001.npy", np.array([{}], dtype=object), "object"),
    ],
)
def test_plain_shards_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, array: np.ndarray, message: str
):
    write_plain(tmp_path, range(4), size=10)
    save(tmp_path / name, array)
    with pytest.raises(TokenmillError, match=message):
        run(tmp_path)
    assert not (tmp_path / "tokens.bin").exists()


def test_a_cut_plain_shard_is_refused(tmp_path: Path):
    write_plain(tmp_path, range(40), size=20)
    path = tmp_path / "train_000001.npy"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DamageError, match="its header says"):
        run(tmp_path)


def test_a_changed_plain_shard_is_found_and_consolidated_anew(tmp_path: Path):
    write_plain(tmp_path, range(16), size=7)
    run(tmp_path)
    np.save(tmp_path / "train_000001.npy", np.arange(50, 57, dtype=np.uint16))
    assert "do not hold the ids" in str(verify(tmp_path, "full").problems)
    assert not run(tmp_path, replace=True).splits[0].was_complete
    assert np.fromfile(tmp_path / "tokens.bin", "<u2")[7] == 50
    assert verify(tmp_path, "full").ok


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("splits", "train", "shards", 0, "name"), "../train_000000.npy"),
        (("splits", "train", "consolidated", "num_samples"), 5),
        (("splits", "train", "consolidated", "tokens", "bytes"), 5),
        (("splits", "train", "dtype"), "float32"),
        (("splits", "train", "more"), 5),
    ],
)
def test_a_record_that_was_tampered_with_is_refused(
    tmp_path: Path, path: tuple[str | int, ...], value: object
):
    write_plain(tmp_path, range(16), size=7)
    run(tmp_path)
    record = json.loads((tmp_path / "consolidated.json").read_text())
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    blank = json.dumps({**record, "checksum": ""}, indent=2, ensure_ascii=False) + "\n"
    record["checksum"] = f"sha256:{hashlib.sha256(blank.encode()).hexdigest()}"
    text = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    (tmp_path / "consolidated.json").write_text(text)
    with pytest.raises(DamageError, match=r"consolidated\.json: damaged"):
        verify(tmp_path)
