from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.tokenizer.alphabet import ALPHABET, GPT2_BYTE_ORDER, bytes_to_text, text_to_bytes


@given(st.binary())
def test_any_bytes_survive_the_alphabet(token: bytes):
    assert text_to_bytes(bytes_to_text(token)) == token


def test_the_alphabet_is_printable_and_has_a_letter_for_every_byte():
    assert len(set(ALPHABET)) == 256
    assert all(letter.isprintable() and not letter.isspace() for letter in ALPHABET)
    assert sorted(GPT2_BYTE_ORDER) == list(range(256))


def test_other_characters_are_refused():
    with pytest.raises(UnicodeEncodeError):
        text_to_bytes("a b")
