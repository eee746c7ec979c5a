"""The merge loop of training, compiled by numba: the steps of `train_bpe` in less time and memory.

All words stand in one array of symbols, a place for each byte and one after each word. A token's
symbol stands at its first and at its last place, so that both neighbours of a token are found from
its own places and the lengths of symbols. Words are sorted by their counts, so the weight of a
place is found in a table of runs of words that are as frequent.

A pair keeps the places where it came into being, one after the other in a large array. Its count is
an upper bound until it comes to the top of the heap, is counted again, and is merged if the count
was right. Pairs below a threshold, a fraction of the highest count, are passed over: few of them
will ever be merged. When no other pair is left, or no room, all pairs are found anew from
the symbols, those of places that no longer hold them are gone, and the threshold is lower.
"""

# ruff: noqa: PLR0913, PLR0917  (compiled code takes its arrays one by one)
# pyright: reportReturnType=false, reportArgumentType=false
# (in compiled code, numbers are the machine's)

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tokenmill.tokenizer.alphabet import GPT2_BYTE_ORDER
from tokenmill.tokenizer.merge_steps import (
    BLOCK_BITS,
    NUM_PAIRS,
    NUM_STEPS,
    NUM_SYMBOLS,
    THRESHOLD,
    USED_PLACES,
    WANTED_PLACES,
    Numbers,
    Pairs,
    Symbols,
    Words,
    make_heap,
    merge,
)
from tokenmill.tokenizer.word_counts import WordCounts

_NARROW_SYMBOLS = 65_000
_BYTES = 256
_STEPS = 256
_FIRST_PAIRS = 1 << 16
_SPARE = 1 << 12
_TO_BE_FOUND = -2
_THRESHOLD_SHARE = 64


