r"""Counts the words of texts: what training needs of a corpus.

Words are what the patterns of a tokenizer cut text into. Cutting takes most of the time when it is
done by regular expressions, so nearly all of the text is counted by the encoder that tokenmill has
anyway: give it a vocabulary in which each of many known words is a token, and no merges. Then a
known word becomes its id, and counting ids is counting words. Any other word becomes an id for each
of its bytes, and what is left to find is where such a word ends and the next one begins. Between
most pairs of ASCII characters that is certain (see `junctions`); the bytes are put together again.

Where it is not, a piece of the text is left out of the count and cut into words after all: pieces
reach from one safe cut (see `cuts`) to the next. To see the words in the output of an
encoder, they are marked: bytes are written as letters twice, and the second time a space is
put before every word, when no word holds one any more.

What is known is a matter of speed alone: counts are exact from the first text on.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenmill.tokenizer.alphabet import ALPHABET, bytes_to_text, text_to_bytes
from tokenmill.tokenizer.cuts import CutRule, cut_rule
from tokenmill.tokenizer.encoder import Encoder, choose_encoder
from tokenmill.tokenizer.junctions import CUT, SAME, UNSURE, junctions
from tokenmill.tokenizer.patterns import COMPLETE_PATTERNS
from tokenmill.tokenizer.tokenizer_json import (
    Model,
    TokenizerJson,
    byte_level_step,
    split_step,
    write_pre_tokenizer,
)
from tokenmill.tokenizer.word_counts import WordCounts

_LEARN_AFTER = (1 << 18, 1 << 22, 1 << 25)
"""How many bytes of text to see before known words are chosen, first and then again."""
_MAX_KNOWN = 60_000
WORD_MEMORY = 160
"""Bytes that a word and its count take in a table, with room for the table to grow."""
LONG_CHARS = 1 << 22
_MAX_PIECES = 1 << 18
_SPLIT_TEXTS = 1 << 14
_MARK = " "
_NUM_BYTES = 256
_NO_TEXT = 0xFF  # a byte that UTF-8 never holds
_OF_THREAD = threading.local()
"""Holds the counter of each thread, which keeps the words that it has learnt."""


class Counts(Protocol):
    """Counts the words of texts."""

    @property
    def memory(self) -> int:
        """Bytes of memory that the counts take, about."""
        ...

    def add(self, texts: list[str]) -> None:
        """Count the words of some texts."""
        ...

    def take(self) -> WordCounts:
        """Return the counts since the last call, and forget them."""
        ...


def has_fast_counter(pattern: str) -> bool:
    """Tell whether there is a compiled scanner for a pattern."""
    return pattern in COMPLETE_PATTERNS


def make_counter(pattern: str, *, compiled: bool) -> Counts:
    """Return a counter; with compiled scanners, if that is wanted and the pattern has one."""
    if compiled and has_fast_counter(pattern):
        from tokenmill.tokenizer.fast_words import FastWordCounter

        return FastWordCounter(pattern)
    counter = getattr(_OF_THREAD, "counter", None)
    if counter is None or counter.patterns != (pattern,):
        counter = _OF_THREAD.counter = WordCounter([pattern])
    counter.take()  # what a unit that failed may have left
    return counter


class WordCounter:
    """Counts words over many texts; `take` hands over the counts and begins anew."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(patterns)
        self._splitter = _encoder(self.patterns, {}, marked=True)
        # without a proof of safe cuts, every text is cut into words the slow way, as a whole
        self._cuts = cut_rule(self.patterns, ())
        self._known: _KnownWords | None = None
        self._others: Counter[bytes] = Counter()
        self._pieces: Counter[str] = Counter()
        self._num_bytes = 0
        self._learn_after = list(_LEARN_AFTER)

    @property
    def memory(self) -> int:
        """Bytes of memory that the counts take, about."""
        return WORD_MEMORY * (len(self._others) + len(self._pieces))

    def add(self, texts: list[str]) -> None:
        """Count the words of some texts; long ones are cut where it makes no difference."""
        if self._cuts is not None and any(len(text) > LONG_CHARS for text in texts):
            for text in texts:
                for piece in cut_long(text, self._cuts):
                    self._add([piece])
        else:
            self._add(texts)

    def _add(self, texts: list[str]) -> None:
        known = self._known
        self._pieces.update(texts if known is None else known.count(texts, self._others))
        if self._known is None or len(self._pieces) > _MAX_PIECES:
            self._split()
        self._num_bytes += sum(map(len, texts))
        if self._cuts and self._learn_after and self._num_bytes >= self._learn_after[0]:
            self._learn_after.pop(0)
            self._learn()

    def take(self) -> WordCounts:
        """Return the counts since the last call, and forget them; known words stay known."""
        self._split()
        counts = self._others
        self._take_known()
        self._others = Counter()
        return WordCounts.of(counts)

    def _split(self) -> None:
        """Cut the pieces into words and count these as often as the pieces."""
        pieces = self._pieces
        self._pieces = Counter()
        texts = list(pieces)
        for start in range(0, len(texts), _SPLIT_TEXTS):
            some = texts[start : start + _SPLIT_TEXTS]
            ids, offsets = self._splitter.encode_batch(some, allow_special=False)
            # every word begins with a mark, the first of a text too
            shown = ids.astype(np.uint8).tobytes().decode().split(_MARK)[1:]
            lengths = np.fromiter(map(len, shown), dtype=np.int64, count=len(shown))
            begins = np.zeros(int(lengths.sum()), dtype=np.bool_)
            begins[np.cumsum(lengths) - lengths] = True
            data = np.frombuffer(text_to_bytes("".join(shown)), dtype=np.uint8)
            marks = np.concatenate([[0], np.cumsum(ids == ord(_MARK))])
            repeats = np.fromiter(map(pieces.__getitem__, some), dtype=np.int64, count=len(some))
            counts = np.repeat(repeats, np.diff(marks[offsets])).tolist()
            for word, count in zip(_split_bytes(data, begins), counts, strict=True):
                self._others[word] += count

    def _take_known(self) -> None:
        for word, count in {} if self._known is None else self._known.take().items():
            self._others[word] += count

    def _learn(self) -> None:
        """Make the most frequent words so far known."""
        self._split()
        self._take_known()
        repeated = [
            (count, word)
            for word, count in self._others.items()
            if count > 1 and len(word) > 1  # single bytes are always known
        ]
        if len(repeated) > _MAX_KNOWN:
            repeated.sort(reverse=True)
        self._known = _KnownWords(self.patterns, [word for _, word in repeated[:_MAX_KNOWN]])


