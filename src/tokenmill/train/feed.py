"""Bring the batches of a plan to the device: from a loader, or from tokens that are there already.

Both give the same tensors for the same step. Legend: B rows of T tokens.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from tokenmill.dataset import Batch, Loader, Plan, TokenSource
from tokenmill.errors import ConfigError
from tokenmill.train.distributed import Ranks

CHUNK_TOKENS: Final = 16 << 20
RESIDENT_SHARE: Final = 0.25
"""Of the free memory of a device, what tokens may take before they are read from disk instead."""
NEEDED: Final = ("token_ids", "labels")


class Feed(Protocol):
    """Gives the steps of a run in order, each as micro-batches on the device."""

    stall: Stall
    """How long `next_step` has kept the device waiting."""

    def next_step(self) -> list[Batch]:
        """Return the micro-batches of the next step for this rank."""
        ...

    def close(self) -> None:
        """Let go of threads and memory."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FeedOptions:
    """Where batches go and from which step on."""

    device: torch.device
    start_step: int
    batch_size: int
    """Rows in a micro-batch."""
    documents: bool = False
    """Whether document ids and positions are wanted."""


class Stall:
    """Adds up the time in which a device had to wait for batches.

    On CUDA the host is mostly ahead: a batch that is ready before the device has done what was
    queued earlier costs nothing. One that comes later counts whole, which is rather too much.
    """

    def __init__(self, device: torch.device) -> None:
        self.seconds = 0.0
        self._queued = torch.cuda.Event() if device.type == "cuda" else None

    @contextmanager
    def measured(self) -> Generator[None]:
        """Count the time of the block, if the device has run out of work by its end."""
        begin = time.perf_counter()
        if self._queued is not None:
            self._queued.record()
        yield
        if self._queued is None or self._queued.query():
            self.seconds += time.perf_counter() - begin


class LoaderFeed:
    """Batches that a thread makes ahead and copies to the device meanwhile."""

    def __init__(self, plan: Plan, ranks: Ranks, options: FeedOptions) -> None:
        self.batch_size = options.batch_size
        self.stall = Stall(options.device)
        self._loader = Loader(
            plan,
            ranks.rank,
            ranks.world_size,
            start_step=options.start_step,
            output="torch",
            device=None if options.device.type == "cpu" else options.device,
            transform=None if options.documents else without_documents,
        )

    def next_step(self) -> list[Batch]:
        """Return the micro-batches of the next step for this rank."""
        with self.stall.measured():
            batch = next(self._loader)[1]
        return list(cut(batch, self.batch_size))

    def close(self) -> None:
        """Stop the thread."""
        self._loader.close()


class ResidentFeed:
    """Batches gathered from all tokens of the plan, which lie in the memory of the device.

    The plan says which rows; only their numbers go to the device for each step.
    """

    def __init__(self, plan: Plan, ranks: Ranks, options: FeedOptions) -> None:
        device = options.device
        self.plan, self.ranks, self.device = plan, ranks, device
        self.batch_size = options.batch_size
        self.stall = Stall(device)
        self._step = options.start_step
        sources = [plan.opened.tokens(source) for source in plan.all_sources]
        self._firsts = np.cumsum([0, *(source.num_tokens for source in sources)])
        self._wide = any(source.dtype.itemsize > 2 for source in sources)  # noqa: PLR2004
        self._tokens = _load_tokens(sources, device, wide=self._wide)
        self._ends: Tensor | None = None
        if options.documents:
            self._ends = _load_ends(sources, self._firsts.tolist(), device)
        self._places = torch.arange(plan.seq_len + 1, device=device)

    def next_step(self) -> list[Batch]:
        """Return the micro-batches of the next step for this rank."""
        step, ranks = self._step, self.ranks
        with self.stall.measured():
            part = self.plan.rank_part(step, rank=ranks.rank, world_size=ranks.world_size)
            found = self.plan.indices(step, part)
            starts = torch.from_numpy(self._firsts[found.sources] + found.rows * self.plan.seq_len)
            if self.device.type == "cuda":
                starts = starts.pin_memory()
            batch = self._gather(starts.to(self.device, non_blocking=True))
        self._step += 1
        return list(cut(batch, self.batch_size))

    def close(self) -> None:
        """Let go of the tokens."""
        self._tokens = self._tokens.new_empty(0)

    def _gather(self, starts: Tensor) -> Batch:
        places = starts[:, None] + self._places  # (B, T + 1)
        ids = self._tokens[places].to(torch.int64)
        if not self._wide:
            ids = ids & 0xFFFF  # they lie in signed integers: few operations know unsigned ones
        batch = Batch(token_ids=ids[:, :-1].contiguous(), labels=ids[:, 1:].contiguous())
        if self._ends is not None:
            inputs = places[:, :-1].contiguous()
            number = torch.searchsorted(self._ends, inputs, right=True)  # ends before a token
            begin = torch.nn.functional.pad(self._ends, (1, 0))[number]
            batch["document_ids"] = (number - number[:, :1]).to(torch.int32)
            positions = inputs - torch.maximum(begin, starts[:, None])
            batch["position_ids"] = positions.to(torch.int32)
        return batch


