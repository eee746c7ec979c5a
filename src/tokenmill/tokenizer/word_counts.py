"""Tables of words and counts, as columns: choose, sort and add them up.

Where a function takes `compiled`, it does the same in code that numba compiles, if that is wanted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

_FACTORS = np.random.PCG64(seed=0).random_raw(256) | np.uint64(1)
"""Odd numbers without a pattern, one for each place in a word."""


@cache
def can_compile() -> bool:
    """Tell whether numba is there and works, which makes training several times as fast."""
    try:
        from tokenmill.tokenizer.fast_words import FastWordCounter
        from tokenmill.tokenizer.merge_loop import find_merges

        return bool(FastWordCounter and find_merges)
    except (ImportError, RuntimeError) as error:  # RuntimeError: no folder to keep the code in
        logger.info("training with numpy alone, since numba does not serve: %s", error)
        return False


@dataclass(frozen=True, kw_only=True)
class WordCounts:
    """Distinct words and how often each occurs, as three columns."""

    data: bytes
    """The bytes of the words, one after the other."""
    lengths: NDArray[np.uint32]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, words: dict[bytes, int]) -> WordCounts:
        """Put a mapping into columns."""
        return cls(
            data=b"".join(words),
            lengths=np.fromiter(map(len, words), dtype=np.uint32, count=len(words)),
            counts=np.fromiter(words.values(), dtype=np.int64, count=len(words)),
        )

    def select(self, chosen: NDArray[np.bool_]) -> WordCounts:
        """Return the words where `chosen` is true."""
        if chosen.all():
            return self
        is_byte = np.repeat(chosen, self.lengths)
        return WordCounts(
            data=np.frombuffer(self.data, dtype=np.uint8)[is_byte].tobytes(),
            lengths=self.lengths[chosen],
            counts=self.counts[chosen],
        )

    def in_order(self, order: NDArray[np.int64], *, compiled: bool) -> WordCounts:
        """Return the words in another order."""
        data = np.frombuffer(self.data, dtype=np.uint8)
        lengths = self.lengths[order]
        firsts = (np.cumsum(self.lengths, dtype=np.int64) - self.lengths)[order]
        if compiled:
            from tokenmill.tokenizer.word_table import gather

            moved = gather(data, firsts, lengths)
        else:
            moves = firsts - (np.cumsum(lengths, dtype=np.int64) - lengths)
            moved = data[np.repeat(moves, lengths) + np.arange(len(data))]
        return WordCounts(data=moved.tobytes(), lengths=lengths, counts=self.counts[order])

    def hashes(self, *, compiled: bool) -> NDArray[np.uint32]:
        """Return a hash of each word's bytes, the same in every process."""
        lengths = self.lengths.astype(np.int64)
        if not len(lengths):
            return np.empty(0, dtype=np.uint32)
        data = np.frombuffer(self.data, dtype=np.uint8)
        if compiled:
            from tokenmill.tokenizer.word_table import weigh_words

            return weigh_words(data, lengths, _FACTORS)
        starts = np.cumsum(lengths) - lengths
        place = np.arange(len(data)) - np.repeat(starts, lengths)
        weighed = (data + np.uint64(1)) * _FACTORS[place % len(_FACTORS)]
        return (np.add.reduceat(weighed, starts) >> 32).astype(np.uint32)


def add_up(tables: Iterable[WordCounts], *, compiled: bool) -> WordCounts:
    """Add the counts of equal words."""
    if compiled:
        from tokenmill.tokenizer.word_table import WordTable

        table = WordTable()
        for words in tables:
            table.add(words)
        return table.take()
    total: dict[bytes, int] = {}
    get = total.get
    for words in tables:
        data, start = words.data, 0
        for length, count in zip(words.lengths.tolist(), words.counts.tolist(), strict=True):
            word = data[start : start + length]
            start += length
            total[word] = get(word, 0) + count
    return WordCounts.of(total)
