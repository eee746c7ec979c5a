"""Memory for batches that is used again once an earlier batch is gone.

Fresh memory costs more than all else that is done to a batch, since the system clears every page of
it when it is first touched.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_ALIGNMENT: Final = 64
_MAX_SIZES: Final = 4
_MAX_FREE: Final = 16
_MAX_FREE_BYTES: Final = 64 << 20
_KEPT_LAYOUTS: Final = 64

Piece = NDArray[np.uint8]


class BufferPool:
    """Lends arrays; their memory comes back by itself when the last view of them is gone.

    Threads may share a pool. It keeps free pieces of four sizes, up to 16 or 64 MiB of each.
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[Piece]] = {}
        self._lent: dict[int, weakref.ref[Piece]] = {}

    def empty(self, shape: tuple[int, ...], *dtypes: np.dtype[Any]) -> list[NDArray[Any]]:
        """Return arrays of one shape and these types that hold anything, in one piece of memory."""
        starts, size = _lay_out(math.prod(shape), dtypes)
        whole = self._lend(size)
        return [
            np.ndarray(shape, dtype, whole, start)
            for dtype, start in zip(dtypes, starts, strict=True)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return BufferPool, ()

    def _lend(self, size: int) -> Piece:
        free = self._free.get(size)
        if free is None:
            free = self._add_size(size)
        try:
            piece = free.pop()
        except IndexError:
            piece = np.empty(size, dtype=np.uint8)
        # The views refer to the array at the end of the chain of arrays. The memoryview ends the
        # chain at `lent`: so that is what they keep alive, and its end is the end of the last view.
        lent = np.frombuffer(piece.data, dtype=np.uint8)
        key, all_lent = id(piece), self._lent

        def take_back(_: weakref.ref[Piece]) -> None:
            all_lent.pop(key, None)
            free.append(piece)

        all_lent[key] = weakref.ref(lent, take_back)
        return lent

    def _add_size(self, size: int) -> deque[Piece]:
        while len(self._free) >= _MAX_SIZES:
            self._free.pop(next(iter(self._free)), None)
        kept = min(_MAX_FREE, _MAX_FREE_BYTES // max(size, 1))
        return self._free.setdefault(size, deque(maxlen=kept))


@lru_cache(maxsize=_KEPT_LAYOUTS)
def _lay_out(num_items: int, dtypes: tuple[np.dtype[Any], ...]) -> tuple[list[int], int]:
    """Return where arrays begin in one piece of memory, and its size."""
    starts: list[int] = []
    size = 0
    for dtype in dtypes:
        starts.append(size)
        size += -(-num_items * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
    return starts, size
