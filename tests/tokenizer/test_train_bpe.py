"""Merges: the same as a trainer that counts everything anew, and as HF tokenizers."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import ConfigError
from tokenmill.tokenizer import merge_loop
from tokenmill.tokenizer.alphabet import ALPHABET, GPT2_BYTE_ORDER, text_to_bytes
from tokenmill.tokenizer.train_bpe import TieBreak, train_merges
from tokenmill.tokenizer.word_counts import WordCounts

Steps = list[tuple[bytes, bytes, int]]


def naive_merges(words: dict[bytes, int], num_merges: int, *, tie_break: TieBreak) -> Steps:
    """Count all pairs anew for every merge."""
    parts = {word: [bytes([byte]) for byte in word] for word in words}
    ids = {bytes([byte]): number for number, byte in enumerate(GPT2_BYTE_ORDER)}
    steps: Steps = []
    while len(steps) < num_merges:
        counts: Counter[tuple[bytes, bytes]] = Counter()
        for word, tokens in parts.items():
            for pair in itertools.pairwise(tokens):
                counts[pair] += words[word]
        if not counts:
            break
        if tie_break == "bytes":
            left, right = max(counts, key=lambda pair: (counts[pair], pair))
        else:
            left, right = min(counts, key=lambda p: (-counts[p], ids[p[0]], ids[p[1]]))
        steps.append((left, right, counts[left, right]))
        ids[left + right] = len(ids)
        for word, tokens in parts.items():
            parts[word] = join(tokens, left, right)
    return steps


def join(tokens: list[bytes], left: bytes, right: bytes) -> list[bytes]:
    joined: list[bytes] = []
    for token in tokens:
        # a token that was just joined is longer than its left half, so it is never taken for one
        if joined and joined[-1] == left and token == right:
            joined[-1] = left + right
        else:
            joined.append(token)
    return joined


def fast_merges(
    words: dict[bytes, int], num_merges: int, *, tie_break: TieBreak, compiled: bool = False
) -> Steps:
    table = WordCounts.of(words)
    merges = train_merges(table, num_merges, tie_break=tie_break, compiled=compiled)
    return [(merge.left, merge.right, merge.count) for merge in merges]


both_ways = pytest.mark.parametrize("compiled", [False, True], ids=["numpy", "compiled"])


small_words = st.dictionaries(
    st.text("ab", min_size=1, max_size=14).map(str.encode)
    | st.binary(min_size=1, max_size=6)
    | st.text("abc dé", min_size=1, max_size=8).map(str.encode),
    st.sampled_from([1, 1, 2, 3, 1000, 2**40]),
    max_size=25,
)


@both_ways
@settings(max_examples=200, deadline=None)
@given(words=small_words, tie_break=st.sampled_from(["bytes", "huggingface"]))
def test_merges_are_those_of_a_trainer_that_counts_everything_anew(
    words: dict[bytes, int], tie_break: Literal["bytes", "huggingface"], compiled: bool
):
    expected = naive_merges(words, 30, tie_break=tie_break)
    assert fast_merges(words, 30, tie_break=tie_break, compiled=compiled) == expected


@both_ways
def test_the_order_of_the_words_makes_no_difference(compiled: bool):
    words = Counter(random_text(2_000).split(b" "))
    backwards = dict(reversed(words.items()))
    forwards = fast_merges(words, 200, tie_break="bytes", compiled=compiled)
    assert fast_merges(backwards, 200, tie_break="bytes", compiled=compiled) == forwards


@pytest.mark.parametrize("tie_break", ["bytes", "huggingface"])
def test_compiled_merges_are_those_of_numpy_until_no_pair_is_left(
    tie_break: TieBreak, monkeypatch: pytest.MonkeyPatch
):
    """Room is short, so that pairs are found anew many times."""
    monkeypatch.setattr(merge_loop, "_FIRST_PAIRS", 4)
    monkeypatch.setattr(merge_loop, "_SPARE", 0)
    monkeypatch.setattr(merge_loop, "_STEPS", 7)
    monkeypatch.setattr(merge_loop, "_THRESHOLD_SHARE", 2)
    words = Counter(random_text(5_000).split(b" "))
    words.update({word * 3: 1 for word in list(words)[:300]})
    expected = fast_merges(words, 10_000, tie_break=tie_break)
    assert 3_000 < len(expected) < 10_000
    assert fast_merges(words, 10_000, tie_break=tie_break, compiled=True) == expected


@both_ways
def test_merges_are_those_of_hf_tokenizers(compiled: bool):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    text = random_text(20_000).decode()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, byte_level])
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        show_progress=False,
        initial_alphabet=list(ALPHABET),
        special_tokens=["<|endoftext|>"],
    )
    tokenizer.train_from_iterator([text], trainer)
    content = tokenizer.to_str()
    merges = [
        m.split(" ") if isinstance(m, str) else m for m in json.loads(content)["model"]["merges"]
    ]
    expected = [(text_to_bytes(left), text_to_bytes(right)) for left, right in merges]
    words = Counter(
        word for word, _ in pre_tokenizers.Split(" ", "merged_with_next").pre_tokenize_str(text)
    )
    found = fast_merges(
        {word.encode(): count for word, count in words.items()},
        len(expected),
        tie_break="huggingface",
        compiled=compiled,
    )
    assert len(expected) > 1000
    assert [(left, right) for left, right, _ in found] == expected


@both_ways
def test_counts_beyond_32_bits_are_exact(compiled: bool):
    words = {b"ab": 2**53 + 1, b"ac": 2**53}
    assert fast_merges(words, 2, tie_break="bytes", compiled=compiled) == [
        (b"a", b"b", 2**53 + 1),
        (b"a", b"c", 2**53),
    ]


@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["numpy", "compiled"]
)  # compiling once more for wide symbols takes seconds
def test_a_large_vocabulary_needs_more_than_16_bits_for_a_symbol(compiled: bool):
    words = Counter(random_text(300).split(b" "))
    wide = train_merges(WordCounts.of(words), 70_000, tie_break="bytes", compiled=compiled)
    assert [(m.left, m.right, m.count) for m in wide] == naive_merges(
        words, len(wide), tie_break="bytes"
    )


@both_ways
def test_training_stops_when_no_pair_is_frequent_enough(compiled: bool):
    words = {b"aab": 3, b"xy": 2, b"q": 9}
    table = WordCounts.of(words)
    assert [m.count for m in train_merges(table, 100, compiled=compiled)] == [3, 3, 2]
    found = train_merges(table, 100, min_count=3, compiled=compiled)
    assert [m.count for m in found] == [3, 3]
    assert train_merges(WordCounts.of({}), 5, compiled=compiled) == []


def test_an_unknown_tie_break_is_refused():
    with pytest.raises(ConfigError, match="tie-break"):
        train_merges(WordCounts.of({}), 5, tie_break="random")  # pyright: ignore[reportArgumentType]


def random_text(num_words: int) -> bytes:
    rng = random.Random(5)
    letters = "etaoinshrdlu"
    words = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(num_words // 4)]
    words += ["é" * 3, "aaaaaa", "ttttt", "日本語"]
    return " ".join(rng.choices(words, k=num_words)).encode()
