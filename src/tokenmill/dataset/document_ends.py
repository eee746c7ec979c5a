"""Find where documents end, from memory for the shards that are asked for most.

A look-up in a document table on disk takes about seven microseconds, one in memory one. All tables
can be larger than memory, so one is kept only once the look-ups in it took as long as reading it
takes: no order of reading then costs much more than twice what the best choice of tables would.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import deque
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokenmill.store import Split

MAX_KEPT_BYTES: Final = 64 << 20
"""Memory for ends in one process, however many stores are read: 16 million documents."""

_LOOKUPS_TO_KEEP: Final = 1 / 500
"""Look-ups, for each document in a table, that take as long as reading the table."""
_ROWS_AT_ONCE: Final = 1 << 16


class DocumentEnds:
    """The ends of the documents of a split; those of documents without tokens are left out."""

    def __init__(self, split: Split, shard_tokens: int) -> None:
        self._split = split
        self._shard_tokens = shard_tokens
        self._dtype = np.dtype(np.uint32 if shard_tokens < 1 << 32 else np.uint64)
        self._num_lookups: dict[int, int] = {}
        self.kept: dict[int, memoryview] = {}
        """By shard: its ends in order, counted from its first token."""

    def __reduce__(self) -> tuple[Any, ...]:
        return DocumentEnds, (self._split, self._shard_tokens)

    def breaks(self, starts: list[int], length: int) -> NDArray[np.int64]:
        """Return where documents begin in windows, as flat places in (len(starts), length).

        The first token of a window is none of them.
        """
        places: list[int] = []
        kept, shard_tokens, last, base = self.kept, self._shard_tokens, length - 1, 0
        for start in starts:
            shard, first = divmod(start, shard_tokens)
            ends = kept.get(shard)
            if ends is None or first + last > shard_tokens:
                shift, found = base - start, self._look_up(start, start + last)
            else:
                low = bisect_right(ends, first)
                high = bisect_right(ends, first + last, low, min(low + last, len(ends)))
                shift, found = base - first, ends[low:high]
            places += [shift + end for end in found]
            base += length
        return np.array(places, dtype=np.int64)

    def _look_up(self, start: int, stop: int) -> list[int]:
        """Return the ends in (start, stop] from the tables on disk; next time they may be kept."""
        shard = start // self._shard_tokens
        num_documents = self._split.table(shard).num_rows
        num_lookups = self._num_lookups[shard] = self._num_lookups.get(shard, 0) + 1
        if shard not in self.kept and num_lookups > num_documents * _LOOKUPS_TO_KEEP:
            self._num_lookups[shard] = 0
            if num_documents * self._dtype.itemsize <= MAX_KEPT_BYTES:
                self.kept[shard] = self._load(shard)
                _make_room(self, shard)
        return list(dict.fromkeys(self._split.document_ends(start, stop).tolist()))

    def _load(self, shard: int) -> memoryview:
        table, start = self._split.table(shard), np.uint64(shard * self._shard_tokens)
        ends = np.empty(table.num_rows, dtype=self._dtype)
        for first in range(0, table.num_rows, _ROWS_AT_ONCE):
            stop = min(first + _ROWS_AT_ONCE, table.num_rows)
            ends[first:stop] = table.rows(first, stop)["end"] - start
        distinct = np.diff(ends, prepend=self._dtype.type(0)) > 0
        return (ends if distinct.all() else ends[distinct]).data


# What is kept in this process, oldest first. Each operation on it is one step of the interpreter.
_kept: deque[tuple[weakref.ref[DocumentEnds], int]] = deque()


def _make_room(owner: DocumentEnds, shard: int) -> None:
    """Enter a table that was just loaded, and let go of the oldest while there are too many."""
    _kept.append((weakref.ref(owner), shard))
    while _kept[0][0]() is None:
        _kept.popleft()
    while len(_kept) > 1 and _num_kept_bytes() > MAX_KEPT_BYTES:
        try:
            reference, oldest = _kept.popleft()
        except IndexError:  # another thread took the last one
            return
        found = reference()
        if found is not None:
            found.kept.pop(oldest, None)


def _num_kept_bytes() -> int:
    total = 0
    for reference, shard in tuple(_kept):
        owner = reference()
        ends = owner.kept.get(shard) if owner is not None else None
        total += ends.nbytes if ends is not None else 0
    return total
