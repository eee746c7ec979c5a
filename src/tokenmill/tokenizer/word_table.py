"""A table of words and their counts in arrays, filled by code that numba compiles.

Nine of ten words in a text have at most 8 bytes. They are their own key, filled up with 0xFF, which
UTF-8 never holds: a slot is a key and a count, so that one look at the memory suffices.
A longer word has a slot of half a hash and its number, and by its number its place in an arena, and
its count. At most 3 of 4 slots are used. No lock is held while texts are counted.
"""

# ruff: noqa: PLR0913, PLR0917  (compiled code takes its arrays one by one)
# pyright: reportCallIssue=false
# (an intrinsic has a first parameter that is not passed)

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from tokenmill.tokenizer.word_counts import WordCounts

_FIRST_SLOTS = 1 << 14
_FIRST_BYTES = 1 << 16
_BREAK = 0xFF
SHORT = 8
_NUM_SHORT, _NUM_LONG, _NUM_BYTES, PLACE, NUM_PIECES = range(5)  # the numbers in `state`
_NO_KEY = np.uint64(0xFFFFFFFFFFFFFFFF)
_TAG = np.uint64(0xFFFFFFFF00000000)
_WORD = np.uint64(0x00000000FFFFFFFF)
_BASIS = np.uint64(0xCBF29CE484222325)
_FACTOR = np.uint64(0x9FB21C651E98DF25)
_HALF = np.uint64(32)
_BEYOND = np.array([_NO_KEY << np.uint64(8 * n) for n in range(8)] + [0], dtype=np.uint64)
"""By the length of a word, all ones where a load of 8 bytes reads more than the word."""
PADDING = bytes([_BREAK]) * 8
"""What must follow data, since 8 bytes are read at a time."""
_ONE = np.uint64(1)

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
Arrays = tuple[NDArray[np.uint64], NDArray[np.uint64], Numbers, Numbers, Bytes, Numbers]


class WordTable:
    """Words and counts; grows as it needs to."""

    def __init__(self) -> None:
        self._short = _empty_short(_FIRST_SLOTS)
        self._slots = np.zeros(_FIRST_SLOTS, dtype=np.uint64)
        self._starts = np.zeros(_FIRST_SLOTS, dtype=np.int64)
        self._counts = np.zeros(_FIRST_SLOTS, dtype=np.int64)
        self._arena = np.full(_FIRST_BYTES, _BREAK, dtype=np.uint8)
        self.state = np.zeros(5, dtype=np.int64)

    @property
    def num_words(self) -> int:
        """How many distinct words there are."""
        return int(self.state[_NUM_SHORT] + self.state[_NUM_LONG])

    @property
    def memory(self) -> int:
        """Bytes of memory that the table takes."""
        return sum(array.nbytes for array in self.arrays()[:-1])

    def add(self, words: WordCounts) -> None:
        """Add up words that were counted elsewhere."""
        data = np.frombuffer(words.data + PADDING, dtype=np.uint8)
        self.state[PLACE] = first = 0
        while first < len(words.lengths):
            first = _add_words(data, words.lengths, words.counts, first, self.arrays())
            if first < len(words.lengths):
                self.make_room()

    def take(self) -> WordCounts:
        """Return the words, and forget them; the memory is given back."""
        num_long, num_bytes = (int(self.state[i]) for i in (_NUM_LONG, _NUM_BYTES))
        is_used = self._short[:, 0] != _NO_KEY
        keys, counts = self._short[is_used, 0], self._short[is_used, 1].view(np.int64)
        letters = keys.astype("<u8").view(np.uint8).reshape(-1, SHORT)
        is_text = letters != _BREAK
        long_lengths = np.diff(self._starts[: num_long + 1])
        words = WordCounts(
            data=letters[is_text].tobytes() + self._arena[:num_bytes].tobytes(),
            lengths=np.concatenate([is_text.sum(axis=1), long_lengths]).astype(np.uint32),
            counts=np.concatenate([counts, self._counts[:num_long]]),
        )
        self.__init__()
        return words

    def arrays(self) -> Arrays:
        """Return what compiled code works on; `make_room` replaces it."""
        return self._short, self._slots, self._starts, self._counts, self._arena, self.state

    def make_room(self) -> None:
        """Double what is full, or nearly so."""
        if not _has_room(len(self._short), self.state[_NUM_SHORT]):
            larger = _empty_short(2 * len(self._short))
            _move_short(self._short, larger)
            self._short = larger
        elif not _has_room(len(self._slots), self.state[_NUM_LONG]):
            number = len(self._slots)
            self._slots = np.zeros(2 * number, dtype=np.uint64)
            _fill_slots(self._slots, self._starts, self._arena, self.state[_NUM_LONG])
            self._starts = np.concatenate([self._starts, np.zeros(number, dtype=np.int64)])
            self._counts = np.concatenate([self._counts, np.zeros(number, dtype=np.int64)])
        else:
            self._arena = np.concatenate([self._arena, np.zeros_like(self._arena)])


def _empty_short(num_slots: int) -> NDArray[np.uint64]:
    return np.full((num_slots, 2), _NO_KEY)


@njit(cache=True, nogil=True)
def _has_room(num_slots: int, num_used: int) -> bool:
    return 4 * (num_used + 1) < 3 * num_slots


