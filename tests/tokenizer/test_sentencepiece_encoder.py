from __future__ import annotations

import io
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import MissingDependencyError, TokenizerError
from tokenmill.tokenizer import SpecialIds, Tokenizer, load_definition, load_tokenizer

sentencepiece = pytest.importorskip("sentencepiece")

CORPUS = ["the cat sat on the mat", "a naïve café, 日本語 and 123", "it's <sep> not so"] * 30


def train(**options: object) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        vocab_size=320,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def model() -> bytes:
    return train(
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<sep>"],
        pad_id=3,
    )


@pytest.fixture(scope="module")
def tokenizer(model: bytes) -> Tokenizer:
    return load_definition(model, "tokenizer.model")


def test_a_model_file_is_its_own_definition(model: bytes, tmp_path: Path):
    (tmp_path / "my.model").write_bytes(model)
    loaded = load_tokenizer(tmp_path / "my.model")
    assert (loaded.definition, loaded.definition_name) == (model, "tokenizer.model")
    assert loaded.encoder == "sentencepiece"
    again = load_definition(loaded.definition, loaded.definition_name)
    assert again.fingerprint == loaded.fingerprint
    assert again.special_ids == SpecialIds(bos=1, eos=2, pad=3)
    assert load_tokenizer(tmp_path).fingerprint == loaded.fingerprint


PIECES = [
    "the",
    "cat",
    " ",
    "  ",
    "é",
    "日",
    "🦙",
    "\n",
    "<s>",
    "</s>",
    "<sep>",
    "<unk>",
    "\x00",
    "▁",
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=15).map("".join)


@settings(max_examples=100, deadline=None)
@given(st.lists(TEXTS, max_size=4))
def test_ids_and_texts_are_the_librarys(tokenizer: Tokenizer, model: bytes, texts: list[str]):
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids, offsets = tokenizer.encode_batch(texts)
    for i, text in enumerate(texts):
        expected = processor.encode(text)
        assert ids[offsets[i] : offsets[i + 1]].tolist() == expected
        assert tokenizer.decode(expected) == processor.decode(expected)
        if "▁" not in text:
            assert tokenizer.decode(expected) == text


@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_half_a_character_is_kept_as_bytes(rule: str, data: st.DataObject):
    tokenizer, processor = trained_with(rule)
    ids = data.draw(st.lists(st.integers(0, tokenizer.num_ids - 1), max_size=12))
    found = tokenizer.decode_bytes(ids)
    text = processor.decode(ids)
    if "\ufffd" not in text:
        assert found == text.encode()
    else:
        assert found.decode(errors="ignore") == "".join(
            found.decode(errors="replace").split("\ufffd")
        )
        assert found.endswith(b"".join(tokenizer.token_bytes(i) for i in ids).lstrip(b" "))


def test_the_space_before_a_text_is_left_out_of_half_characters_too():
    tokenizer, processor = trained_with("identity")
    ids = tokenizer.encode("the 🦙")[:-1]
    assert processor.decode(ids).startswith("the")
    assert tokenizer.decode_bytes(ids) == "the 🦙".encode()[:-1]


@cache
def trained_with(rule: str) -> tuple[Tokenizer, Any]:
    content = train(model_type="bpe", byte_fallback=True, normalization_rule_name=rule)
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    return load_definition(content, "tokenizer.model"), processor


def test_control_symbols_in_a_text_are_text(tokenizer: Tokenizer):
    assert set(tokenizer.encode("a<s>b</s>")).isdisjoint(set(tokenizer.special_tokens.values()))
    assert tokenizer.special_tokens == {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3}
    with pytest.raises(TokenizerError, match="never reads control symbols"):
        tokenizer.encode("a<s>b", allow_special=True)


def test_a_unigram_model_works_too():
    content = train(model_type="unigram")
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    loaded = load_definition(content, "tokenizer.model")
    for text in ("the cat", "🦙 unknown", "", "  x"):
        assert loaded.encode(text) == processor.encode(text)
        assert loaded.decode(loaded.encode(text)) == processor.decode(processor.encode(text))


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x00" * 100, b"\xff\xfe\xfd"])
def test_other_bytes_are_refused(data: bytes):
    with pytest.raises(TokenizerError, match="not a SentencePiece model"):
        load_definition(data, "tokenizer.model")


def test_a_cut_model_is_refused(model: bytes):
    with pytest.raises(TokenizerError, match="not a SentencePiece model"):
        load_definition(model[: len(model) // 2 + 1], "tokenizer.model")


def test_half_of_a_surrogate_pair_is_refused(tokenizer: Tokenizer):
    with pytest.raises(TokenizerError, match=r"U\+DC00"):
        tokenizer.encode("a\udc00")


def test_an_unknown_id_is_an_error(tokenizer: Tokenizer):
    with pytest.raises(TokenizerError, match="the id 99999"):
        tokenizer.decode([99999])
    with pytest.raises(TokenizerError, match="the id 99999"):
        tokenizer.token_bytes(99999)


def test_a_missing_library_is_named_with_its_extra(model: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingDependencyError, match="sentencepiece") as caught:
        load_definition(model, "tokenizer.model")
    assert caught.value.hint == 'pip install "tokenmill[sentencepiece]"'
