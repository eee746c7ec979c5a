"""Word counts: the same as cutting every text by the pattern, however much is known."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from tokenmill.tokenizer import fast_words, words
from tokenmill.tokenizer.fast_words import FastWordCounter
from tokenmill.tokenizer.patterns import CL100K, DEEPSEEK, GPT2, NANOCHAT, O200K, QWEN2, TEKKEN
from tokenmill.tokenizer.scan import (
    FAMILIES,
    LETTER,
    LOWER,
    NUMBER,
    SPACE,
    UNKNOWN,
    UPPER,
    character_classes,
)
from tokenmill.tokenizer.word_counts import WordCounts
from tokenmill.tokenizer.words import WordCounter

PATTERNS = [GPT2, CL100K, QWEN2, NANOCHAT, O200K, TEKKEN, DEEPSEEK]
PIECES = [
    *("a", "b", "B", "Z", "s", "t", "ll", "re", "1", "22", "0", "'", '"', "(", ")", "_", "/", "."),
    *(
        " ",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "é",
        "ß",
        "日本",
        "\u3000",
        "\u0301",
        "😀",
        "\u017f",
        "#",
    ),
    *(" the", " The", "word", " word", "WORD", "'s", "'S", "''", "=="),
    *("\u01c5", "\u02b0", "\u00aa", "\u0e01\u0e33", "\u2160", "\u00bd", "\u1680", "\x1c", "\x85"),
    *("\u0378", "\U0001fae9", "\U00016d40", "'\u017f", "'Re", "'lL", "\0", "ABCd", "aBC"),
]
texts = st.lists(st.sampled_from(PIECES), max_size=25).map("".join)


def as_dict(table: WordCounts) -> dict[bytes, int]:
    ends = np.cumsum(table.lengths).tolist()
    found = [table.data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    assert len(set(found)) == len(found)
    return dict(zip(found, table.counts.tolist(), strict=True))


def expected(documents: list[str], pattern: str) -> dict[bytes, int]:
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    found = Counter(word for text in documents for word, _ in cut.pre_tokenize_str(text))
    return {word.encode(): count for word, count in found.items()}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_words_are_those_of_the_pattern(pattern: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(words, "_LEARN_AFTER", (100, 300))
    counter = WordCounter([pattern])
    counter.add([" the word The (word) == the\n" * 10])
    counter.add(["(word's) WORD 22 é " * 30])
    counter.take()

    @settings(max_examples=120, deadline=None)
    @given(documents=st.lists(texts, max_size=6))
    def check(documents: list[str]) -> None:
        counter.add(documents)
        assert as_dict(counter.take()) == expected(documents, pattern)

    check()


@pytest.mark.parametrize("pattern", sorted(FAMILIES))
def test_compiled_scanners_find_the_words_of_the_pattern(pattern: str):
    counter = FastWordCounter(pattern)

    @settings(max_examples=150, deadline=None)
    @given(documents=st.lists(texts | st.text(max_size=20), max_size=6))
    def check(documents: list[str]) -> None:
        counter.add(documents)
        assert as_dict(counter.take()) == expected(documents, pattern)

    check()


@pytest.mark.parametrize(
    ("bit", "expression"),
    [
        (LETTER, r"\p{L}"),
        (NUMBER, r"\p{N}"),
        (SPACE, r"\s"),
        (UPPER, r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"),
        (LOWER, r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"),
    ],
)
def test_classes_of_characters_are_those_of_the_reference(bit: int, expression: str):
    """What Python does not know may have been assigned since: it is left to an encoder."""
    classes = character_classes()
    is_known = classes & UNKNOWN == 0
    points = [p for p in np.flatnonzero(is_known).tolist() if p < 0xF0000 and p >> 11 != 0x1B]
    assert len(points) > 140_000
    text = "".join(map(chr, points))
    others = pre_tokenizers.Split(Regex(expression), "removed").pre_tokenize_str(text)
    without = {ord(character) for piece, _ in others for character in piece}
    assert {p for p in points if classes[p] & bit} == set(points) - without


@pytest.mark.parametrize("pattern", [GPT2, O200K])
def test_a_compiled_table_grows(pattern: str):
    rng = random.Random(6)
    documents = ["".join(rng.choices(PIECES, k=rng.randint(0, 60))) for _ in range(400)]
    documents += [f" {rng.getrandbits(60):x} {'long' * rng.randint(1, 60)}" for _ in range(20_000)]
    documents += ["\u0378 " * 3_000]
    counter = FastWordCounter(pattern)
    for start in range(0, len(documents), 1000):
        counter.add(documents[start : start + 1000])
    assert as_dict(counter.take()) == expected(documents, pattern)
    assert len(counter.take().counts) == 0


@pytest.mark.parametrize("pattern", [GPT2, O200K])
def test_counts_add_up_over_many_batches_and_rounds_of_learning(
    pattern: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(words, "_LEARN_AFTER", (500, 5_000, 20_000))
    monkeypatch.setattr(words, "_MAX_KNOWN", 200)
    monkeypatch.setattr(words, "_MAX_PIECES", 50)
    rng = random.Random(3)
    documents = ["".join(rng.choices(PIECES, k=rng.randint(0, 60))) for _ in range(800)]
    counter = WordCounter([pattern])
    for start in range(0, 800, 7):
        counter.add(documents[start : start + 7])
    assert as_dict(counter.take()) == expected(documents, pattern)
    assert len(counter.take().counts) == 0


@pytest.mark.parametrize("pattern", [GPT2, CL100K])
def test_a_long_text_is_cut_where_it_makes_no_difference(
    pattern: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(words, "LONG_CHARS", 64)
    monkeypatch.setattr(fast_words, "LONG_CHARS", 64)
    text = "".join(random.Random(4).choices(PIECES, k=3000))
    for counter in (WordCounter([pattern]), FastWordCounter(pattern)):
        counter.add([text, "short"])
        assert as_dict(counter.take()) == expected([text, "short"], pattern)


def test_several_patterns_cut_one_after_the_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(words, "_LEARN_AFTER", (1,))
    counter = WordCounter([r"\p{N}", GPT2])
    for _ in range(2):
        counter.add(["a 1234 ab12 the ab12"])
    found = as_dict(counter.take())
    assert (found[b"1"], found[b" ab"], found[b" the"]) == (6, 4, 2)
    assert b"12" not in found


def test_any_other_pattern_is_cut_the_slow_way():
    counter = WordCounter([r"\w+|\W"])
    counter.add(["to be, or not to be"])
    assert as_dict(counter.take()) == {
        b"to": 2,
        b"be": 2,
        b"or": 1,
        b"not": 1,
        b",": 1,
        b" ": 5,
    }