@intrinsic
def _load(typing_context: Any, data: Any, i: Any) -> Any:
    """Read 8 bytes at `i` as one number, whatever its alignment."""
    del typing_context

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        number = builder.load(builder.bitcast(place, ir.IntType(64).as_pointer()))
        number.align = 1
        return number

    return types.uint64(data, i), generate


@njit(cache=True, nogil=True)
def _spread(key: np.uint64) -> np.uint64:
    h = key * _FACTOR
    return h ^ (h >> _HALF)


@njit(cache=True, nogil=True)
def _hash(data: Bytes, start: int, stop: int) -> np.uint64:
    h = _BASIS
    while start + SHORT <= stop:
        h = _spread(h ^ _load(data, start))
        start += SHORT
    return _spread(h ^ (_load(data, start) | _BEYOND[stop - start]))


@njit(cache=True, nogil=True)
def _move_short(old: NDArray[np.uint64], new: NDArray[np.uint64]) -> None:
    mask = np.uint64(len(new) - 1)
    for i in range(len(old)):
        if old[i, 0] != _NO_KEY:
            at = _spread(old[i, 0]) & mask
            while new[at, 0] != _NO_KEY:
                at = (at + _ONE) & mask
            new[at, 0], new[at, 1] = old[i, 0], old[i, 1]


@njit(cache=True, nogil=True)
def _fill_slots(slots: NDArray[np.uint64], starts: Numbers, arena: Bytes, num_words: int) -> None:
    mask = np.uint64(len(slots) - 1)
    for word in range(num_words):
        h = _hash(arena, starts[word], starts[word + 1])
        at = h & mask
        while slots[at] != 0:
            at = (at + _ONE) & mask
        slots[at] = (h & _TAG) | np.uint64(word + 1)


@njit(cache=True, nogil=True)
def add_short(
    data: Bytes, start: int, stop: int, count: int, short: NDArray[np.uint64], state: Numbers
) -> bool:
    """Add to the count of a word of at most 8 bytes; tell whether there was room for it."""
    key = _load(data, start) | _BEYOND[stop - start]
    mask = np.uint64(len(short) - 1)
    at = _spread(key) & mask
    while short[at, 0] != key:
        if short[at, 0] == _NO_KEY:
            if not _has_room(len(short), state[_NUM_SHORT]):
                return False
            short[at, 0], short[at, 1] = key, np.uint64(0)
            state[_NUM_SHORT] += 1
            break
        at = (at + _ONE) & mask
    short[at, 1] += np.uint64(count)
    return True


@njit(cache=True, nogil=True)
def add_long(
    data: Bytes,
    start: int,
    stop: int,
    count: int,
    slots: NDArray[np.uint64],
    starts: Numbers,
    counts: Numbers,
    arena: Bytes,
    state: Numbers,
) -> bool:
    """Add to the count of a longer word; tell whether there was room for it."""
    h = _hash(data, start, stop)
    mask = np.uint64(len(slots) - 1)
    at = h & mask
    size = stop - start
    while slots[at] != 0:
        if (slots[at] ^ h) & _TAG == 0:
            word = np.int64(slots[at] & _WORD) - 1
            first = starts[word]
            i = 0
            if starts[word + 1] - first == size:
                while i < size and arena[first + i] == data[start + i]:
                    i += 1
                if i == size:
                    counts[word] += count
                    return True
        at = (at + _ONE) & mask
    word, first = state[_NUM_LONG], state[_NUM_BYTES]
    if first + size + SHORT > len(arena) or not _has_room(len(slots), word):
        return False
    for i in range(size):
        arena[first + i] = data[start + i]
    slots[at] = (h & _TAG) | np.uint64(word + 1)
    starts[word + 1] = first + size
    counts[word] = count
    state[_NUM_LONG] = word + 1
    state[_NUM_BYTES] = first + size
    return True


@njit(cache=True, nogil=True)
def _add_words(
    data: Bytes, lengths: NDArray[np.uint32], word_counts: Numbers, first: int, table: Arrays
) -> int:
    """Add words from number `first` on; return the number of the first that found no room."""
    short, slots, starts, counts, arena, state = table
    start = state[PLACE]
    for word in range(first, len(lengths)):
        stop, count = start + np.int64(lengths[word]), word_counts[word]
        if stop - start <= SHORT:
            done = add_short(data, start, stop, count, short, state)
        else:
            done = add_long(data, start, stop, count, slots, starts, counts, arena, state)
        if not done:
            state[PLACE] = start
            return word
        start = stop
    return len(lengths)


@njit(cache=True, nogil=True)
def gather(data: Bytes, firsts: Numbers, lengths: NDArray[np.uint32]) -> Bytes:
    """Return stretches of data, one after the other."""
    target = 0
    for word in range(len(firsts)):
        target += lengths[word]
    moved = np.empty(target, dtype=np.uint8)
    target = 0
    for word in range(len(firsts)):
        for i in range(firsts[word], firsts[word] + lengths[word]):
            moved[target] = data[i]
            target += 1
    return moved


@njit(cache=True, nogil=True)
def weigh_words(data: Bytes, lengths: Numbers, factors: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Do what `WordCounts.hashes` does."""
    hashes = np.empty(len(lengths), dtype=np.uint32)
    place = 0
    for word in range(len(lengths)):
        total = np.uint64(0)
        for i in range(lengths[word]):
            total += (np.uint64(data[place]) + _ONE) * factors[i % len(factors)]
            place += 1
        hashes[word] = total >> _HALF
    return hashes