class _KnownWords:
    """Counts the words that it knows, and returns the parts of texts that hold others."""

    def __init__(self, patterns: Sequence[str], words: list[bytes]) -> None:
        self.words = [bytes([byte]) for byte in range(_NUM_BYTES)] + words
        vocab = {bytes_to_text(word): i for i, word in enumerate(words, start=_NUM_BYTES)}
        self._encoder = _encoder(patterns, vocab, marked=False)
        lengths = np.fromiter(map(len, self.words), dtype=np.int64, count=len(self.words))
        data = np.frombuffer(b"".join(self.words), dtype=np.uint8)
        self._num_bytes, ends = lengths, np.cumsum(lengths)
        self._starts_as = data[ends - lengths]
        self._ends_as = data[ends - 1].astype(np.uint16) << 8
        # several patterns, one after the other, cut more than the last one alone
        self._junctions = junctions(patterns[0] if len(patterns) == 1 else "")
        self._counts = np.zeros(len(self.words), dtype=np.int64)

    def take(self) -> dict[bytes, int]:
        """Return the words that were counted, and begin anew."""
        indices = np.flatnonzero(self._counts)
        counts = self._counts[indices].tolist()
        self._counts[:] = 0
        return dict(zip([self.words[i] for i in indices.tolist()], counts, strict=True))

    def count(self, texts: list[str], new_words: Counter[bytes]) -> list[str]:
        """Count the words of texts, and return the pieces that must be cut into words.

        Words that are not known are added to `new_words`.
        """
        ids, offsets = self._encoder.encode_batch(texts, allow_special=False)
        if not len(ids):
            return []
        junction = self._junctions[self._ends_as[ids[:-1]] | self._starts_as[ids[1:]]]
        is_byte = ids < _NUM_BYTES
        junction[~(is_byte[1:] & is_byte[:-1])] &= CUT  # a known word ends where it ends
        begins = np.ones(len(ids) + 1, dtype=np.bool_)  # token i is the first of a piece
        np.not_equal(junction & CUT, 0, out=begins[1:-1])
        begins[offsets] = True
        inside = ~begins[1:-1]
        piece = np.cumsum(begins[:-1], dtype=np.int32) - 1
        is_unclear = np.zeros(int(piece[-1]) + 1, dtype=np.bool_)
        is_unclear[piece[1:][inside & (junction == UNSURE)]] = True
        goes_on = np.zeros(len(ids) + 1, dtype=np.bool_)  # token i continues the word before it
        np.logical_and(inside, junction == SAME, out=goes_on[1:-1])
        is_part = goes_on[:-1] | goes_on[1:]
        is_clear = ~is_unclear[piece]
        self._counts += np.bincount(ids[is_clear & ~is_part], minlength=len(self._counts))
        is_part &= is_clear
        new_words.update(_split_bytes(ids[is_part].astype(np.uint8), ~goes_on[:-1][is_part]))
        chosen = np.flatnonzero(is_unclear)
        if not len(chosen):
            return []
        piece_starts = np.flatnonzero(begins)
        ends = np.zeros(len(ids) + 1, dtype=np.int64)
        np.cumsum(self._num_bytes[ids], out=ends[1:])
        starts, stops = ends[piece_starts[chosen]], ends[piece_starts[chosen + 1]]
        return _slices("".join(texts), starts.tolist(), stops.tolist())


