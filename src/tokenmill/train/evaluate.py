"""How good a model is: its mean loss over every token of the validation rows.

    loss            nats for each label, over all labels: sums are added up, never means of batches
    perplexity      e to the loss
    bits per byte   all nats / ln 2 / bytes of the text: the same for every tokenizer

Rows are those of packing concat, one after the other, so every token but the first of the split is
predicted once, from at most T - 1 tokens before it in its row. How many rows go through the model
at a time, and how many ranks share them, changes nothing but rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tokenmill.dataset import IGNORED, Batch
from tokenmill.train.data import Validation
from tokenmill.train.distributed import Ranks

LossSum = Callable[[Batch], Tensor]
"""Returns the summed loss of a batch on the device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What was measured on the validation rows."""

    loss: float
    """Nats per token."""
    bits_per_byte: float | None
    """None where nothing tells the bytes of the text."""
    num_labels: int | None = None

    @property
    def perplexity(self) -> float:
        """As many ids as likely as each other would be as hard to guess."""
        return math.exp(min(self.loss, 700.0))


@torch.no_grad()
def evaluate(
    loss_sum: LossSum,
    validation: Validation,
    *,
    ranks: Ranks,
    device: torch.device,
    batch_size: int,
) -> Evaluation:
    """Return the mean loss over all labels of the validation rows; every rank must call it."""
    losses: list[Tensor] = []
    num_labels = 0
    for batch in _batches(validation, ranks, batch_size=batch_size):
        num_labels += int(np.count_nonzero(batch.labels != IGNORED))
        losses.append(loss_sum(_to_device(batch, device)))
    # Read only now: the device never waited for the host.
    nats = torch.stack(losses).cpu().double().sum()
    totals = ranks.sum(torch.stack([nats, torch.tensor(float(num_labels), dtype=torch.float64)]))
    total, count = totals.tolist()
    num_bytes = validation.num_bytes
    return Evaluation(
        loss=total / max(count, 1),
        num_labels=round(count),
        bits_per_byte=total / math.log(2) / num_bytes if num_bytes else None,
    )


def _batches(validation: Validation, ranks: Ranks, *, batch_size: int) -> Iterator[Batch]:
    """Yield this rank's rows in batches of one shape, as many of them on every rank."""
    share = -(-validation.num_rows // ranks.world_size)
    first = min(ranks.rank * share, validation.num_rows)
    last = min(first + share, validation.num_rows)
    for start in range(first, first + share, batch_size):
        stop = min(start + batch_size, last)
        if start < stop:
            yield _fill_up(validation.read(start, stop), batch_size)
        else:  # nothing is left here, but sharded models need every rank
            yield _blank(_fill_up(validation.read(0, 1), batch_size))


def _fill_up(batch: Batch, num_rows: int) -> Batch:
    """Repeat the last row without its labels: compiled graphs know one shape."""
    missing = num_rows - len(batch.token_ids)
    if not missing:
        return batch
    places = np.minimum(np.arange(num_rows), num_rows - missing - 1)
    filled = Batch({name: array[places] for name, array in batch.items()})
    filled.labels[num_rows - missing :] = IGNORED
    return filled


def _blank(batch: Batch) -> Batch:
    batch.labels[:] = IGNORED
    return batch


def _to_device(batch: Batch, device: torch.device) -> Batch:
    moved = Batch()
    for name, array in batch.items():
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if device.type == "cuda":
            tensor = tensor.pin_memory()
        moved[name] = tensor.to(device, non_blocking=True)
    return moved
