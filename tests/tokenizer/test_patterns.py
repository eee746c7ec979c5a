from __future__ import annotations

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.tokenizer import patterns
from tokenmill.tokenizer.patterns import CL100K, DEEPSEEK, GPT2, O200K, canonical_pattern

PIECES = [
    "a",
    "B",
    "é",
    "e\u0301",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "'",
    "'s",
    "'LL",
    "1",
    "23",
    "4567",
]
PIECES += ["日本", "。", "!", "?.", "/", "\u3000", "\u00a0", "🦙", "\x00", "²"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
TIKTOKEN_CL100K = patterns._CL100K_POSSESSIVE


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_every_spelling_cuts_as_the_canonical_one(text: str):
    for spelling, canonical in patterns._SPELLINGS.items():
        assert regex.findall(spelling, text) == regex.findall(canonical, text)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_the_complete_patterns_leave_nothing_out(text: str):
    for pattern in patterns.COMPLETE_PATTERNS:
        assert "".join(match[0] for match in regex.finditer(pattern, text)) == text


def test_tiktokens_spelling_of_cl100k_counts_as_the_same_only_where_the_ids_are():
    assert canonical_pattern(TIKTOKEN_CL100K, [b" a", b"\n\n", b".\r\n"]) == CL100K
    assert canonical_pattern(TIKTOKEN_CL100K, [b"\n "]) == TIKTOKEN_CL100K
    assert regex.findall(TIKTOKEN_CL100K, "a\n ") == ["a", "\n "]
    assert regex.findall(CL100K, "a\n ") == ["a", "\n", " "]


@pytest.mark.parametrize("pattern", [CL100K, O200K, DEEPSEEK])
def test_line_ends_may_be_characters_or_escapes(pattern: str):
    assert canonical_pattern(pattern.replace(r"\r", "\r").replace(r"\n", "\n"), []) == pattern


def test_an_unknown_pattern_stays_as_it_is():
    assert canonical_pattern(r"\w+|\s+", []) == r"\w+|\s+"
    assert canonical_pattern(GPT2, []) == GPT2


def test_the_short_names_have_distinct_ids_for_their_special_tokens():
    for encoding in patterns.ENCODINGS.values():
        ids = list(encoding.special_tokens.values())
        assert len(set(ids)) == len(ids)
        assert encoding.url.startswith("https://")
        assert len(encoding.sha256) == 64
