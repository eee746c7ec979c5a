"""`--sample`: which parts of the input are read for a small, representative store.

The input is cut into pieces of about 1 MiB (Parquet row groups, whole compressed files; small files
share a piece). Pieces at equal distances over all of the input are read: as many as are expected to
hold four times the tokens wanted, and no fewer than 256 where that is half a GiB of text or less.
Their documents come in the shuffled order, and the store ends at `max_tokens`. An input of up to
256 pieces is read whole; then the result is that of `--shuffle` and `--max-tokens` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from tokenmill.pipeline.settings import MEBIBYTE
from tokenmill.sources import SourceFile, SourceSettings, Unit, read_unit
from tokenmill.tokenizer import Tokenizer

MIN_PIECES = 256
FEWEST_PIECES = 8
MARGIN = 4
MOST_TEXT_BYTES = 512 * MEBIBYTE
"""Text beyond which pieces are read only for the tokens that are wanted."""
_MOST_PIECES = 1 << 16
_LARGEST_PIECE = 64 * MEBIBYTE
_NUM_PROBES = 16
_PROBE_BYTES = 4 * MEBIBYTE
_TYPICAL_EXPANSION = 3.5  # of compressed text
_TYPICAL_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is read of the input, and how much the wanted tokens need."""

    files: Sequence[SourceFile]
    settings: SourceSettings
    tokenizer: Tokenizer
    max_tokens: int


def choose_piece_bytes(total_bytes: int) -> int:
    """Return the size of the pieces of an input: 1 MiB, more for a very large one.

    >>> [choose_piece_bytes(size) >> 20 for size in (0, 1 << 36, 1 << 40)]
    [1, 1, 16]
    """
    return min(max(total_bytes // _MOST_PIECES, MEBIBYTE), _LARGEST_PIECE)


def sample_units(units: list[Unit], sampling: Sampling) -> list[Unit]:
    """Return the units to read, numbered anew; they depend on the input and the tokens alone."""
    if len(units) <= MIN_PIECES and all(not _compression(unit, sampling) for unit in units):
        return units
    probes = spread(units, _NUM_PROBES)
    found = [_probe(unit, sampling) for unit in probes]
    tokens = sum(tokens for tokens, _ in found) / len(probes)
    text_bytes = sum(num_bytes for _, num_bytes in found) / len(probes)
    needed = -(-MARGIN * sampling.max_tokens // max(int(tokens), 1))
    affordable = min(MIN_PIECES, int(MOST_TEXT_BYTES // max(text_bytes, 1)))
    return spread(units, max(needed, affordable, FEWEST_PIECES))


def spread(units: Sequence[Unit], count: int) -> list[Unit]:
    """Return `count` units at equal distances, or all of them, numbered from zero.

    >>> [unit.spans[0] for unit in spread([Unit(i, (i,)) for i in range(10)], 3)]
    [1, 5, 8]
    """
    total = len(units)
    if count >= total:
        return list(units)
    chosen = (units[(2 * i + 1) * total // (2 * count)] for i in range(count))
    return [msgspec.structs.replace(unit, index=index) for index, unit in enumerate(chosen)]


def _probe(unit: Unit, sampling: Sampling) -> tuple[float, float]:
    """Return about how many tokens and bytes of text a unit holds, reading at most some MiB."""
    settings = replace(sampling.settings, long_bytes=None)
    tokens = num_bytes = 0
    for batch in read_unit(sampling.files, unit, settings):
        num_bytes += batch.num_bytes
        if batch.num_bytes > _PROBE_BYTES:
            tokens += batch.num_bytes // _TYPICAL_TOKEN_BYTES
        elif batch.texts:
            tokens += len(sampling.tokenizer.encode_batch(batch.texts)[0])
        if num_bytes > _PROBE_BYTES:
            break
    stored = sum(sampling.files[span.file].size for span in unit.spans)
    if num_bytes > _PROBE_BYTES and _compression(unit, sampling):
        scale = max(stored * _TYPICAL_EXPANSION / num_bytes, 1.0)
        return tokens * scale, num_bytes * scale
    return tokens, num_bytes


def _compression(unit: Unit, sampling: Sampling) -> bool:
    return any(sampling.files[span.file].compression for span in unit.spans)
