"""Documents too long to be held as a string: kept as bytes, decoded piece by piece.

A Python string takes up to four bytes for each character, beside the bytes that it came from. Half
a gigabyte of text in many scripts would need two; kept as bytes it needs what it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

PIECE_BYTES = 1 << 20
_CONTINUATION, _CONTINUATION_BITS = 0b1000_0000, 0b1100_0000
_SURROGATE_PAIR_BYTES = 12
# From where an escape cannot be under way: whole characters and escapes, pairs of surrogates kept.
_WHOLE_ESCAPES = re.compile(
    rb"""(?: [^\\]++
        | \\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
        | \\u(?![dD][89abAB])[0-9a-fA-F]{4}
        | \\[^u]
    )*+""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class LongText:
    """The text of one document, proven to be valid; `pieces` may be read any number of times."""

    data: memoryview
    is_json: bool
    """Whether `data` is the inside of a JSON string instead of UTF-8 text."""

    def pieces(self) -> Iterator[str]:
        """Yield the text in pieces of about a mebibyte."""
        return _json_pieces(self.data) if self.is_json else _utf8_pieces(self.data)


def _utf8_pieces(data: memoryview) -> Iterator[str]:
    start = 0
    while start < len(data):
        stop = _character_start(data, min(start + PIECE_BYTES, len(data)))
        yield _decode(data, start, stop)
        start = stop


def _json_pieces(data: memoryview) -> Iterator[str]:
    start = 0
    while start < len(data):
        stop = min(start + PIECE_BYTES, len(data))
        if stop < len(data):
            stop = _character_start(data, stop)
            if b"\\" in bytes(data[max(stop - _SURROGATE_PAIR_BYTES, start) : stop]):
                found = _WHOLE_ESCAPES.match(data[start:stop])
                stop = start + (found.end() if found else 0)
        if stop == start:  # not an escape that JSON knows: let the decoder say so
            stop = len(data)
        yield msgspec.json.decode(b'"%b"' % data[start:stop], type=str)
        start = stop


def _character_start(data: memoryview, stop: int) -> int:
    """Return `stop`, or a little less so that no character is cut."""
    for back in range(4):
        if stop == len(data) or data[stop - back] & _CONTINUATION_BITS != _CONTINUATION:
            return stop - back
    return stop  # not UTF-8: decoding says so


def _decode(data: memoryview, start: int, stop: int) -> str:
    try:
        return str(data[start:stop], "utf-8")
    except UnicodeDecodeError as error:
        error.start, error.end = start + error.start, start + error.end
        raise
