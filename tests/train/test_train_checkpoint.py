"""A checkpoint is whole or not there, and damage to it is found."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenmill.errors import ConfigError, DamageError, StorageError
from tokenmill.train import checkpoint as module
from tokenmill.train.checkpoint import Checkpoint, Checkpoints, Record


class Crash(BaseException):
    """The process ends here."""


def record(step: int, val_loss: float | None = None) -> Record:
    return Record(step=step, settings={"seed": 1}, data={}, num_tokens=step, val_loss=val_loss)


def tensors(value: float) -> dict[str, dict[str, torch.Tensor]]:
    weights = {"weight": torch.full((50, 3), value), "half": torch.zeros(7, dtype=torch.bfloat16)}
    return {"model": weights, "optimizer": {"momentum": torch.full((5,), -value)}}


def save(checkpoints: Checkpoints, step: int, val_loss: float | None = None) -> Path:
    return checkpoints.save(record(step, val_loss), tensors(float(step)))


def test_tensors_come_back_as_they_were(tmp_path: Path):
    save(Checkpoints(tmp_path), 3)
    found = Checkpoints(tmp_path).resume()
    assert found.record.step == 3
    for name, values in tensors(3.0).items():
        loaded = found.tensors(name)
        assert loaded.keys() == values.keys()
        assert all(torch.equal(loaded[key], value) for key, value in values.items())
        assert all(loaded[key].dtype == value.dtype for key, value in values.items())


@pytest.mark.parametrize("point", range(40))
def test_a_crash_at_any_moment_leaves_a_checkpoint_to_continue_from(
    tmp_path: Path, point: int, monkeypatch: pytest.MonkeyPatch
):
    checkpoints = Checkpoints(tmp_path, keep_last=1)
    save(checkpoints, 1, 5.0)
    save(checkpoints, 2, 6.0)
    calls = 0

    def dying(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == point + 1:
                raise Crash
            return function(*arguments, **options)

        return call

    with monkeypatch.context() as patched:
        for place, name in [(os, "fsync"), (os, "replace"), (os, "rename"), (os, "mkdir")]:
            patched.setattr(place, name, dying(getattr(place, name)))
        patched.setattr(module, "save_file", dying(module.save_file))
        patched.setattr(shutil, "rmtree", dying(shutil.rmtree))
        try:
            save(checkpoints, 3, 4.0)
            crashed = False
        except Crash:
            crashed = True
    assert crashed == (point < calls)
    again = Checkpoints(tmp_path, keep_last=1)
    again.clean()
    assert not list((tmp_path / "checkpoints").glob(".*"))
    assert again.resume().step in (2, 3)
    for step in again.steps():
        Checkpoint(again.path(step)).verify()
    save(again, 3, 4.0)
    assert again.steps() == [3]


def test_there_are_enough_moments_to_crash_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []
    for place, name in [(os, "fsync"), (os, "replace"), (os, "rename"), (os, "mkdir")]:
        function = getattr(place, name)

        def counting(*arguments: Any, _f: Any = function, _n: str = name, **options: Any) -> Any:
            calls.append(_n)
            return _f(*arguments, **options)

        monkeypatch.setattr(place, name, counting)
    save(Checkpoints(tmp_path), 1)
    assert calls.count("fsync") >= 5  # two files of tensors, the record, two folders
    assert "rename" in calls
    assert len(calls) < 36


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "missing"])
def test_damage_is_found_and_the_next_older_checkpoint_named(
    tmp_path: Path, name: str, damage: str
):
    checkpoints = Checkpoints(tmp_path, keep_last=3)
    for step in (1, 2, 3):
        save(checkpoints, step)
    for step in (2, 3):
        hurt(checkpoints.path(step) / name, damage)
    with pytest.raises(DamageError, match="damaged") as caught:
        checkpoints.resume()
    assert name in caught.value.message
    assert "step-00000003" in caught.value.message
    assert caught.value.hint == "--resume 1 continues from step 1"
    assert caught.value.exit_code == 3
    hurt(checkpoints.path(1) / name, damage)
    with pytest.raises(DamageError) as caught:
        checkpoints.resume()
    assert "no checkpoint is whole" in str(caught.value.hint)


def hurt(path: Path, damage: str) -> None:
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(data[:-9])
    else:
        place = data.index(b'"step"') + 8 if path.suffix == ".json" else len(data) - 3
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep_last=2)
    for step, loss in enumerate([9.0, 4.0, 5.0, None, 6.0, 7.0], start=1):
        save(checkpoints, step, loss)
    assert checkpoints.steps() == [2, 5, 6]
    assert checkpoints.find("best").step == 2
    assert checkpoints.find("last").step == 6
    assert checkpoints.find(5).step == 5
    with pytest.raises(ConfigError, match="no checkpoint of step 4") as caught:
        checkpoints.find(4)
    assert "2, 5, 6" in str(caught.value.hint)


def test_later_checkpoints_are_set_aside_not_deleted(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path, keep_last=5)
    for step in (1, 2, 3):
        save(checkpoints, step)
    checkpoints.set_aside(1)
    assert checkpoints.steps() == [1]
    aside = sorted(path.name[:13] for path in (tmp_path / "checkpoints/set-aside").iterdir())
    assert aside == ["step-00000002", "step-00000003"]


def test_a_disk_that_refuses_is_an_error_that_names_it(tmp_path: Path):
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(StorageError):
        save(Checkpoints(tmp_path), 1)
