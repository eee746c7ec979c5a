from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import TokenizerError
from tokenmill.tokenizer import AddedToken, ByteLevelBpe, tokenizer_from_bpe
from tokenmill.tokenizer.bpe import all_merges, merges_from_ranks, special_tokens
from tokenmill.tokenizer.patterns import GPT2

BYTES = {bytes([byte]): byte for byte in range(256)}


def grown_ranks(seed: int, num_merges: int) -> dict[bytes, int]:
    """Return ranks as training on a random text over three letters gives them."""
    rng = random.Random(seed)
    words = [[b"%c" % rng.choice(b"abc") for _ in range(12)] for _ in range(30)]
    ranks = dict(BYTES)
    for _ in range(num_merges):
        pairs = [pair for word in words for pair in itertools.pairwise(word)]
        if not pairs:
            break
        left, right = max(set(pairs), key=lambda pair: (pairs.count(pair), pair))
        ranks[left + right] = len(ranks)
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == (left, right):
                    word[i : i + 2] = [left + right]
                i += 1
    return ranks


def bpe_from(ranks: dict[bytes, int]) -> ByteLevelBpe:
    merges = merges_from_ranks(ranks)
    return ByteLevelBpe(
        tokens={rank: token for token, rank in ranks.items()},
        merges=all_merges(ranks) if merges is None else merges,
        patterns=(GPT2,),
        ignore_merges=merges is None,
    )


def test_ranks_give_back_the_merges_of_gpt2(gpt2_bpe: ByteLevelBpe):
    merges = merges_from_ranks({token: rank for rank, token in gpt2_bpe.tokens.items()})
    assert merges is not None
    assert merges.tolist() == gpt2_bpe.merges.tolist()


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), texts=st.lists(st.text("abc ", max_size=40), max_size=20))
def test_merges_do_what_the_ranks_do(seed: int, texts: list[str]):
    ranks = grown_ranks(seed, 25)
    tokenizer = tokenizer_from_bpe(bpe_from(ranks), "grown")
    reference = tiktoken.Encoding("grown", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={})
    assert merges_from_ranks(ranks) is not None
    for text in texts:
        assert tokenizer.encode(text) == reference.encode_ordinary(text)


def test_a_token_that_no_merges_reach_still_becomes_the_word_that_it_is():
    ranks = {**BYTES, b"ab": 256, b"abcd": 257}  # nothing leads from "ab" to "abcd"
    assert merges_from_ranks(ranks) is None
    tokenizer = tokenizer_from_bpe(bpe_from(ranks), "by hand")
    reference = tiktoken.Encoding("by hand", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={})
    for text in ("abcd", "abcde", "ab abcd", "abab", "abcdabcd"):
        assert tokenizer.encode(text) == reference.encode_ordinary(text)


def test_all_merges_holds_every_split_in_the_order_of_the_ranks():
    ranks = {**BYTES, b"ab": 256, b"bc": 257, b"abc": 258}
    assert all_merges(ranks).tolist() == [[97, 98], [98, 99], [97, 257], [256, 99]]


def make(**changes: object) -> ByteLevelBpe:
    fields: dict[str, object] = {
        "tokens": {byte: bytes([byte]) for byte in range(256)},
        "merges": np.empty((0, 2), dtype=np.uint32),
        "patterns": (GPT2,),
    }
    return ByteLevelBpe(**{**fields, **changes})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tokens": {byte: bytes([byte]) for byte in range(1, 256)}}, "1 of the 256"),
        ({"tokens": {255 - byte: bytes([byte]) for byte in range(256)}}, "order"),
        ({"tokens": {byte - 1: bytes([byte]) for byte in range(256)}}, "from -1"),
        ({"added": special_tokens({"<x>": 2**32})}, "32 bits"),
        ({"added": special_tokens({"<x>": 7})}, "the id 7"),
        ({"added": (AddedToken(id=300, content="x"), AddedToken(id=300, content="y"))}, "id 300"),
        ({"tokens": {**{b: bytes([b]) for b in range(256)}, 256: b"a"}}, "same bytes"),
    ],
)
def test_a_vocabulary_that_does_not_add_up_is_refused(changes: dict[str, object], complaint: str):
    with pytest.raises(TokenizerError, match=complaint):
        make(**changes)


def test_the_id_space_reaches_over_holes_to_the_last_special_token():
    assert make().num_ids == 256
    assert make(added=special_tokens({"<b>": 1000, "<a>": 400})).num_ids == 1001
