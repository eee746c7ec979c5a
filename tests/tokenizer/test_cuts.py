from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.tokenizer import (
    AddedToken,
    ByteLevelBpe,
    Tokenizer,
    load_definition,
    tokenizer_from_bpe,
)
from tokenmill.tokenizer import patterns as known
from tokenmill.tokenizer.cuts import CutRule, cut_rule

SEQUENCES = {
    "gpt2": (known.GPT2,),
    "cl100k": (known.CL100K,),
    "qwen2": (known.QWEN2,),
    "nanochat": (known.NANOCHAT,),
    "o200k": (known.O200K,),
    "tekken": (known.TEKKEN,),
    "deepseek": (known.DIGIT_GROUPS, known.CJK_RUNS, known.DEEPSEEK),
    "starcoder": (known.EACH_DIGIT, known.GPT2),
}
ADDED = (
    AddedToken(id=9000, content="<|endoftext|>"),
    AddedToken(id=9001, content="  ", special=False),
    AddedToken(id=9002, content="a b", special=False),
    AddedToken(id=9003, content="ss.", special=False, single_word=True),
    AddedToken(id=9004, content="11!", special=False, lstrip=True, rstrip=True),
    AddedToken(id=9005, content=" t", special=False, single_word=True),
    AddedToken(id=9006, content="\n\n"),
)
PIECES = [
    "a",
    "b",
    "B",
    "é",
    "e\u0301",
    "\u0301",
    "\u017f",
    " ",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\u00a0",
]
PIECES += ["\u3000", "'", "'s", "'LL", "'re", "’", "1", "23", "4567", "²", "日", "本語", "。", "，"]  # noqa: RUF001
PIECES += ["!", "?", ".", "/", "-", '"', ")", "🦙", "\u200d", "\x00", "\x1c", "_", "THE", "ing"]
PIECES += ["<|endoftext|>", "a b", "ss.", "11!", " t", "กำ", "हि"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


@pytest.fixture(scope="module")
def make(mixing_bpe: ByteLevelBpe) -> Callable[..., Tokenizer]:
    """Returns the tokenizer for a known sequence of patterns, with added tokens or without."""

    @cache
    def make(name: str, *, added: bool = False) -> Tokenizer:
        bpe = dataclasses.replace(
            mixing_bpe, patterns=SEQUENCES[name], added=ADDED if added else ADDED[:1]
        )
        return tokenizer_from_bpe(bpe, name)

    return make


def joined(pieces: list[np.ndarray]) -> list[int]:
    return [int(token_id) for piece in pieces for token_id in piece]


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_pieces_of_a_long_text_are_the_whole(name: str, make: Callable[..., Tokenizer]):
    subject = make(name)

    @settings(max_examples=120, deadline=None)
    @given(TEXTS, st.integers(1, 30))
    def check(text: str, piece_chars: int) -> None:
        pieces = list(subject.encode_long(text, piece_chars=piece_chars))
        assert joined(pieces) == subject.encode(text)

    check()


@pytest.mark.parametrize("allow_special", [False, True])
def test_no_cut_disturbs_an_added_token(allow_special: bool, make: Callable[..., Tokenizer]):
    subject = make("gpt2", added=True)

    @settings(max_examples=400, deadline=None)
    @given(TEXTS, st.integers(1, 10))
    def check(text: str, piece_chars: int) -> None:
        pieces = list(
            subject.encode_long(text, allow_special=allow_special, piece_chars=piece_chars)
        )
        assert joined(pieces) == subject.encode(text, allow_special=allow_special)

    check()


@pytest.mark.parametrize("added", [False, True])
def test_how_a_stream_is_chunked_makes_no_difference(added: bool, make: Callable[..., Tokenizer]):
    subject = make("cl100k", added=added)

    @settings(max_examples=400, deadline=None)
    @given(TEXTS, st.integers(1, 5), st.integers(1, 12), st.booleans())
    def check(text: str, chunk_chars: int, piece_chars: int, allow_special: bool) -> None:
        chunks = [text[i : i + chunk_chars] for i in range(0, len(text), chunk_chars)]
        pieces = list(
            subject.encode_iterable(chunks, allow_special=allow_special, piece_chars=piece_chars)
        )
        assert joined(pieces) == subject.encode(text, allow_special=allow_special)

    check()


@pytest.mark.parametrize("token", ["a b", "ss.", "11!", " t", "<|endoftext|>"])
def test_a_stream_waits_for_an_added_token_to_end(token: str, make: Callable[..., Tokenizer]):
    subject = make("gpt2", added=True)
    for num_chars in range(40):
        text = "y" * num_chars + f".{token} y, {token}y"
        pieces = list(subject.encode_iterable(list(text), allow_special=True, piece_chars=5))
        assert joined(pieces) == subject.encode(text, allow_special=True)


@pytest.mark.parametrize("text", ["It was a fine day, 日本語の文。改行\nand 12 more! " * 400])
def test_a_long_text_is_really_cut(text: str, small_tokenizer: Tokenizer):
    pieces = list(small_tokenizer.encode_long(text, piece_chars=100))
    assert len(pieces) > len(text) / 110
    assert joined(pieces) == small_tokenizer.encode(text)


def test_a_stream_is_encoded_as_it_comes(small_tokenizer: Tokenizer):
    seen = 0

    def chunks():
        nonlocal seen
        for _ in range(100):
            seen += 1
            yield "some words and more of them "

    stream = small_tokenizer.encode_iterable(chunks(), piece_chars=100)
    next(stream)
    assert seen < 10


@pytest.mark.parametrize("text", ["a" * 5000, "1" * 5000, " " * 5000, "\n" * 5000, "!?" * 2500, ""])
def test_a_text_without_a_safe_place_is_one_piece(text: str, small_tokenizer: Tokenizer):
    pieces = list(small_tokenizer.encode_long(text, piece_chars=10))
    assert len(pieces) == (1 if text else 0)
    assert joined(pieces) == small_tokenizer.encode(text)
    stream = small_tokenizer.encode_iterable(list(text), piece_chars=10)
    assert joined(list(stream)) == small_tokenizer.encode(text)


def test_unknown_patterns_have_no_rule():
    assert cut_rule((r"\w+|\W+",), ()) is None
    assert cut_rule((known.EACH_DIGIT,), ()) is None  # sets digits apart, but cuts no words
    assert cut_rule((), ()) is None
    assert cut_rule((known.EACH_DIGIT, known.GPT2), ()) == CutRule(())


def test_a_normalizer_means_no_cuts(small_tokenizer: Tokenizer):
    data = small_tokenizer.definition.replace(b'"normalizer":null', b'"normalizer":{"type":"NFC"}')
    subject = load_definition(data, "tokenizer.json")
    assert subject.cuts is None
    text = "e\u0301 is é, " * 50
    pieces = list(subject.encode_long(text, piece_chars=10))
    assert len(pieces) == 1
    assert joined(pieces) == subject.encode(text)
    assert joined(list(subject.encode_iterable(list(text)))) == subject.encode(text)


def test_cuts_are_found_in_either_direction():
    rule = CutRule(())
    text = "one two three"
    assert rule.last_cut(text, 0, 12, allow_special=False) == 7
    assert rule.last_cut(text, 0, 7, allow_special=False) == 7
    assert rule.last_cut(text, 0, 6, allow_special=False) == 3
    assert rule.last_cut(text, 3, 6, allow_special=False) is None
    assert rule.first_cut(text, 3, allow_special=False) == 7
    assert rule.first_cut(text, 8, allow_special=False) is None


def test_a_special_token_blocks_a_cut_only_where_it_is_one():
    rule = CutRule((AddedToken(id=1, content="<a b>"),))
    assert rule.first_cut("x<a b>", 0, allow_special=False) == 3
    assert rule.first_cut("x<a b>", 0, allow_special=True) is None
    assert rule.first_cut("x<a b> y", 0, allow_special=True) == 6
    touching = CutRule((AddedToken(id=1, content="<a>", rstrip=True),))
    assert touching.first_cut("x<a> y z", 0, allow_special=True) == 6
