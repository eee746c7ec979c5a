"""Find where documents end, from memory for the shards that are asked for most.

A look-up in a document table on disk takes about seven microseconds, one in memory one, and a third
of that when all tables of a split are in memory. Tables can be larger than memory, so one is kept
only once the look-ups in it took as long as reading it takes: no order of reading then costs much
more than twice what the best choice of tables would.
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
"""Memory for ends in one process, however many stores are read: 8 million documents."""

_LOOKUPS_TO_KEEP: Final = 1 / 500
"""Look-ups, for each document in a table, that take as long as reading the table."""
_ROWS_AT_ONCE: Final = 1 << 16


class DocumentEnds:
    """The ends of the documents of a split; those of documents without tokens are left out."""

    def __init__(self, split: Split, shard_tokens: int) -> None:
        self._split = split
        self._shard_tokens = shard_tokens
        self._num_lookups: dict[int, int] = {}
        self._kept: dict[int, memoryview] = {}  # the ends in a shard, in order
        self._all: NDArray[np.int64] | None = None  # the ends in all shards, once they are kept

    def __reduce__(self) -> tuple[Any, ...]:
        return DocumentEnds, (self._split, self._shard_tokens)

    @property
    def num_kept_bytes(self) -> int:
        """Memory that the tables take."""
        return sum(ends.nbytes for ends in tuple(self._kept.values()))

    def breaks(
        self, starts: NDArray[np.int64], length: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where documents begin in windows, as rows and columns in order of both.

        The first column is not among them.
        """
        if self._all is not None:
            return _search(self._all, starts, length=length)
        counts: list[int] = []
        columns: list[int] = []
        kept, shard_tokens, last = self._kept, self._shard_tokens, length - 1
        for start in starts.tolist():
            shard, first = divmod(start, shard_tokens)
            ends = kept.get(shard)
            if ends is None or first + last > shard_tokens:
                found = self._look_up(start, start + last)
            else:
                low = bisect_right(ends, start)
                high = bisect_right(ends, start + last, low, min(low + last, len(ends)))
                found = ends[low:high]
            columns += [end - start for end in found]
            counts.append(len(found))
        rows = np.repeat(np.arange(len(counts)), counts)
        return rows, np.array(columns, dtype=np.int64)

    def forget(self, shard: int) -> None:
        """Let go of a table; when all are in one piece of memory, let go of that."""
        if self._all is None:
            self._kept.pop(shard, None)
        else:
            self._kept, self._all = {}, None

    def _look_up(self, start: int, stop: int) -> list[int]:
        """Return the ends in (start, stop] from the tables on disk; next time they may be kept."""
        shard = start // self._shard_tokens
        num_documents = self._split.table(shard).num_rows
        num_lookups = self._num_lookups[shard] = self._num_lookups.get(shard, 0) + 1
        if shard not in self._kept and num_lookups > num_documents * _LOOKUPS_TO_KEEP:
            self._num_lookups[shard] = 0
            if num_documents * np.dtype(np.int64).itemsize <= MAX_KEPT_BYTES:
                self._keep(shard)
        return list(dict.fromkeys(self._split.document_ends(start, stop).tolist()))

    def _keep(self, shard: int) -> None:
        self._kept[shard] = self._load(shard).data
        _make_room(self, shard)
        kept = dict(self._kept)
        if len(kept) == self._split.num_shards:
            tables = [np.asarray(kept[number]) for number in range(len(kept))]
            self._all = np.concatenate(tables)
            stops = np.cumsum([len(table) for table in tables]).tolist()
            starts = [0, *stops]
            self._kept = {i: self._all[starts[i] : stop].data for i, stop in enumerate(stops)}

    def _load(self, shard: int) -> NDArray[np.int64]:
        table, before = self._split.table(shard), shard * self._shard_tokens
        ends = np.empty(table.num_rows, dtype=np.int64)
        for first in range(0, table.num_rows, _ROWS_AT_ONCE):
            stop = min(first + _ROWS_AT_ONCE, table.num_rows)
            ends[first:stop] = table.rows(first, stop)["end"]
        distinct = np.diff(ends, prepend=before) > 0
        return ends if distinct.all() else ends[distinct]


def _search(
    ends: NDArray[np.int64], starts: NDArray[np.int64], *, length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the breaks of all windows at once."""
    firsts = ends.searchsorted(starts, side="right")
    counts = ends.searchsorted(starts + (length - 1), side="right") - firsts
    rows = np.repeat(np.arange(len(starts)), counts)
    # The n-th break of all is the n-th of the ends, less those that lie before and between windows.
    skipped = firsts - np.cumsum(counts) + counts
    return rows, ends[np.arange(len(rows)) + skipped[rows]] - starts[rows]


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
            found.forget(oldest)


def _num_kept_bytes() -> int:
    owners = {id(owner): owner for reference, _ in tuple(_kept) if (owner := reference())}
    return sum(owner.num_kept_bytes for owner in owners.values())