def cut_long(text: str, cuts: CutRule) -> Iterator[str]:
    """Yield a text in pieces whose words are those of the whole."""
    start = 0
    while len(text) - start > LONG_CHARS:
        target = start + LONG_CHARS // 2
        cut = cuts.last_cut(text, start, target, allow_special=False)
        if cut is None:
            cut = cuts.first_cut(text, target, allow_special=False)
        if cut is None:
            break
        yield text[start:cut]
        start = cut
    yield text[start:] if start else text


def _split_bytes(data: NDArray[np.uint8], begins: NDArray[np.bool_]) -> list[bytes]:
    """Cut bytes before each one that begins a word, as the first does."""
    places = np.arange(len(data)) + np.cumsum(begins)
    separated = np.full(len(data) + int(begins.sum()), _NO_TEXT, dtype=np.uint8)
    separated[places] = data
    return separated.tobytes().split(bytes([_NO_TEXT]))[1:]


def _slices(text: str, starts: list[int], stops: list[int]) -> list[str]:
    """Cut pieces out of a text by their places in its UTF-8 bytes."""
    if text.isascii():
        return [text[start:stop] for start, stop in zip(starts, stops, strict=True)]
    data = text.encode()
    return [data[start:stop].decode() for start, stop in zip(starts, stops, strict=True)]


def _encoder(patterns: Sequence[str], vocab: dict[str, int], *, marked: bool) -> Encoder:
    """Return an encoder that makes words of `vocab` their ids, and others the ids of their bytes.

    Args:
        marked: Put the byte 0x20 before each word, and write the word in letters once more.
    """
    pre_tokenizer = write_pre_tokenizer(tuple(patterns))
    if marked:
        letters_once = byte_level_step(use_regex=False)
        letters_twice = letters_once | {"add_prefix_space": True}
        steps = [*map(split_step, patterns), letters_once, letters_twice]
        pre_tokenizer = {"type": "Sequence", "pretokenizers": steps}
    letters = {letter: byte for byte, letter in enumerate(ALPHABET)}
    model = Model(type="BPE", ignore_merges=True, vocab=letters | vocab)
    spec = TokenizerJson(pre_tokenizer=pre_tokenizer, model=model)
    return choose_encoder(msgspec.json.encode(spec), spec, path="words")
