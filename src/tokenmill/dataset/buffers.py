"""Memory for batches that is used again once an earlier batch is gone.

Fresh memory costs more than all else that is done to a batch, since the system clears every page of
it when it is first touched.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

_ALIGNMENT: Final = 64
_MAX_SIZES: Final = 4
_MAX_FREE: Final = 16
_MAX_FREE_BYTES: Final = 64 << 20


class BufferPool:
    """Lends arrays; their memory comes back by itself when the last view of them is gone.

    Threads may share a pool. It keeps free pieces of four sizes, up to 16 or 64 MiB of each.
    """

    def __init__(self) -> None:
        self._free: dict[int, deque[NDArray[np.uint8]]] = {}

    def empty(self, shape: tuple[int, ...], *dtypes: DTypeLike) -> list[NDArray[Any]]:
        """Return arrays of one shape and these types that hold anything, in one piece of memory."""
        num_items = math.prod(shape)
        starts: list[int] = []
        size = 0
        for dtype in dtypes:
            starts.append(size)
            size += -(-num_items * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
        whole = self._lend(size)
        return [
            np.ndarray(shape, dtype=dtype, buffer=whole, offset=start)
            for dtype, start in zip(dtypes, starts, strict=True)
        ]

    def __reduce__(self) -> tuple[Any, ...]:
        return BufferPool, ()

    def _lend(self, size: int) -> NDArray[np.uint8]:
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
        weakref.finalize(lent, free.append, piece).atexit = False
        return lent

    def _add_size(self, size: int) -> deque[NDArray[np.uint8]]:
        while len(self._free) >= _MAX_SIZES:
            self._free.pop(next(iter(self._free)), None)
        kept = min(_MAX_FREE, _MAX_FREE_BYTES // max(size, 1))
        return self._free.setdefault(size, deque(maxlen=kept))
