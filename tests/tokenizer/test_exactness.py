"""Our ids are the ids of the reference implementations, on every text."""

from __future__ import annotations

import dataclasses

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer

from tokenmill.tokenizer import ByteLevelBpe, Tokenizer, tokenizer_from_bpe
from tokenmill.tokenizer.patterns import CL100K, GPT2, NANOCHAT, O200K, QWEN2, TEKKEN

CURATED = [
    "",
    " ",
    "Hello world",
    "  leading and trailing  ",
    "it's we'll I'VE they'd 's 't ''' don’t",  # noqa: RUF001
    "a'\u017f'se '\u017f x'\u017fx \u017f'\u017f'Ta",  # the long s is an s without regard to case
    "<|endoftext|>",
    "a<|endoftext|>b <|endoftext|><|endoftext|> <|endoftext",
    "tabs\t\tand\r\nnewlines\n\n\n  \n x",
    "end with white space \n  ",
    "0 12 345 6789 ²³ Ⅷ ٣٤ 1,234.5",
    "naïve café e\u0301 ǅ ʰ ß ẞ İ ı",  # noqa: RUF001
    "日本語のテキスト。中文，标点！한국어 조선말",  # noqa: RUF001
    "हिन्दी ไทยกำ العربية עברית Ελληνικά Кириллица",
    "🦙👩‍👩‍👧‍👦🏳️‍🌈🇩🇪👍🏽",
    "\x00\x01\x1c\x7f\x85\u00a0\u2028\u2029\u200b\u200d\ufeff\u3000",
    "\u0378\u05ff\U000e0001\U0010ffff\ufffd\ue000",
    "camelCaseHTTPServerXMLParser snake_case __init__ //comment /path/to",
    "a" * 3000,
    " " * 3000,
    "1" * 1000,
    "\n" * 1000,
    "日" * 500,
    "🦙" * 200,
    "ab" * 800 + "!" * 300,
]
ALPHABET = "abcsStTreEvmlLd\u017f'’ \n\r\t\u00a0\u30001234²日本。é\u0301🦙\x00.,!?/-<|>_\u0378"  # noqa: RUF001
MIXED = "abeBTsStr1234 \n\r\t\u00a0\u3000'.,!?/-_\x00é\u0301\u017f²日本。，🦙"  # noqa: RUF001
MIXED_TEXTS = st.lists(st.text(MIXED, max_size=40), min_size=1, max_size=8)
TEXTS = st.lists(st.text(ALPHABET, max_size=40) | st.text(max_size=20), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def reference(gpt2_bpe: ByteLevelBpe) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        "gpt2",
        pat_str=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
        mergeable_ranks={token: rank for rank, token in gpt2_bpe.tokens.items()},
        special_tokens={"<|endoftext|>": 50256},
    )


def split(
    tokenizer: Tokenizer, texts: list[str], *, allow_special: bool = False
) -> list[list[int]]:
    ids, offsets = tokenizer.encode_batch(texts, allow_special=allow_special)
    assert len(offsets) == len(texts) + 1
    assert (offsets[0], offsets[-1]) == (0, len(ids))
    return [ids[offsets[i] : offsets[i + 1]].tolist() for i in range(len(texts))]


def test_curated_texts_have_the_ids_of_tiktoken(
    gpt2_tokenizer: Tokenizer, reference: tiktoken.Encoding
):
    expected = [reference.encode_ordinary(text) for text in CURATED]
    assert split(gpt2_tokenizer, CURATED) == expected
    expected = [reference.encode(text, allowed_special="all") for text in CURATED]
    assert split(gpt2_tokenizer, CURATED, allow_special=True) == expected


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_any_text_has_the_ids_of_tiktoken(
    gpt2_tokenizer: Tokenizer, reference: tiktoken.Encoding, texts: list[str]
):
    assert split(gpt2_tokenizer, texts) == [reference.encode_ordinary(text) for text in texts]


@settings(max_examples=100, deadline=None)
@given(TEXTS)
def test_decoding_gives_back_any_text(gpt2_tokenizer: Tokenizer, texts: list[str]):
    ids, _ = gpt2_tokenizer.encode_batch(texts)
    assert gpt2_tokenizer.decode(ids) == "".join(texts)
    assert b"".join(gpt2_tokenizer.token_bytes(i) for i in ids) == "".join(texts).encode()


@pytest.mark.parametrize("pattern", [GPT2, CL100K, QWEN2, NANOCHAT, O200K, TEKKEN])
def test_every_known_pattern_has_the_ids_of_both_references(pattern: str, mixing_bpe: ByteLevelBpe):
    tokenizer = tokenizer_from_bpe(dataclasses.replace(mixing_bpe, patterns=(pattern,)), "t")
    assert tokenizer.encoder == "fastokens"
    ranks = {token: rank for rank, token in mixing_bpe.tokens.items()}
    by_ranks = tiktoken.Encoding("t", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    by_merges = HfTokenizer.from_str(tokenizer.definition.decode())
    by_merges.encode_special_tokens = True

    @settings(max_examples=150, deadline=None)
    @given(MIXED_TEXTS)
    def check(texts: list[str]) -> None:
        found = split(tokenizer, texts)
        assert found == [by_ranks.encode_ordinary(text) for text in texts]
        assert found == [by_merges.encode(text).ids for text in texts]

    check()
    assert split(tokenizer, CURATED) == [by_ranks.encode_ordinary(text) for text in CURATED]
