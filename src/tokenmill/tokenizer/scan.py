r"""Finds where words end, for the known patterns: compiled by numba, one character at a time.

Each scanner does what its regular expression does from one place on: the alternatives are tried in
their order, runs take all they can, and what little backtracking there is stands in the comments.
None looks behind, so words are found one after the other.

Texts are UTF-8, each followed by the byte 0xFF, which UTF-8 never holds. Characters are known by
their class (`character_classes`). Those that Python's table of Unicode does not know may have been
assigned since, and the encoders may know them: there a scanner answers `UNSURE`, and the word
is left to an encoder.
"""

# ruff: noqa: PLR0911, PLR2004  (alternatives return, and the bytes of UTF-8 are what they are)
# pyright: reportReturnType=false
# (in compiled code, numbers are the machine's)

from __future__ import annotations

import unicodedata
from functools import cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tokenmill.tokenizer.patterns import CL100K, GPT2, NANOCHAT, O200K, QWEN2, TEKKEN

LETTER, NUMBER, SPACE = 1, 2, 4
UPPER, LOWER = 8, 16
"""o200k's two sets: letters that begin a word, letters that go on; many, and marks, are in both."""
UNKNOWN, END = 32, 64
UNSURE = -1

Bytes = NDArray[np.uint8]

_NOT_SIGN = LETTER | NUMBER | SPACE | UNKNOWN | END
_NUM_CODE_POINTS = 0x110000
_ASSIGNED_PLANES = (range(0x40000), range(0xE0000, 0xE1000))
_QUOTE, _BLANK, _LF, _CR, _SLASH = 0x27, 0x20, 0x0A, 0x0D, 0x2F
_D, _E, _L, _M, _R, _S, _T, _V = b"delmrstv"
_LONG_S = 0xC5, 0xBF

FAMILY_GPT2, FAMILY_CL100K, FAMILY_O200K = 0, 1, 2
FAMILIES = {
    GPT2: (FAMILY_GPT2, 0, False),
    CL100K: (FAMILY_CL100K, 3, True),
    QWEN2: (FAMILY_CL100K, 1, True),
    NANOCHAT: (FAMILY_CL100K, 2, True),
    O200K: (FAMILY_O200K, 3, True),
    TEKKEN: (FAMILY_O200K, 1, False),
}
"""Which scanner serves a pattern, how many digits a word has, and whether contractions exist."""


@cache
def character_classes() -> NDArray[np.uint8]:
    """Return the classes of every code point, as bits."""
    table = np.zeros(_NUM_CODE_POINTS, dtype=np.uint8)
    table[0x40000:0xE0000] = table[0xE1000:0xF0000] = UNKNOWN
    bits = {"Lu": 9, "Lt": 9, "Ll": 17, "Lm": 25, "Lo": 25, "Mn": 24, "Mc": 24, "Me": 24}
    bits |= {"Nd": NUMBER, "Nl": NUMBER, "No": NUMBER, "Cn": UNKNOWN}
    for plane in _ASSIGNED_PLANES:
        categories = map(unicodedata.category, map(chr, plane))
        known = np.fromiter((bits.get(c, 0) for c in categories), dtype=np.uint8, count=len(plane))
        table[plane.start : plane.stop] = known
    spaces = [c for c in range(0x3001) if chr(c).isspace() and not 0x1C <= c <= 0x1F]
    table[spaces] = SPACE  # the four separators of ASCII are no white space to Unicode
    return table


@njit(cache=True, nogil=True)
def _class_at(data: Bytes, i: int, classes: Bytes) -> tuple[int, int]:
    """Return the classes of the character at `i`, and its bytes."""
    byte = data[i]
    if byte < 0x80:
        return classes[byte], 1
    if byte < 0xE0:
        return classes[(np.uint32(byte) & 0x1F) << 6 | (data[i + 1] & 0x3F)], 2
    if byte < 0xF0:
        middle = (np.uint32(data[i + 1]) & 0x3F) << 6
        return classes[(np.uint32(byte) & 0x0F) << 12 | middle | (data[i + 2] & 0x3F)], 3
    if byte == 0xFF:
        return np.uint8(END), 1
    high = (np.uint32(byte) & 0x07) << 18 | (np.uint32(data[i + 1]) & 0x3F) << 12
    return classes[high | (np.uint32(data[i + 2]) & 0x3F) << 6 | (data[i + 3] & 0x3F)], 4


@njit(cache=True, nogil=True)
def _run_end(data: Bytes, i: int, classes: Bytes, wanted: int) -> int:
    """Return where a run of characters with any of the `wanted` classes ends."""
    while True:
        kind, size = _class_at(data, i, classes)
        if not kind & wanted:
            return UNSURE if kind & UNKNOWN else i
        i += size


@njit(cache=True, nogil=True)
def _signs_end(data: Bytes, i: int, classes: Bytes) -> int:
    """Return where a run of neither letters, numbers nor white space ends."""
    while True:
        kind, size = _class_at(data, i, classes)
        if kind & _NOT_SIGN:
            return UNSURE if kind & UNKNOWN else i
        i += size


@njit(cache=True, nogil=True)
def _digits_end(data: Bytes, i: int, classes: Bytes, max_digits: int) -> int:
    for _ in range(max_digits):
        kind, size = _class_at(data, i, classes)
        if not kind & NUMBER:
            return UNSURE if kind & UNKNOWN else i
        i += size
    return i


