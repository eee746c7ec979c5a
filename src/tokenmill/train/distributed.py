"""One process or many: the ranks of a run as torchrun starts them, and what they do together.

    torchrun --nproc-per-node 8 -m tokenmill train store --parallel fsdp

Every rank gets its part of each global batch. Losses are sums that are divided by the number of
labels of all ranks, so that how rows are shared between ranks changes nothing but rounding.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from tokenmill.errors import ConfigError

Parallel = Literal["none", "ddp", "fsdp"]
TIMEOUT = timedelta(minutes=30)
"""How long ranks wait for each other: tokenizing, or writing a large checkpoint, takes a while."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """Which of how many processes this one is, and how they share the work."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    parallel: Parallel = "none"

    @property
    def is_first(self) -> bool:
        """Whether this rank writes files and shows progress."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Add a tensor up over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def largest(self, number: int) -> int:
        """Return the largest of the numbers that the ranks give: all must take the same turns."""
        if self.world_size == 1:
            return number
        found = torch.tensor(number)  # on the host: no waiting for the device
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return int(found)

    def any(self, flag: bool) -> bool:
        """Tell whether any rank says yes."""
        return bool(self.largest(int(flag)))

    def smallest(self, number: int) -> int:
        """Return the smallest of the numbers that the ranks give."""
        return -self.largest(-number)

    def wait(self) -> None:
        """Wait until all ranks are here."""
        self.any(False)


def find_ranks(parallel: Literal["auto", "none", "ddp", "fsdp"]) -> Ranks:
    """Read what torchrun says in the environment; without it there is one rank."""
    try:
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        rank = int(os.environ.get("RANK", "0"))
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    except ValueError as error:
        raise ConfigError(
            f"RANK, WORLD_SIZE and LOCAL_RANK must be numbers: {error}", hint="start with torchrun"
        ) from error
    if not 0 <= rank < world_size:
        raise ConfigError(f"RANK is {rank}, expected 0 to {world_size - 1}")
    if world_size == 1:
        return Ranks()
    if parallel == "none":
        raise ConfigError(
            f"parallel is 'none', but torchrun started {world_size} ranks",
            hint="give --parallel ddp or fsdp, or start one process",
        )
    chosen: Parallel = "ddp" if parallel == "auto" else parallel
    return Ranks(rank=rank, world_size=world_size, local_rank=local_rank, parallel=chosen)


@contextmanager
def joined(ranks: Ranks, device: torch.device) -> Generator[None]:
    """Connect the ranks for the block: gloo between hosts, NCCL between GPUs."""
    if ranks.world_size == 1:
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield
    finally:
        dist.destroy_process_group()


def spread(model: nn.Module, ranks: Ranks, *, blocks: list[nn.Module]) -> nn.Module:
    """Return the model as the ranks hold it: whole on each (DDP), or cut into shards (FSDP2)."""
    if ranks.parallel == "ddp":
        return DistributedDataParallel(
            model,
            broadcast_buffers=False,  # nothing in them changes
            gradient_as_bucket_view=True,
        )
    if ranks.parallel == "fsdp":
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError as error:
            raise ConfigError(
                f"torch {torch.__version__} has no FSDP2", hint="install torch 2.6 or newer"
            ) from error
        for block in blocks:
            fully_shard(block)
        fully_shard(model)
    return model


@contextmanager
def accumulating(model: nn.Module, *, is_last: bool) -> Generator[None]:
    """Let gradients of all but the last micro-batch stay on their rank."""
    quiet: Any = nullcontext()
    if isinstance(model, DistributedDataParallel) and not is_last:
        quiet = model.no_sync()
    elif hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(is_last)  # pyright: ignore[reportCallIssue]
    with quiet:
        yield


def put_back(model: nn.Module) -> None:
    """Let each rank hold only its shards again, after a pass without gradients."""
    if hasattr(model, "reshard"):
        model.reshard()  # pyright: ignore[reportCallIssue]


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor that may be cut over ranks as a whole; every rank must call it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
