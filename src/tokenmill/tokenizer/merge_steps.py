"""One merge after the other, compiled by numba; `merge_loop` tells how it works."""

# ruff: noqa: PLR0913, PLR0917  (compiled code takes its arrays one by one)
# pyright: reportReturnType=false
# (in compiled code, numbers are the machine's)

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

BLOCK_BITS = 8  # the places of a block share an entry in the table of runs
USED_PLACES, NUM_PAIRS, HEAP_SIZE, NUM_SYMBOLS, NUM_STEPS, WANTED_PLACES, THRESHOLD = range(7)
"""What the numbers in `state` are."""

Numbers = NDArray[np.int64]
Symbols = NDArray[Any]
"""Of 16 bits, or of 32 where there are many."""


class Words(NamedTuple):
    """The words in their places."""

    symbols: Symbols
    letters: NDArray[np.uint8]
    """The byte at each place, of which tokens are made."""
    run_starts: NDArray[np.int64]
    """Where words of a lower count begin; the last one is behind the end."""
    run_counts: NDArray[np.int64]
    run_of_block: NDArray[np.int32]
    sizes: NDArray[np.int32]
    """How many bytes each symbol has."""
    examples: NDArray[np.int64]
    """A place where each symbol began once."""


class Pairs(NamedTuple):
    """All pairs that may be merged yet, in the order in which they came, and a heap of them."""

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    counts: NDArray[np.int64]
    """Upper bounds; 0 for a pair that is gone."""
    starts: NDArray[np.int64]
    nums: NDArray[np.int32]
    """Where the places of each pair are, and how many."""
    heap: NDArray[np.int32]


@njit(cache=True, nogil=True)
def merge(
    words: Words,
    pairs: Pairs,
    places: NDArray[np.int32],
    state: Numbers,
    neighbours: tuple[Numbers, Numbers, Numbers],
    steps: Numbers,
    by_bytes: bool,
) -> None:
    """Make as many merges as `steps` has room for; fewer if pairs or room run out."""
    threshold = state[THRESHOLD]
    state[NUM_STEPS] = 0
    state[WANTED_PLACES] = 0
    while state[NUM_STEPS] < len(steps) and state[HEAP_SIZE]:
        top = pairs.heap[0]
        kept, count = _keep_living(words, pairs, places, top)
        pairs.nums[top] = kept
        is_right = count == pairs.counts[top]
        if is_right:
            new_pairs = 2 * min(kept, state[NUM_SYMBOLS])
            is_tight = state[NUM_PAIRS] + new_pairs > len(pairs.left)
            if is_tight or state[USED_PLACES] + 2 * kept > len(places):
                state[WANTED_PLACES] = 2 * kept
                return
        pairs.counts[top] = 0 if is_right or count < threshold else count
        if pairs.counts[top] == 0:
            state[HEAP_SIZE] -= 1
            pairs.heap[0] = pairs.heap[state[HEAP_SIZE]]
        _sink(0, state[HEAP_SIZE], words, pairs, by_bytes)
        if is_right:
            step = steps[state[NUM_STEPS]]
            step[0], step[1], step[2] = pairs.left[top], pairs.right[top], count
            state[NUM_STEPS] += 1
            first = state[NUM_PAIRS]
            _join(words, pairs, places, top, state[NUM_SYMBOLS])
            _find_pairs(words, pairs, places, top, state, neighbours)
            state[NUM_SYMBOLS] += 1
            for pair in range(first, state[NUM_PAIRS]):
                pairs.heap[state[HEAP_SIZE]] = pair
                state[HEAP_SIZE] += 1
                _rise(state[HEAP_SIZE] - 1, words, pairs, by_bytes)


@njit(cache=True, nogil=True)
def _join(words: Words, pairs: Pairs, places: NDArray[np.int32], pair: int, new: int) -> None:
    """Join a pair into the symbol `new` from left to right; keep the places where that is done."""
    symbols, sizes = words.symbols, words.sizes
    end = symbols[0]
    left, right, start = pairs.left[pair], pairs.right[pair], pairs.starts[pair]
    left_size, size = sizes[left], sizes[left] + sizes[right]
    sizes[new] = size
    words.examples[new] = places[start]
    kept = 0
    for i in range(start, start + pairs.nums[pair]):
        place = places[i]
        if symbols[place] == left and symbols[place + left_size] == right:  # may overlap the last
            symbols[place + left_size] = end
            symbols[place] = new
            symbols[place + size - 1] = new
            places[start + kept] = place
            kept += 1
    pairs.nums[pair] = kept


