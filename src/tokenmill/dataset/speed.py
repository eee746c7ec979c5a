"""Measure how fast a loader delivers, as a consumer sees it that does nothing else."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tokenmill.dataset.batch import Batch
from tokenmill.dataset.loader import Loader
from tokenmill.dataset.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderSpeed:
    """One measurement."""

    packing: str
    num_threads: int
    with_masks: bool
    """Whether each batch came with the dense mask of its documents, of seq_len * seq_len a row."""
    tokens_per_second: float
    num_steps: int
    seconds: float


def measure_loader(
    plan: Plan, *, num_threads: int, with_masks: bool, seconds: float = 1.0
) -> LoaderSpeed:
    """Draw batches for a while and return the rate.

    The first batches are not counted. Blocks of a store are proved when they are first read, so
    that a store of which little was read yet costs more than one of which all was.
    """
    transform = _add_mask if with_masks else None
    with Loader(plan, num_threads=num_threads, transform=transform) as loader:
        _draw(loader, seconds / 5)
        before = loader.next_step
        begin = time.perf_counter()
        _draw(loader, seconds)
        elapsed = time.perf_counter() - begin
        num_steps = loader.next_step - before
    return LoaderSpeed(
        packing=plan.packing,
        num_threads=num_threads,
        with_masks=with_masks,
        tokens_per_second=num_steps * plan.batch_size * plan.seq_len / elapsed,
        num_steps=num_steps,
        seconds=elapsed,
    )


def _draw(loader: Loader, seconds: float) -> None:
    """Draw at least two batches."""
    stop = time.perf_counter() + seconds
    next(loader)
    next(loader)
    while time.perf_counter() < stop:
        next(loader)


def _add_mask(batch: Batch, *, step: int, first_row: int) -> Batch:
    del step, first_row
    batch["document_mask"] = batch.document_mask
    return batch