def find_merges(
    words: WordCounts, num_merges: int, *, by_bytes: bool, min_count: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the left and right symbol of each merge, and its count.

    Symbols are numbered in GPT-2's order of bytes, then in the order of merges.

    Args:
        by_bytes: Settle ties by the greatest bytes, not by the lowest numbers.
    """
    if not len(words.counts):
        return
    placed = _put_in_place(words, num_merges)
    num_symbols = _BYTES + num_merges
    neighbours = (
        np.zeros((2, num_symbols), dtype=np.int64),
        np.zeros((2, num_symbols), dtype=np.int64),
        np.zeros(2 * num_symbols, dtype=np.int64),
    )
    state = np.zeros(7, dtype=np.int64)
    state[NUM_SYMBOLS] = _BYTES
    state[THRESHOLD] = np.iinfo(np.int64).max
    steps = np.empty((_STEPS, 3), dtype=np.int64)
    pairs, places = _room_for(_FIRST_PAIRS), np.empty(0, dtype=np.int32)
    num_found = 0
    while num_found < num_merges:
        wanted = min(num_merges - num_found, _STEPS)
        merge(placed, pairs, places, state, neighbours, steps[:wanted], by_bytes)
        done = int(state[NUM_STEPS])
        yield from map(tuple, steps[:done].tolist())
        num_found += done
        if done == wanted:
            continue
        if not state[WANTED_PLACES] and state[THRESHOLD] <= min_count:
            return
        del places  # before the next ones take their room
        pairs, places = _find_all(placed, pairs, state, min_count)
        make_heap(placed, pairs, state, by_bytes)


def _find_all(
    words: Words, pairs: Pairs, state: NDArray[np.int64], min_count: int
) -> tuple[Pairs, NDArray[np.int32]]:
    """Find all pairs anew; lower the threshold, if it was not room alone that was missing."""
    num_places = len(words.symbols)
    buckets = np.zeros(1 << min(max(num_places.bit_length() - 4, 16), 22), dtype=np.int64)
    _fill_buckets(words, buckets)
    if not state[WANTED_PLACES]:
        highest = min(int(buckets.max()), int(state[THRESHOLD]) - 1)
        state[THRESHOLD] = max(highest // _THRESHOLD_SHARE, min_count)
    threshold = int(state[THRESHOLD])
    np.minimum(buckets, threshold, out=buckets)
    buckets += _TO_BE_FOUND - threshold  # less for those below the threshold
    while not _fill_pairs(words, pairs, buckets, state):
        buckets[buckets >= 0] = _TO_BE_FOUND
        pairs = _room_for(2 * len(pairs.left))
    pairs = _with_room(pairs, state)
    used = int(state[USED_PLACES])
    places = np.empty(used + max(used // 2, int(state[WANTED_PLACES])) + _SPARE, dtype=np.int32)
    _fill_places(words, pairs, places, buckets)
    return pairs, places


def _with_room(pairs: Pairs, state: Numbers) -> Pairs:
    """Make sure that at least as many pairs fit in again, and those of the next merge."""
    number = int(state[NUM_PAIRS])
    of_next = min(int(state[WANTED_PLACES]), 2 * int(state[NUM_SYMBOLS]))
    if len(pairs.left) >= number + max(number, of_next):
        return pairs
    larger = _room_for(number + max(2 * number, of_next))
    for old, new in zip(pairs, larger, strict=True):
        new[:number] = old[:number]
    return larger


def _put_in_place(words: WordCounts, num_merges: int) -> Words:
    order = np.argsort(-words.counts, kind="stable")
    counts = words.counts[order]
    num_places = int(words.lengths.sum(dtype=np.int64)) + len(order) + 1
    narrow = _BYTES + num_merges < _NARROW_SYMBOLS
    number = np.empty(_BYTES, dtype=np.uint16 if narrow else np.uint32)
    number[np.frombuffer(GPT2_BYTE_ORDER, dtype=np.uint8)] = np.arange(_BYTES)
    symbols = np.full(num_places, np.iinfo(number.dtype).max, dtype=number.dtype)
    letters = np.zeros(num_places, dtype=np.uint8)
    lengths = words.lengths.astype(np.int64)
    firsts = (np.cumsum(lengths) - lengths)[order]
    data = np.frombuffer(words.data, dtype=np.uint8)
    examples = np.zeros(_BYTES + num_merges, dtype=np.int64)
    _copy_words(data, firsts, lengths[order], number, symbols, letters, examples)
    begins = np.flatnonzero(np.concatenate([[True], counts[1:] != counts[:-1]]))
    starts = np.cumsum(lengths[order] + 1) - lengths[order]
    run_starts = np.append(starts[begins], num_places)
    run_starts[0] = 0
    blocks = np.arange(0, num_places, 1 << BLOCK_BITS)
    return Words(
        symbols=symbols,
        letters=letters,
        run_starts=run_starts,
        run_counts=counts[begins],
        run_of_block=(np.searchsorted(run_starts, blocks, side="right") - 1).astype(np.int32),
        sizes=np.ones(_BYTES + num_merges, dtype=np.int32),
        examples=examples,
    )


def _room_for(num_pairs: int) -> Pairs:
    narrow = (np.empty(num_pairs, dtype=np.int32) for _ in range(4))
    left, right, nums, heap = narrow
    counts, starts = (np.empty(num_pairs, dtype=np.int64) for _ in range(2))
    return Pairs(left=left, right=right, counts=counts, starts=starts, nums=nums, heap=heap)


@njit(cache=True, nogil=True)
def _copy_words(
    data: NDArray[np.uint8],
    firsts: Numbers,
    lengths: Numbers,
    number: Symbols,
    symbols: Symbols,
    letters: NDArray[np.uint8],
    examples: Numbers,
) -> None:
    place = 1
    for word in range(len(firsts)):
        first = firsts[word]
        for i in range(first, first + lengths[word]):
            letters[place] = data[i]
            symbols[place] = number[data[i]]
            examples[number[data[i]]] = place
            place += 1
        place += 1


@njit(cache=True, nogil=True)
def _bucket(left: int, right: int, buckets: Numbers) -> int:
    """Return where a pair is counted; others may be counted there, too."""
    if len(buckets) == _BYTES * _BYTES and left < _BYTES and right < _BYTES:
        return np.int64(left) * _BYTES + right
    h = (np.uint64(left) << np.uint64(32) | np.uint64(right)) * np.uint64(0x9FB21C651E98DF25)
    return np.int64((h >> np.uint64(32)) & np.uint64(len(buckets) - 1))


@njit(cache=True, nogil=True)
def _fill_buckets(words: Words, buckets: Numbers) -> None:
    symbols, _, run_starts, run_counts, _, sizes, _ = words
    end, run, place = symbols[0], 0, 0
    while place < len(symbols) - 1:
        left = symbols[place]
        if left == end:
            place += 1
            while run_starts[run + 1] <= place:
                run += 1
            continue
        place += sizes[left]
        if symbols[place] != end:
            buckets[_bucket(left, symbols[place], buckets)] += run_counts[run]


@njit(cache=True, nogil=True)
def _fill_pairs(words: Words, pairs: Pairs, buckets: Numbers, state: Numbers) -> bool:
    """Count the pairs of buckets to be found, which become chains; tell if there was room."""
    symbols, _, run_starts, run_counts, _, sizes, _ = words
    chain = pairs.heap
    end, run, place, number = symbols[0], 0, 0, 0
    while place < len(symbols) - 1:
        left = symbols[place]
        if left == end:
            place += 1
            while run_starts[run + 1] <= place:
                run += 1
            continue
        place += sizes[left]
        right = symbols[place]
        if right == end:
            continue
        bucket = _bucket(left, right, buckets)
        pair = buckets[bucket]
        if pair < _TO_BE_FOUND:
            continue
        while pair >= 0 and (pairs.left[pair] != left or pairs.right[pair] != right):
            pair = chain[pair]
        if pair < 0:
            if number == len(pairs.left):
                return False
            pair = number
            number += 1
            chain[pair] = buckets[bucket]
            buckets[bucket] = pair
            pairs.left[pair], pairs.right[pair] = left, right
            pairs.counts[pair] = pairs.nums[pair] = 0
        pairs.counts[pair] += run_counts[run]
        pairs.nums[pair] += 1
    used = 0
    for pair in range(number):
        pairs.starts[pair] = used
        if pairs.counts[pair] >= state[THRESHOLD]:
            used += pairs.nums[pair]
        else:
            pairs.counts[pair] = 0
    state[NUM_PAIRS] = number
    state[USED_PLACES] = used
    return True


@njit(cache=True, nogil=True)
def _fill_places(words: Words, pairs: Pairs, places: NDArray[np.int32], buckets: Numbers) -> None:
    """Put the places of pairs where they belong."""
    symbols, sizes, chain = words.symbols, words.sizes, pairs.heap
    end, place = symbols[0], 0
    pairs.nums[:] = 0
    while place < len(symbols) - 1:
        left = symbols[place]
        if left == end:
            place += 1
            continue
        first = place
        place += sizes[left]
        right = symbols[place]
        if right == end:
            continue
        pair = buckets[_bucket(left, right, buckets)]
        while pair >= 0 and (pairs.left[pair] != left or pairs.right[pair] != right):
            pair = chain[pair]
        if pair >= 0 and pairs.counts[pair]:
            places[pairs.starts[pair] + pairs.nums[pair]] = first
            pairs.nums[pair] += 1
