"""Word counts on disk: segments of words and counts, each belonging to one part of all words.

    lengths   <u4 for each word
    counts    <i8 for each word
    bytes     the words, one after the other

Words are shared out among `NUM_PARTS` parts by a hash of their bytes, so that the counts of a
word meet in one place and every part can be added up by itself, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenmill.errors import DamageError
from tokenmill.files import OutputFile
from tokenmill.tokenizer import WordCounts

NUM_PARTS = 16
_FACTORS = np.random.PCG64(seed=0).random_raw(256) | np.uint64(1)
"""Odd numbers without a pattern, one for each place in a word."""


class Segment(msgspec.Struct, frozen=True):
    """Where the words of one part are in a file."""

    part: int
    offset: int
    num_words: int
    num_bytes: int
    checksum: str

    @property
    def size(self) -> int:
        """Bytes of the segment in the file."""
        return 12 * self.num_words + self.num_bytes


def write_parts(file: OutputFile, words: WordCounts) -> list[Segment]:
    """Append words to a file, a segment for each part that has any."""
    parts = word_hashes(words) % NUM_PARTS
    return [
        write_segment(file, select(words, parts == part), part)
        for part in np.unique(parts).tolist()
    ]


def write_segment(file: OutputFile, words: WordCounts, part: int) -> Segment:
    """Append words of one part to a file."""
    offset = file.num_bytes
    data = b"".join(
        [words.lengths.astype("<u4").tobytes(), words.counts.astype("<i8").tobytes(), words.data]
    )
    file.write(data)
    checksum = xxhash.xxh3_128_hexdigest(data)
    return Segment(part, offset, len(words.counts), len(words.data), checksum)


def read_segment(path: Path, segment: Segment) -> WordCounts:
    """Read words back; `DamageError` if they are not what was written."""
    try:
        with path.open("rb") as file:
            file.seek(segment.offset)
            data = file.read(segment.size)
    except FileNotFoundError:
        data = b""
    if xxhash.xxh3_128_hexdigest(data) != segment.checksum:
        raise DamageError(
            f"{path}: word counts at byte {segment.offset:,} are not what was written",
            hint="remove the file and run the same command again",
        )
    n = segment.num_words
    return WordCounts(
        lengths=np.frombuffer(data, dtype="<u4", count=n),
        counts=np.frombuffer(data, dtype="<i8", count=n, offset=4 * n),
        data=data[12 * n :],
    )


def select(words: WordCounts, chosen: NDArray[np.bool_]) -> WordCounts:
    """Return the words where `chosen` is true."""
    if chosen.all():
        return words
    is_byte = np.repeat(chosen, words.lengths)
    return WordCounts(
        data=np.frombuffer(words.data, dtype=np.uint8)[is_byte].tobytes(),
        lengths=words.lengths[chosen],
        counts=words.counts[chosen],
    )


def word_hashes(words: WordCounts) -> NDArray[np.uint32]:
    """Return a hash of each word's bytes, the same in every process."""
    lengths = words.lengths.astype(np.int64)
    if not len(lengths):
        return np.empty(0, dtype=np.uint32)
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(words.data)) - np.repeat(starts, lengths)
    data = np.frombuffer(words.data, dtype=np.uint8) + np.uint64(1)
    return (np.add.reduceat(data * _FACTORS[place % len(_FACTORS)], starts) >> 32).astype(np.uint32)


def add_up(tables: Iterable[WordCounts], *, share: int, num_shares: int) -> WordCounts:
    """Add the counts of equal words, of one share of all words."""
    total: dict[bytes, int] = {}
    get = total.get
    for table in tables:
        words = table
        if num_shares > 1:
            words = select(table, word_hashes(table) // NUM_PARTS % num_shares == share)
        data, start = words.data, 0
        for length, count in zip(words.lengths.tolist(), words.counts.tolist(), strict=True):
            word = data[start : start + length]
            start += length
            total[word] = get(word, 0) + count
    return WordCounts.of(total)
