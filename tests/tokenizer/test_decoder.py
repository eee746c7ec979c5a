from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import models, pre_tokenizers, trainers

from tokenmill.errors import TokenizerError
from tokenmill.tokenizer import ByteLevelBpe, Tokenizer, load_definition
from tokenmill.tokenizer.decoder import LibraryDecoder, TokenTable
from tokenmill.tokenizer.tokenizer_json import write_tokenizer_json


@given(st.lists(st.integers(0, 2256)))
def test_any_ids_are_the_bytes_of_their_tokens(small_tokenizer: Tokenizer, ids: list[int]):
    joined = b"".join(small_tokenizer.token_bytes(token_id) for token_id in ids)
    assert small_tokenizer.decode_bytes(ids) == joined
    assert small_tokenizer.decode_bytes(np.array(ids, dtype=np.uint16)) == joined
    assert small_tokenizer.decode(ids) == joined.decode(errors="replace")


def test_half_a_character_is_kept_as_bytes(small_tokenizer: Tokenizer):
    ids = small_tokenizer.encode("🦙")
    assert small_tokenizer.decode_bytes(ids[:1]) == "🦙".encode()[:1]
    assert small_tokenizer.decode(ids[:1]) == "\ufffd"


@pytest.mark.parametrize("token_id", [2257, 10**6, -1, 2**40])
def test_an_unknown_id_is_an_error_that_names_it(token_id: int, small_tokenizer: Tokenizer):
    with pytest.raises(TokenizerError, match=f"the id {token_id} is not in"):
        small_tokenizer.decode([64, token_id])
    with pytest.raises(TokenizerError, match=f"the id {token_id} is not in"):
        small_tokenizer.token_bytes(token_id)


def test_a_byte_level_vocabulary_with_a_normalizer_still_decodes_by_table(small_bpe: ByteLevelBpe):
    content = json.loads(write_tokenizer_json(small_bpe))
    content["normalizer"] = {"type": "NFC"}
    content["model"]["vocab"]["<é ｜>"] = 2257  # noqa: RUF001
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content["added_tokens"].append({"id": 2257, "content": "<é ｜>", "special": True, **flags})  # noqa: RUF001
    tokenizer = load_definition(json.dumps(content).encode(), "tokenizer.json")
    assert isinstance(tokenizer.decoder, TokenTable)
    text = "naïve <é ｜> 日本 🦙"  # noqa: RUF001
    for allow_special in (False, True):
        ids = tokenizer.encode(text, allow_special=allow_special)
        assert tokenizer.decode_bytes(ids) == text.encode()
    assert tokenizer.token_bytes(2257) == "<é ｜>".encode()  # noqa: RUF001


LLAMA_PIECES = ["a", "b", "é", " ", "  ", "\n", "日", "🦙", "<s>", "▁", "\x00", "<0x41>"]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(LLAMA_PIECES), max_size=20).map("".join))
def test_byte_fallback_decodes_as_the_reference_does(
    sentencepiece_like: Callable[..., dict[str, Any]], text: str
):
    data = json.dumps(sentencepiece_like())
    tokenizer, reference = (
        load_definition(data.encode(), "tokenizer.json"),
        HfTokenizer.from_str(data),
    )
    ids = tokenizer.encode(text)
    assert isinstance(tokenizer.decoder, TokenTable)
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=False)
    if "▁" not in text:
        assert tokenizer.decode(ids) == text


def test_other_decoders_are_the_librarys():
    reference = HfTokenizer(models.WordLevel(unk_token="[UNK]"))  # pyright: ignore[reportCallIssue]
    reference.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["[UNK]"], show_progress=False)
    reference.train_from_iterator(["one two three"], trainer)
    tokenizer = load_definition(reference.to_str().encode(), "tokenizer.json")
    assert isinstance(tokenizer.decoder, LibraryDecoder)
    ids = tokenizer.encode("three one")
    assert tokenizer.decode(ids) == "three one"
    assert tokenizer.token_bytes(ids[0]) == b"three"
    with pytest.raises(TokenizerError, match="the id 99"):
        tokenizer.decode([99])
