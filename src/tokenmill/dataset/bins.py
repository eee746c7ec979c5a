"""Best-fit decreasing: place items into as few bins as a greedy rule can."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def best_fit_decreasing(
    lengths: NDArray[np.int64], capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the items in the order in which they are placed, and the bin of each.

    The longest come first, equal ones in the order given; each goes into the fullest bin that has
    room for it, or else into a new one. Bins count from 0. Lengths are 1 to `capacity`.

    >>> order, bins = best_fit_decreasing(np.array([2, 7, 3, 3]), 10)
    >>> order.tolist(), bins.tolist()
    ([1, 2, 3, 0], [0, 0, 1, 1])
    """
    order = np.argsort(-lengths, kind="stable")
    if not len(order):
        return order, order
    runs, _ = _place(np.bincount(lengths), capacity)
    firsts, num_bins, per_bin = np.array(runs, dtype=np.int64).T
    num_items = num_bins * per_bin
    numbers = np.arange(len(order)) - np.repeat(np.cumsum(num_items) - num_items, num_items)
    return order, np.repeat(firsts, num_items) + numbers // np.repeat(per_bin, num_items)


def count_bins(lengths: NDArray[np.int64], capacity: int) -> int:
    """Return how many bins `best_fit_decreasing` uses, in less time."""
    return _place(np.bincount(lengths), capacity)[1]


def _place(counts: NDArray[np.int64], capacity: int) -> tuple[list[tuple[int, int, int]], int]:
    """Place `counts[n]` items of length n, the longest first; return runs and the number of bins.

    A run (first bin, number of bins, items for each of them) says where the next items go. Items of
    one length and bins with the same room are handled together, so that the time grows with the
    number of different lengths rather than with that of items.
    """
    runs: list[tuple[int, int, int]] = []
    # Ranges of bins (first, number) by the room in each of them, and which of the lists have any,
    # as the bits of one number.
    ranges: list[list[tuple[int, int]]] = [[] for _ in range(capacity + 1)]
    have_room = num_bins = 0
    lengths: list[int] = np.flatnonzero(counts)[::-1].tolist()
    for length in lengths:
        left = int(counts[length])
        while left:
            fitting = have_room >> length
            if fitting:
                room = length + (fitting & -fitting).bit_length() - 1
                first, available = ranges[room].pop()
                if not ranges[room]:
                    have_room ^= 1 << room
            else:
                room, first = capacity, num_bins
                available = -(-left // (capacity // length))
                num_bins += available
            # The fullest bin with room is the fullest still after an item went into it: each bin
            # takes as many as it has room for before the next one does.
            per_bin = room // length
            full = min(available, left // per_bin)
            parts = [(full, per_bin)] if full else []
            left -= full * per_bin
            if left and full < available:
                parts.append((1, left))
                left = 0
            for number, items in parts:
                runs.append((first, number, items))
                rest = room - items * length
                if rest:
                    ranges[rest].append((first, number))
                    have_room |= 1 << rest
                first += number
                available -= number
            if available:
                ranges[room].append((first, available))
                have_room |= 1 << room
    return runs, num_bins
