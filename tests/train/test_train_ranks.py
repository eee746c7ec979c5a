"""How many processes share the rows of a batch changes nothing but rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rank_processes import Job, train_with_ranks
from tiny_runs import rows, stop_at, tiny

from tokenmill.errors import ConfigError, Interrupted
from tokenmill.train.checkpoint import Checkpoints
from tokenmill.train.distributed import find_ranks
from tokenmill.train.run import train_model

SETTINGS: dict[str, Any] = {"max_steps": 8, "batch_size": 2, "ema": 0.5}


CASES = [(2, "ddp"), (4, "ddp"), (2, "fsdp"), (4, "fsdp")]


@pytest.fixture(scope="module")
def runs(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one process, of several, and of several that were stopped."""
    folder = tmp_path_factory.mktemp("ranks")
    train_model(tiny(store, folder / "alone", **SETTINGS))
    with pytest.raises(Interrupted):
        train_model(tiny(store, folder / "from-1", **SETTINGS), report=stop_at(4))
    jobs = [
        Job(tiny(store, folder / f"{parallel}-{number}", parallel=parallel, **SETTINGS), number)
        for number, parallel in CASES
    ]
    for kind in ("ddp", "fsdp"):
        settings = tiny(store, folder / f"stopped-{kind}", parallel=kind, **SETTINGS)
        jobs.append(Job(settings, 2, stop_step=4))
    jobs.append(Job(tiny(store, folder / "from-1", parallel="fsdp", **SETTINGS), 2))
    train_with_ranks(jobs)
    return folder


def assert_equal_to_noise(first: Path, second: Path) -> None:
    for kind in ("train", "eval"):
        left, right = rows(first, kind), rows(second, kind)
        assert [row["step"] for row in left] == [row["step"] for row in right]
        assert [row["tokens"] for row in left] == [row["tokens"] for row in right]
        losses = [[row["loss"] for row in told] for told in (left, right)]
        assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-5), kind
        assert losses[0] == pytest.approx(losses[1], rel=5e-4), kind  # noise grows
        assert losses[0][0] > 1.2 * losses[0][-1]
    norms = [[row["grad_norm"] for row in rows(run, "train")] for run in (first, second)]
    assert norms[0] == pytest.approx(norms[1], rel=0.01)  # optimizers would not notice a factor
    assert [row["labels"] for row in rows(first, "eval")] == [
        row["labels"] for row in rows(second, "eval")
    ]
    for name in ("model", "ema"):
        left = Checkpoints(first).find("last").tensors(name)
        right = Checkpoints(second).find("last").tensors(name)
        assert left.keys() == right.keys()
        for key, value in left.items():  # Muon makes more of noise than a loss does
            assert (value - right[key]).norm() < 0.1 * value.norm(), key


@pytest.mark.parametrize(("num_ranks", "parallel"), CASES)
def test_any_number_of_ranks_gives_the_loss_of_one(runs: Path, num_ranks: int, parallel: str):
    run = runs / f"{parallel}-{num_ranks}"
    assert rows(run, "start")[0]["world_size"] == num_ranks
    assert_equal_to_noise(runs / "alone", run)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_run_of_two_ranks_is_continued_by_one(store: Path, runs: Path, parallel: str):
    run = runs / f"stopped-{parallel}"
    found = Checkpoints(run).find("last").record
    assert (found.step, found.world_size) == (4, 2)
    train_model(tiny(store, run, **SETTINGS))
    assert_equal_to_noise(runs / "alone", run)


def test_a_run_of_one_rank_is_continued_by_two(runs: Path):
    assert [row["world_size"] for row in rows(runs / "from-1", "start")] == [1, 2]
    assert_equal_to_noise(runs / "alone", runs / "from-1")


@pytest.mark.parametrize(
    ("environment", "parallel", "said"),
    [
        ({"WORLD_SIZE": "two"}, "auto", "must be numbers"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "auto", "expected 0 to 1"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "none", "parallel is 'none'"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(
    environment: dict[str, str], parallel: Any, said: str, monkeypatch: pytest.MonkeyPatch
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        find_ranks(parallel)