@njit(cache=True, nogil=True)
def _find_pairs(
    words: Words,
    pairs: Pairs,
    places: NDArray[np.int32],
    joined: int,
    state: Numbers,
    neighbours: tuple[Numbers, Numbers, Numbers],
) -> None:
    """Make the pairs of the newest symbol, which was put wherever the pair `joined` was.

    Neighbours are counted by their symbol, those on the left at 0 and those on the right at 1; then
    their pairs get room for their places, and the places are put there.
    """
    symbols, _, run_starts, run_counts, run_of_block, sizes, _ = words
    nums, counts, touched = neighbours
    end, new = symbols[0], state[NUM_SYMBOLS]
    size, start = sizes[new], pairs.starts[joined]
    num_touched = 0
    for i in range(start, start + pairs.nums[joined]):
        place = places[i]
        weight = _weight(place, run_starts, run_counts, run_of_block)
        for side in range(2):
            symbol = symbols[place + size] if side else symbols[place - 1]
            # where two new symbols meet, the pair is counted once, by the left one
            if symbol != end and (side or symbol != new):
                if nums[side, symbol] == 0:
                    touched[num_touched] = 2 * symbol + side
                    num_touched += 1
                nums[side, symbol] += 1
                counts[side, symbol] += weight
    first = state[USED_PLACES]
    for key in touched[:num_touched]:
        symbol, side = key >> 1, key & 1
        number = nums[side, symbol]
        nums[side, symbol] = -1
        if counts[side, symbol] >= state[THRESHOLD]:
            pair = state[NUM_PAIRS]
            pairs.left[pair], pairs.right[pair] = (new, symbol) if side else (symbol, new)
            pairs.counts[pair] = counts[side, symbol]
            pairs.starts[pair], pairs.nums[pair] = first, number
            state[NUM_PAIRS] += 1
            nums[side, symbol] = first
            first += number
    state[USED_PLACES] = first
    for i in range(start, start + pairs.nums[joined]):
        place = places[i]
        left, right = symbols[place - 1], symbols[place + size]
        if left != end and left != new and nums[0, left] >= 0:  # noqa: PLR1714
            places[nums[0, left]] = place - sizes[left]
            nums[0, left] += 1
        if right != end and nums[1, right] >= 0:
            places[nums[1, right]] = place
            nums[1, right] += 1
    for key in touched[:num_touched]:
        nums[key & 1, key >> 1] = 0
        counts[key & 1, key >> 1] = 0


@njit(cache=True, nogil=True)
def _keep_living(
    words: Words, pairs: Pairs, places: NDArray[np.int32], pair: int
) -> tuple[int, int]:
    """Drop the places of a pair that no longer hold it; return how many stay, and their count."""
    symbols, _, run_starts, run_counts, run_of_block, sizes, _ = words
    left, right = pairs.left[pair], pairs.right[pair]
    size, start = sizes[left], pairs.starts[pair]
    kept, count = 0, 0
    for i in range(start, start + pairs.nums[pair]):
        place = places[i]
        if symbols[place] == left and symbols[place + size] == right:
            places[start + kept] = place
            kept += 1
            count += _weight(place, run_starts, run_counts, run_of_block)
    return kept, count


@njit(cache=True, nogil=True)
def _weight(
    place: int, run_starts: Numbers, run_counts: Numbers, run_of_block: NDArray[np.int32]
) -> int:
    run = run_of_block[place >> BLOCK_BITS]
    while run_starts[run + 1] <= place:
        run += 1
    return run_counts[run]


@njit(cache=True, nogil=True)
def make_heap(words: Words, pairs: Pairs, state: Numbers, by_bytes: bool) -> None:
    """Put all pairs into the heap anew."""
    size = 0
    for pair in range(state[NUM_PAIRS]):
        if pairs.counts[pair]:
            pairs.heap[size] = pair
            size += 1
    for at in range(size // 2 - 1, -1, -1):
        _sink(at, size, words, pairs, by_bytes)
    state[HEAP_SIZE] = size


@njit(cache=True, nogil=True)
def _sink(at: int, size: int, words: Words, pairs: Pairs, by_bytes: bool) -> None:
    """Move the pair at a place of the heap down to where it belongs."""
    heap = pairs.heap
    pair = heap[at]
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _goes_first(heap[child + 1], heap[child], words, pairs, by_bytes):
            child += 1
        if not _goes_first(heap[child], pair, words, pairs, by_bytes):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = pair


@njit(cache=True, nogil=True)
def _rise(at: int, words: Words, pairs: Pairs, by_bytes: bool) -> None:
    heap = pairs.heap
    pair = heap[at]
    while at and _goes_first(pair, heap[(at - 1) // 2], words, pairs, by_bytes):
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = pair


@njit(cache=True, nogil=True)
def _goes_first(a: int, b: int, words: Words, pairs: Pairs, by_bytes: bool) -> bool:
    """Tell whether pair `a` is to be merged before pair `b`."""
    counts, left, right = pairs.counts, pairs.left, pairs.right
    if counts[a] != counts[b]:
        return counts[a] > counts[b]
    if not by_bytes:
        return left[a] < left[b] or (left[a] == left[b] and right[a] < right[b])
    letters, sizes, examples = words.letters, words.sizes, words.examples
    if left[a] != left[b]:
        return _compare(left[a], left[b], letters, sizes, examples) > 0
    return _compare(right[a], right[b], letters, sizes, examples) > 0


@njit(cache=True, nogil=True)
def _compare(
    a: int, b: int, letters: NDArray[np.uint8], sizes: NDArray[np.int32], examples: Numbers
) -> int:
    """Return a number above, below or equal to 0 as the bytes of symbol `a` are to those of `b`."""
    first, second = examples[a], examples[b]
    for i in range(min(sizes[a], sizes[b])):
        difference = np.int64(letters[first + i]) - np.int64(letters[second + i])
        if difference:
            return difference
    return np.int64(sizes[a]) - np.int64(sizes[b])
