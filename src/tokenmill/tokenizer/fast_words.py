"""Counts the words of texts with compiled scanners: exact, and several times as fast as `words`."""

# ruff: noqa: PLR2004  (the bytes of ASCII are what they are)

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numba import njit

from tokenmill.tokenizer.cuts import CutRule
from tokenmill.tokenizer.scan import (
    FAMILIES,
    FAMILY_CL100K,
    FAMILY_GPT2,
    UNSURE,
    character_classes,
    cl100k_end,
    gpt2_end,
    o200k_end,
)
from tokenmill.tokenizer.word_counts import WordCounts
from tokenmill.tokenizer.word_table import (
    NUM_PIECES,
    PADDING,
    PLACE,
    SHORT,
    Arrays,
    Bytes,
    Numbers,
    WordTable,
    add_long,
    add_short,
)
from tokenmill.tokenizer.words import LONG_CHARS, WordCounter, cut_long

_MAX_PIECES = 1 << 10
_BREAK, _BLANK = 0xFF, 0x20
_SEPARATOR = bytes([_BREAK])


class FastWordCounter:
    """Does what `WordCounter` does, for the patterns that `scan` knows."""

    def __init__(self, pattern: str) -> None:
        self._rule, self._pattern = FAMILIES[pattern], pattern
        self._classes = character_classes()
        self._table = WordTable()
        self._others: WordCounter | None = None

    @property
    def memory(self) -> int:
        """Bytes of memory that the counts take, about."""
        return self._table.memory + (0 if self._others is None else self._others.memory)

    def add(self, texts: list[str]) -> None:
        """Count the words of some texts; long ones are cut where it makes no difference."""
        if any(len(text) > LONG_CHARS for text in texts):
            for text in texts:
                for piece in cut_long(text, CutRule(())):
                    self._add([piece])
        else:
            self._add(texts)

    def take(self) -> WordCounts:
        """Return the counts since the last call, and forget them."""
        if self._others is not None:
            self._table.add(self._others.take())
        return self._table.take()

    def _add(self, texts: list[str]) -> None:
        data = _SEPARATOR.join([text.encode() for text in texts]) + _SEPARATOR + PADDING
        pieces = [data[start:stop].decode() for start, stop in self._count(data)]
        if pieces:
            if self._others is None:
                self._others = WordCounter([self._pattern])
            self._others.add(pieces)

    def _count(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Count words, and yield the stretches that only an encoder can cut."""
        view = np.frombuffer(data, dtype=np.uint8)[: -len(PADDING)]
        pieces = np.zeros(2 * _MAX_PIECES, dtype=np.int64)
        state = self._table.state
        state[PLACE] = 0
        while state[PLACE] < len(view):
            _count_texts(view, self._rule, self._classes, self._table.arrays(), pieces)
            found = pieces[: 2 * int(state[NUM_PIECES])].tolist()
            yield from zip(found[::2], found[1::2], strict=True)
            if state[PLACE] < len(view) and len(found) < len(pieces):
                self._table.make_room()


@njit(cache=True, nogil=True)
def _count_texts(
    data: Bytes, rule: tuple[int, int, bool], classes: Bytes, table: Arrays, pieces: Numbers
) -> None:
    """Count words from state[PLACE] on, until the end, or until there is no room.

    Pieces that only an encoder can cut go into `pieces`, as starts and stops.
    """
    short, slots, starts, counts, arena, state = table
    family, max_digits, contractions = rule
    i = state[PLACE]
    num_pieces = 0
    while i < len(data):
        if data[i] == _BREAK:
            i += 1
            continue
        if family == FAMILY_GPT2:
            end = gpt2_end(data, i, classes)
        elif family == FAMILY_CL100K:
            end = cl100k_end(data, i, classes, max_digits)
        else:
            end = o200k_end(data, i, classes, max_digits, contractions)
        if end == UNSURE:
            if 2 * num_pieces == len(pieces):
                break
            end = _sure_cut(data, i)
            pieces[2 * num_pieces] = i
            pieces[2 * num_pieces + 1] = end
            num_pieces += 1
        elif end - i <= SHORT:
            if not add_short(data, i, end, 1, short, state):
                break
        elif not add_long(data, i, end, 1, slots, starts, counts, arena, state):
            break
        i = end
    state[PLACE] = i
    state[NUM_PIECES] = num_pieces


@njit(cache=True, nogil=True)
def _sure_cut(data: Bytes, i: int) -> int:
    """Return the first place after `i` where any pattern begins a word (see `cuts`)."""
    while True:
        byte = data[i]
        i += 1
        if data[i] == _BREAK:
            return i
        is_letter = 0x61 <= byte | 0x20 <= 0x7A or 0x30 <= byte <= 0x39
        if is_letter and data[i] == _BLANK:
            return i