@njit(cache=True, nogil=True)
def _contraction_end(data: Bytes, i: int, any_case: bool) -> int:
    """Return where 's, 't, 're, 've, 'm, 'll or 'd ends whose quote is at `i`; `i` if none is."""
    fold = np.uint8(0x20 if any_case else 0)
    first = data[i + 1] | fold
    if first in (_S, _T, _M, _D):
        return i + 2
    if first in (_R, _V, _L):
        second = data[i + 2] | fold
        if second == (_L if first == _L else _E):
            return i + 3
    if any_case and data[i + 1] == _LONG_S[0] and data[i + 2] == _LONG_S[1]:
        return UNSURE  # without regard to case, the long s is an s
    return i


@njit(cache=True, nogil=True)
def _blanks_end(data: Bytes, i: int, classes: Bytes, newlines_end: bool) -> int:
    r"""Match white space: `\s*[\r\n]+` if `newlines_end`, then `\s+(?!\S)`, then `\s+`."""
    last, after_newline, j = i, i, i
    while True:
        kind, size = _class_at(data, j, classes)
        if kind & UNKNOWN:
            return UNSURE
        if not kind & SPACE:
            break
        last = j
        j += size
        if data[last] == _LF or data[last] == _CR:
            after_newline = j
    if newlines_end and after_newline > i:
        return after_newline
    if kind & END or last == i:
        return j
    return last  # the last one goes with what follows


@njit(cache=True, nogil=True)
def gpt2_end(data: Bytes, i: int, classes: Bytes) -> int:
    """Return where the word at `i` ends by GPT-2's pattern."""
    if data[i] == _QUOTE:
        end = _contraction_end(data, i, False)
        if end > i:
            return end
    start = i + 1 if data[i] == _BLANK else i
    kind, _ = _class_at(data, start, classes)
    if kind & LETTER:
        return _run_end(data, start, classes, LETTER)
    if kind & NUMBER:
        return _run_end(data, start, classes, NUMBER)
    if kind & UNKNOWN:
        return UNSURE
    if kind & (SPACE | END):
        return _blanks_end(data, i, classes, False)
    return _signs_end(data, start, classes)


@njit(cache=True, nogil=True)
def cl100k_end(data: Bytes, i: int, classes: Bytes, max_digits: int) -> int:
    """Return where the word at `i` ends by cl100k's pattern, with `max_digits` in a number."""
    kind, size = _class_at(data, i, classes)
    if kind & LETTER:
        return _run_end(data, i, classes, LETTER)
    if kind & NUMBER:
        return _digits_end(data, i, classes, max_digits)
    if kind & UNKNOWN:
        return UNSURE
    if data[i] == _QUOTE:
        end = _contraction_end(data, i, True)
        if end != i:
            return end
    after, _ = _class_at(data, i + size, classes)
    if after & UNKNOWN:
        return UNSURE
    if data[i] != _LF and data[i] != _CR and after & LETTER:
        return _run_end(data, i + size, classes, LETTER)
    return _other_end(data, i, classes, False)


@njit(cache=True, nogil=True)
def _other_end(data: Bytes, i: int, classes: Bytes, slashes: bool) -> int:
    r"""Match ` ?[^\s\p{L}\p{N}]+[\r\n]*`, also slashes at the end if `slashes`, or white space."""
    start = i + 1 if data[i] == _BLANK else i
    kind, _ = _class_at(data, start, classes)
    if kind & UNKNOWN:
        return UNSURE
    if kind & _NOT_SIGN:
        return _blanks_end(data, i, classes, True)
    end = _signs_end(data, start, classes)
    if end != UNSURE:
        while data[end] == _LF or data[end] == _CR or (slashes and data[end] == _SLASH):
            end += 1
    return end


@njit(cache=True, nogil=True)
def _cased_end(data: Bytes, i: int, classes: Bytes) -> tuple[int, int]:
    """Match upper* lower+ at `i`; return (end, end of upper+), each `i` where there is none.

    Upper* takes all it can. If no lower follows, it gives back down to the last one that is lower
    too, which is then all that lower+ finds.
    """
    j, last_both = i, i
    while True:
        kind, size = _class_at(data, j, classes)
        if not kind & UPPER:
            break
        j += size
        if kind & LOWER:
            last_both = j
    if kind & UNKNOWN:
        return UNSURE, UNSURE
    if kind & LOWER:
        end = _run_end(data, j, classes, LOWER)
        return end, j
    return last_both, j


@njit(cache=True, nogil=True)
def _with_contraction(data: Bytes, end: int, contractions: bool) -> int:
    if contractions and end != UNSURE and data[end] == _QUOTE:
        return _contraction_end(data, end, True)
    return end


@njit(cache=True, nogil=True)
def o200k_end(data: Bytes, i: int, classes: Bytes, max_digits: int, contractions: bool) -> int:
    """Return where the word at `i` ends by o200k's pattern."""
    kind, size = _class_at(data, i, classes)
    if kind & UNKNOWN:
        return UNSURE
    if kind & NUMBER:
        return _digits_end(data, i, classes, max_digits)
    inner_end, inner_upper, inner = i, i, i
    if not kind & LETTER and data[i] != _LF and data[i] != _CR:
        inner = i + size
        inner_end, inner_upper = _cased_end(data, inner, classes)
        if inner_end == UNSURE:
            return UNSURE
        if inner_end > inner:
            return _with_contraction(data, inner_end, contractions)
    if kind & (UPPER | LOWER):
        end, upper_end = _cased_end(data, i, classes)
        if end == UNSURE or end > i:
            return _with_contraction(data, end, contractions)
        if inner_upper > inner:
            return _with_contraction(data, inner_upper, contractions)
        return _with_contraction(data, upper_end, contractions)
    if inner_upper > inner:
        return _with_contraction(data, inner_upper, contractions)
    return _other_end(data, i, classes, True)
