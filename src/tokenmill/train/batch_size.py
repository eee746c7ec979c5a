"""How many rows go through the model at once: found by trying, and what to say if they do not fit.

It decides speed and memory only. The rows of a global batch go through in micro-batches of one
size, whose gradients add up to the same sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from tokenmill.errors import ConfigError
from tokenmill.files import atomic_write
from tokenmill.train.distributed import Ranks

FILE_NAME: Final = "batch_size.json"
MAX_TOKENS: Final = 65_536
"""More tokens at once were not faster on any GPU that was measured."""
MAX_HOST_TOKENS: Final = 16_384
MEMORY_SHARE: Final = 0.9
"""What may be in use of the memory of a device: other processes and fragments need some."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """What of a global batch goes through one device."""

    rows: int
    """Rows of a rank in a global batch."""
    context_length: int
    ranks: Ranks
    device: torch.device

    def sizes(self, most: int) -> list[int]:
        """Return the numbers of rows at once that cut the share evenly, up to `most`, in order."""
        return [size for size in divisors(self.rows) if size <= most]


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What was found earlier, and where it holds."""

    device: str
    world_size: int
    rows: int
    context_length: int
    batch_size: int


def take_share(batch_rows: int, batch_size: int | str, *, ranks: Ranks, **place: Any) -> Share:
    """Return what a rank has of a global batch, after checking that it can be cut evenly."""
    if batch_rows % ranks.world_size:
        raise ConfigError(
            f"a global batch of {batch_rows:,} rows cannot be shared evenly by "
            f"{ranks.world_size} ranks",
            hint="choose another batch_tokens, or another number of ranks",
        )
    share = Share(rows=batch_rows // ranks.world_size, ranks=ranks, **place)
    if isinstance(batch_size, int) and share.rows % min(batch_size, share.rows):
        fitting = ", ".join(map(str, share.sizes(batch_size)))
        raise ConfigError(
            f"batch_size is {batch_size}, which does not divide the {share.rows:,} rows that a "
            "rank has in a global batch",
            hint=f"choose one of {fitting}, or auto",
        )
    return share


def choose_batch_size(
    share: Share, batch_size: int | str, *, attempt: Callable[[int], int], out_dir: Path
) -> int:
    """Return how many rows go through at once; all ranks must call it.

    Auto tries on a GPU, and remembers. On the host nothing can be tried, since the system ends a
    process that asks for too much: there it is a fixed number of tokens.
    """
    if isinstance(batch_size, int):
        return min(batch_size, share.rows)
    is_gpu = share.device.type == "cuda"
    most = (MAX_TOKENS if is_gpu else MAX_HOST_TOKENS) // share.context_length
    sizes = share.sizes(max(most, 1))
    if not is_gpu:
        return sizes[-1]
    known = _read(out_dir)
    if known is not None and known == _describe(share, known.batch_size):
        found = known.batch_size
    else:
        total = torch.cuda.get_device_properties(share.device).total_memory
        found = largest_fitting(share.ranks, sizes, attempt=attempt, memory_bytes=total)
        torch.cuda.empty_cache()
    if share.ranks.is_first:
        with atomic_write(out_dir / FILE_NAME) as file:
            file.write(msgspec.json.encode(_describe(share, found)) + b"\n")
    return share.ranks.smallest(found)


def largest_fitting(
    ranks: Ranks, sizes: list[int], *, attempt: Callable[[int], int], memory_bytes: int
) -> int:
    """Return the largest of the sizes that fits on every rank.

    `attempt` takes a pass of so many rows and returns how many bytes a whole step needs.
    """
    for size in reversed(sizes):
        try:
            fits = attempt(size) <= MEMORY_SHARE * memory_bytes
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        if not ranks.any(not fits):
            return size
    raise ConfigError(
        "the model does not fit on this device, even with one row at once",
        hint="a smaller model or context, --set compute.checkpoint_blocks=true, or more GPUs with "
        "--parallel fsdp",
    )


@contextmanager
def explained(batch_size: int, context_length: int) -> Generator[None]:
    """Turn running out of memory into an error that says what to do."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        smaller = f"--batch-size {max(1, batch_size // 2)}, or --batch-size auto"
        if batch_size == 1:
            smaller = "a smaller model or context, or --set compute.checkpoint_blocks=true"
        raise ConfigError(
            f"out of memory with {batch_size:,} rows of {context_length:,} tokens at once",
            hint=f"{smaller}; the same command then continues from the last checkpoint",
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory ran out, on a device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return "out of memory" in text or "can't allocate memory" in text


def divisors(number: int) -> list[int]:
    """Return the numbers that divide a number, in order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def _describe(share: Share, batch_size: int) -> Remembered:
    return Remembered(
        device=torch.cuda.get_device_name(share.device),
        world_size=share.ranks.world_size,
        rows=share.rows,
        context_length=share.context_length,
        batch_size=batch_size,
    )


def _read(out_dir: Path) -> Remembered | None:
    try:
        return msgspec.json.decode((out_dir / FILE_NAME).read_bytes(), type=Remembered)
    except (OSError, msgspec.DecodeError, ValueError):
        return None  # only a memory: it is found again
