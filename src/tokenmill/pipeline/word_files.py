"""Word counts on disk: segments of words and counts, each belonging to one part of all words.

    lengths   <u4 for each word
    counts    <i8 for each word
    bytes     the words, one after the other

Words are shared out among `NUM_PARTS` parts by a hash of their bytes, so that the counts of a
word meet in one place and every part can be added up by itself, in bounded memory.

These files are not synced to the disk: there are many, and they are gone when the run ends. A run
that continues checks what it finds instead (`are_whole`).
"""

from __future__ import annotations

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


def write_parts(file: OutputFile, words: WordCounts, *, compiled: bool) -> list[Segment]:
    """Append words to a file, a segment for each part that has any."""
    parts = words.hashes(compiled=compiled) % NUM_PARTS
    words = words.in_order(np.argsort(parts, kind="stable"), compiled=compiled)
    segments: list[Segment] = []
    first = first_byte = 0
    for part, number in enumerate(np.bincount(parts, minlength=NUM_PARTS).tolist()):
        if number:
            lengths = words.lengths[first : first + number]
            stop = first_byte + int(lengths.sum(dtype=np.int64))
            counts = words.counts[first : first + number]
            of_part = WordCounts(data=words.data[first_byte:stop], lengths=lengths, counts=counts)
            segments.append(write_segment(file, of_part, part))
            first, first_byte = first + number, stop
    return segments


def write_segment(file: OutputFile, words: WordCounts, part: int) -> Segment:
    """Append words of one part to a file."""
    offset = file.num_bytes
    checksum = xxhash.xxh3_128()
    lengths, counts = words.lengths.astype("<u4").tobytes(), words.counts.astype("<i8").tobytes()
    for data in (lengths, counts, words.data):
        file.write(data)
        checksum.update(data)
    return Segment(part, offset, len(words.counts), len(words.data), checksum.hexdigest())


def are_whole(path: Path, segments: list[Segment]) -> bool:
    """Tell whether a file still holds what was written; a power loss may have cut it."""
    try:
        return all(read_segment(path, segment) for segment in segments)
    except DamageError:
        return False


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