def open_feed(
    plan: Plan, ranks: Ranks, options: FeedOptions, *, tokens_on_device: str = "auto"
) -> Feed:
    """Open the feed that suits a plan and a device; `tokens_on_device` is auto, on or off."""
    problem = _no_residence(plan)
    if tokens_on_device == "on":
        if problem:
            raise ConfigError(f"tokens_on_device is on, but {problem}", hint="set it to auto")
        return ResidentFeed(plan, ranks, options)
    if tokens_on_device == "auto" and not problem and _fits(plan, options.device):
        return ResidentFeed(plan, ranks, options)
    return LoaderFeed(plan, ranks, options)


def cut(batch: Batch, num_rows: int) -> Iterator[Batch]:
    """Yield a batch in parts of `num_rows` rows; they are views."""
    for start in range(0, len(batch.token_ids), num_rows):
        yield Batch({name: value[start : start + num_rows] for name, value in batch.items()})


def without_documents(batch: Batch, *, step: int, first_row: int) -> Batch:
    """Drop what only document masks need, so that it is not copied to the device."""
    del step, first_row
    return Batch({name: batch[name] for name in NEEDED})


def _no_residence(plan: Plan) -> str:
    """Return why rows cannot be gathered on the device; nothing if they can."""
    if plan.packing != "concat" or plan.pad_last or plan.mask_boundaries:
        return "only rows of packing concat without padding and masks are gathered there"
    if len({segment.seq_len for segment in plan.timeline.segments}) > 1:
        return "the sequence length of the plan changes"
    return ""


def _fits(plan: Plan, device: torch.device) -> bool:
    if device.type != "cuda":
        return False  # memory of the host: the loader's mapped files are as good
    sources = [plan.opened.tokens(source) for source in plan.all_sources]
    size = max(2, *(source.dtype.itemsize for source in sources))
    free = torch.cuda.mem_get_info(device)[0]
    return sum(source.num_tokens for source in sources) * size < RESIDENT_SHARE * free


def _load_tokens(sources: list[TokenSource], device: torch.device, *, wide: bool) -> Tensor:
    """Return the ids of all sources, one after the other, as signed integers of their size."""
    total = sum(source.num_tokens for source in sources)
    kind = (torch.int32, np.uint32, np.int32) if wide else (torch.int16, np.uint16, np.int16)
    tokens = torch.empty(total, dtype=kind[0], device=device)
    first = 0
    for source in sources:
        for start in range(0, source.num_tokens, CHUNK_TOKENS):
            ids = np.empty(min(CHUNK_TOKENS, source.num_tokens - start), dtype=source.dtype)
            source.read_into(ids, start)
            signed = ids.astype(kind[1], copy=False).view(kind[2])
            tokens[first : first + len(ids)] = torch.from_numpy(signed).to(device)
            first += len(ids)
    return tokens


def _load_ends(sources: list[TokenSource], firsts: list[int], device: torch.device) -> Tensor:
    """Return where documents end, over all sources; those without tokens are left out."""
    parts = [
        np.unique(source.document_ends(0, source.num_documents)) + first
        for source, first in zip(sources, firsts, strict=False)
    ]
    ends = np.concatenate(parts)
    return torch.from_numpy(ends[ends > 0].astype(np.int64)).to(device)
