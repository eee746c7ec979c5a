"""How many rows go through the model at once, and what is said when they do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_runs import tiny

from tokenmill.errors import ConfigError
from tokenmill.train.batch_size import (
    choose_batch_size,
    explained,
    is_out_of_memory,
    largest_fitting,
    take_share,
)
from tokenmill.train.distributed import Ranks
from tokenmill.train.run import train_model

CPU = torch.device("cpu")


def never(rows: int) -> int:
    raise AssertionError(f"{rows} rows were tried")


@pytest.mark.parametrize(
    ("batch_rows", "context", "expected"),
    [(32, 128, 32), (512, 128, 128), (12, 8192, 2), (7, 100_000, 1)],
)
def test_auto_takes_a_fixed_number_of_tokens_on_the_host(
    batch_rows: int, context: int, expected: int, tmp_path: Path
):
    share = take_share(batch_rows, "auto", ranks=Ranks(), context_length=context, device=CPU)
    assert choose_batch_size(share, "auto", attempt=never, out_dir=tmp_path) == expected


def test_the_largest_number_of_rows_that_fits_is_found():
    tried: list[int] = []

    def attempt(rows: int) -> int:
        tried.append(rows)
        if rows > 12:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return rows * 100

    fits = largest_fitting(Ranks(), [1, 2, 4, 8, 16], attempt=attempt, memory_bytes=1000)
    assert (fits, tried) == (8, [16, 8])
    fits = largest_fitting(Ranks(), [1, 2, 4, 8], attempt=attempt, memory_bytes=700)
    assert fits == 4  # room is left for what is not measured
    with pytest.raises(ConfigError, match="even with one row"):
        largest_fitting(Ranks(), [1, 2], attempt=attempt, memory_bytes=10)


def test_other_faults_are_not_taken_for_a_lack_of_memory():
    def attempt(rows: int) -> int:
        raise RuntimeError(f"{rows} rows: shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        largest_fitting(Ranks(), [1, 2], attempt=attempt, memory_bytes=10)
    with pytest.raises(RuntimeError, match="shapes differ"), explained(8, 128):
        attempt(8)


def test_running_out_of_memory_is_an_error_with_a_way_out():
    expected = pytest.raises(ConfigError, match="out of memory with 8 rows of 128 tokens")
    with expected as caught, explained(8, 128):
        torch.empty(1 << 60)  # really more than there is
    assert "--batch-size 4" in str(caught.value.hint)
    assert caught.value.exit_code == 2
    assert not is_out_of_memory(ValueError("other"))


@pytest.mark.parametrize(
    ("batch_size", "num_ranks", "said"),
    [(3, 1, "does not divide the 8 rows"), ("auto", 3, "cannot be shared evenly by 3 ranks")],
)
def test_rows_that_cannot_be_cut_evenly_are_refused(
    batch_size: int | str, num_ranks: int, said: str
):
    ranks = Ranks(rank=0, world_size=num_ranks, parallel="ddp")
    with pytest.raises(ConfigError, match=said):
        take_share(8, batch_size, ranks=ranks, context_length=128, device=CPU)


def test_micro_batches_change_nothing_but_rounding(store: Path, tmp_path: Path):
    losses = []
    for batch_size in (1, 8):
        settings = tiny(store, tmp_path / str(batch_size), max_steps=3, batch_size=batch_size)
        found = train_model(settings).evaluation
        assert found is not None
        losses.append(found.loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
