"""Word counts on disk: segments of words and counts, each belonging to one part of all words.

    lengths   <u4 for each word
    counts    <i8 for each word
    bytes     the words, one after the other

Words are shared out among `NUM_PARTS` parts by a checksum of their bytes, so that the counts of a
word meet in one place and every part can be added up by itself, in bounded memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from tokenmill.errors import DamageError
from tokenmill.files import OutputFile
from tokenmill.tokenizer import WordCounts

NUM_PARTS = 16


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
    parts: list[dict[bytes, int]] = [{} for _ in range(NUM_PARTS)]
    for word, count in iterate(words):
        parts[zlib.crc32(word) % NUM_PARTS][word] = count
    return [
        write_segment(file, WordCounts.of(part), number)
        for number, part in enumerate(parts)
        if part
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


def iterate(words: WordCounts) -> Iterator[tuple[bytes, int]]:
    """Yield each word with its count."""
    data, start = words.data, 0
    for length, count in zip(words.lengths.tolist(), words.counts.tolist(), strict=True):
        yield data[start : start + length], count
        start += length


def add_up(tables: Iterable[WordCounts], *, share: int, num_shares: int) -> dict[bytes, int]:
    """Add the counts of equal words, of one share of all words; in the order of the words."""
    total: dict[bytes, int] = {}
    get = total.get
    for table in tables:
        for word, count in iterate(table):
            if num_shares == 1 or zlib.crc32(word) // NUM_PARTS % num_shares == share:
                total[word] = get(word, 0) + count
    return dict(sorted(total.items()))
