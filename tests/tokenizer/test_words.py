"""Word counts: the same as cutting every text by the pattern, however much is known."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from tokenmill.tokenizer import words
from tokenmill.tokenizer.patterns import CL100K, DEEPSEEK, GPT2, NANOCHAT, O200K, QWEN2, TEKKEN
from tokenmill.tokenizer.train_bpe import WordCounts
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
    monkeypatch.setattr(words, "_LONG_CHARS", 64)
    text = "".join(random.Random(4).choices(PIECES, k=3000))
    counter = WordCounter([pattern])
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
