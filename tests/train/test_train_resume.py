"""A run that is stopped and continued is the run that was not, to the last bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import make_store, rows, stop_at, tiny

from tokenmill.errors import (
    ConfigError,
    DamageError,
    Interrupted,
    SettingsChangedError,
    TokenmillError,
)
from tokenmill.progress import Event
from tokenmill.train.checkpoint import Checkpoints
from tokenmill.train.run import train_model

KINDS: dict[str, dict[str, Any]] = {
    "muon": {},
    "adamw-ema-dropout": {
        "model": {"core": "gpt2", "dropout": 0.1},
        "optimizer": {"optimizer": "adamw", "lr": 1e-3},
        "ema": 0.9,
        "document_masking": True,
    },
}


def final_tensors(out_dir: Path) -> dict[str, torch.Tensor]:
    checkpoint = Checkpoints(out_dir).find("last")
    names = [name for name in ("model", "optimizer", "ema") if checkpoint.has(name)]
    return {f"{n}/{key}": value for n in names for key, value in checkpoint.tensors(n).items()}


def assert_same_bits(first: Path, second: Path) -> None:
    left, right = final_tensors(first), final_tensors(second)
    assert left.keys() == right.keys()
    differing = [name for name in left if not torch.equal(left[name], right[name])]
    assert not differing
    for kind in ("train", "eval"):
        told = [
            [(row["step"], row["loss"], row["tokens"]) for row in rows(out_dir, kind)]
            for out_dir in (first, second)
        ]
        assert told[0] == told[1]


@pytest.fixture(scope="module")
def whole(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    for kind, changes in KINDS.items():
        train_model(tiny(store, folder / kind, **changes))
    return {kind: folder / kind for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("step", "number"), [(2, signal.SIGUSR1), (6, signal.SIGTERM), (10, signal.SIGINT)]
)
def test_a_run_stopped_by_a_signal_continues_bitwise(
    store: Path, whole: dict[str, Path], tmp_path: Path, kind: str, step: int, number: int
):
    settings = tiny(store, tmp_path / "run", **KINDS[kind])
    with pytest.raises(Interrupted, match=f"at step {step} of 12") as caught:
        train_model(settings, report=stop_at(step, number))
    assert caught.value.exit_code == 75
    assert Checkpoints(tmp_path / "run").steps()[-1] == step
    outcome = train_model(settings)
    assert not outcome.was_complete
    assert_same_bits(whole[kind], tmp_path / "run")


def test_a_row_after_a_resume_is_the_mean_of_all_its_steps(store: Path, tmp_path: Path):
    train_model(tiny(store, tmp_path / "straight", log_interval=4))
    settings = tiny(store, tmp_path / "run", log_interval=4)

    def stop_after_evaluation(event: Event) -> None:
        if event.message.startswith("step 4:"):
            os.kill(os.getpid(), signal.SIGUSR1)

    with pytest.raises(Interrupted, match="at step 5"):
        train_model(settings, report=stop_after_evaluation)
    assert len(Checkpoints(tmp_path / "run").find().record.pending) == 1
    train_model(settings)
    assert_same_bits(tmp_path / "straight", tmp_path / "run")


def assert_weights(first: Path, second: Path) -> None:
    left, right = final_tensors(first), final_tensors(second)
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_complete_run_has_nothing_to_do_and_leaves_everything_alone(store: Path, tmp_path: Path):
    settings = tiny(store, tmp_path / "run")
    first = train_model(settings)
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = train_model(settings)
    assert again.was_complete
    assert again.evaluation is not None
    assert first.evaluation is not None
    assert again.evaluation.loss == first.evaluation.loss
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_other_settings_are_refused_and_the_difference_is_shown(store: Path, tmp_path: Path):
    train_model(tiny(store, tmp_path / "run", max_steps=3))
    changed = tiny(store, tmp_path / "run", seed=5, model={"num_layers": 3})
    with pytest.raises(SettingsChangedError) as caught:
        train_model(changed)
    assert "model.num_layers: 2 then, 3 now" in caught.value.message
    assert "seed: 0 then, 5 now" in caught.value.message
    assert caught.value.exit_code == 2


def test_a_run_may_be_made_longer_and_keeps_its_past(store: Path, tmp_path: Path):
    train_model(tiny(store, tmp_path / "run", max_steps=4, schedule={"shape": "constant"}))
    longer = {"max_steps": 8, "schedule": {"shape": "constant"}, "keep_last": 3, "batch_size": 4}
    outcome = train_model(tiny(store, tmp_path / "run", **longer, eval_interval=2))
    train_model(tiny(store, tmp_path / "straight", **longer))
    assert outcome.step == 8
    assert_weights(tmp_path / "straight", tmp_path / "run")


def test_changed_data_is_refused(store: Path, tmp_path: Path):
    train_model(tiny(store, tmp_path / "run", max_steps=3))
    other = make_store(tmp_path / "other", val_ratio=0.3)
    with pytest.raises(ConfigError, match="another plan"):
        train_model(tiny(other, tmp_path / "run"))


def test_a_damaged_checkpoint_is_reported_and_an_older_one_continues(
    store: Path, whole: dict[str, Path], tmp_path: Path
):
    settings = tiny(store, tmp_path / "run")
    with pytest.raises(Interrupted):
        train_model(settings, report=stop_at(10))
    steps = Checkpoints(tmp_path / "run").steps()
    path = Checkpoints(tmp_path / "run").path(10) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 16
    path.write_bytes(data)
    with pytest.raises(DamageError, match=r"model\.safetensors: damaged: sha256") as caught:
        train_model(settings)
    assert caught.value.hint == f"--resume {steps[-2]} continues from step {steps[-2]}"
    train_model(settings, resume=steps[-2])
    assert_same_bits(whole["muon"], tmp_path / "run")
    assert list((tmp_path / "run" / "checkpoints" / "set-aside").iterdir())


@pytest.mark.parametrize(("resume", "said"), [("last", "no checkpoint"), (7, "no checkpoint")])
def test_there_must_be_something_to_resume(store: Path, tmp_path: Path, resume: Any, said: str):
    with pytest.raises(TokenmillError, match=said):
        train_model(tiny(store, tmp_path / "run"), resume=resume)


def test_a_run_stops_when_its_hours_are_over_and_is_complete_then(store: Path, tmp_path: Path):
    settings = tiny(store, tmp_path / "run", max_steps=100_000, max_hours=0.0003)
    outcome = train_model(settings)
    assert outcome.ending == "max_hours"
    assert 0 < outcome.step < 100_000
    assert Checkpoints(tmp_path / "run").steps()[-1] == outcome.step
    assert train_model(settings).was_complete


def test_max_tokens_are_never_exceeded(store: Path, tmp_path: Path):
    settings = tiny(store, tmp_path / "run", max_tokens=256 * 3 + 255, max_steps=None)
    outcome = train_model(settings)
    assert (outcome.step, outcome.num_tokens) == (3, 768)
