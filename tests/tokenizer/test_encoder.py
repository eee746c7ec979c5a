from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken as HfAddedToken
from tokenizers import Tokenizer as HfTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tokenmill.tokenizer import (
    AddedToken,
    ByteLevelBpe,
    Tokenizer,
    load_definition,
    tokenizer_from_bpe,
)
from tokenmill.tokenizer.bpe import special_tokens
from tokenmill.tokenizer.encoder import why_not_fastokens
from tokenmill.tokenizer.tokenizer_json import read_tokenizer_json, write_tokenizer_json

MakeJson = Callable[..., dict[str, Any]]
CORPUS = ["the cat sat on the mat", "a naïve café, 日本語 and 123 4567", "<s> and </s>, don't"] * 20
TEXTS = ["the cat", "naïve 日本 123", " two  spaces", "ünknown 🦙\x00", ""]
SPECIAL_TEXTS = ["<s>", "</s>", "<s>the</s>", "a </s> b", "<mask> x", "the<mask>", "[UNK]"]


def trained(model: Any, trainer: Any, *, normalizer: Any = None, pre: Any = None) -> HfTokenizer:
    tokenizer = HfTokenizer(model)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre is not None:
        tokenizer.pre_tokenizer = pre
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([HfAddedToken("  ", normalized=False)])
    tokenizer.add_special_tokens([HfAddedToken("<mask>", lstrip=True)])
    return tokenizer


def options(**more: Any) -> dict[str, Any]:
    specials = ["[UNK]", "<s>", "</s>"]
    return {"vocab_size": 300, "special_tokens": specials, "show_progress": False, **more}


OTHER_KINDS = {
    "wordpiece": lambda: trained(
        models.WordPiece(unk_token="[UNK]"),  # pyright: ignore[reportCallIssue]
        trainers.WordPieceTrainer(**options()),
        normalizer=normalizers.BertNormalizer(),
        pre=pre_tokenizers.BertPreTokenizer(),
    ),
    "unigram": lambda: trained(
        models.Unigram(),
        trainers.UnigramTrainer(**options(unk_token="[UNK]")),
        pre=pre_tokenizers.Metaspace(),
    ),
    "bpe of words": lambda: trained(
        models.BPE(unk_token="[UNK]"),
        trainers.BpeTrainer(**options()),
        pre=pre_tokenizers.Whitespace(),
    ),
    "bpe of text": lambda: trained(
        models.BPE(unk_token="[UNK]"),
        trainers.BpeTrainer(**options(limit_alphabet=12)),
        normalizer=normalizers.Replace(" ", "▁"),
    ),
    "nfkc": lambda: trained(
        models.BPE(),
        trainers.BpeTrainer(**options(initial_alphabet=pre_tokenizers.ByteLevel.alphabet())),
        normalizer=normalizers.NFKC(),
        pre=pre_tokenizers.ByteLevel(add_prefix_space=False),
    ),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_what_fastokens_does_not_serve_is_encoded_by_the_reference(kind: str):
    reference = OTHER_KINDS[kind]()
    tokenizer = load_definition(reference.to_str().encode(), "tokenizer.json")
    assert tokenizer.encoder == "tokenizers"
    for allow_special in (False, True, False):
        reference.encode_special_tokens = not allow_special
        for text in TEXTS + (SPECIAL_TEXTS if allow_special else []):
            expected = reference.encode(text, add_special_tokens=False).ids
            assert tokenizer.encode(text, allow_special=allow_special) == expected
    assert tokenizer.num_ids == reference.get_vocab_size(with_added_tokens=True)


def test_sentencepiece_style_bpe_is_served_by_fastokens_where_it_is_exact(
    sentencepiece_like: MakeJson,
):
    content = sentencepiece_like()
    tokenizer = load_definition(json.dumps(content).encode(), "tokenizer.json")
    reference = HfTokenizer.from_str(json.dumps(content))
    assert tokenizer.encoder == "fastokens"
    for text in ("ab abz", "é<s>a", "</s>", "日 x", "  a  ", "<0x0A>", "Q"):
        reference.encode_special_tokens = True
        assert tokenizer.encode(text) == reference.encode(text).ids
        reference.encode_special_tokens = False
        assert tokenizer.encode(text, allow_special=True) == reference.encode(text).ids


def test_a_character_that_is_no_token_sends_bpe_to_the_reference(sentencepiece_like: MakeJson):
    """fastokens finds "abz" in a text although no merge leads there, if "z" is no token itself."""
    content = sentencepiece_like()
    vocab = {token: i for token, i in content["model"]["vocab"].items() if token != "z"}
    content["model"]["vocab"] = {token: i for i, token in enumerate(vocab)}
    tokenizer = load_definition(json.dumps(content).encode(), "tokenizer.json")
    assert tokenizer.encoder == "tokenizers"
    expected = HfTokenizer.from_str(json.dumps(content)).encode("abz").ids
    assert tokenizer.encode("abz") == expected
    assert len(expected) > 1


@pytest.mark.parametrize("kind", OTHER_KINDS)
@pytest.mark.parametrize("text", SPECIAL_TEXTS)
def test_no_kind_of_model_turns_text_into_a_control_id(kind: str, text: str):
    """The reference does: a Unigram model finds "</s>" in its vocabulary, whatever it is told."""
    reference = OTHER_KINDS[kind]()
    tokenizer = load_definition(reference.to_str().encode(), "tokenizer.json")
    control = {tokenizer.special_tokens[name] for name in ("<s>", "</s>", "<mask>")}
    assert control.isdisjoint(tokenizer.encode(text))
    if text != "[UNK]":
        assert not control.isdisjoint(tokenizer.encode(text, allow_special=True))
    reference.encode_special_tokens = True
    leaks = not control.isdisjoint(reference.encode(text, add_special_tokens=False).ids)
    assert leaks or kind != "unigram" or "s>" not in text


def test_merges_that_lead_to_a_special_token_do_not_make_text_a_control_id(small_bpe: ByteLevelBpe):
    the = next(i for i, token in small_bpe.tokens.items() if token == b"the")
    added = (AddedToken(id=the, content="the"), AddedToken(id=2256, content="<|endoftext|>"))
    tokenizer = tokenizer_from_bpe(dataclasses.replace(small_bpe, added=added), "t")
    assert tokenizer.encoder == "fastokens"
    plain = tokenizer.encode("the other")
    assert the not in plain
    assert tokenizer.decode(plain) == "the other"
    assert tokenizer.encode("the", allow_special=True) == [the]
    reference = HfTokenizer.from_str(tokenizer.definition.decode())
    reference.encode_special_tokens = True
    assert reference.encode("the").ids == [the]


def test_a_special_word_of_byte_level_bpe_stays_text(small_bpe: ByteLevelBpe):
    bpe = dataclasses.replace(
        small_bpe, ignore_merges=True, added=special_tokens({"zqx": 2256, "far": 4000})
    )
    tokenizer = tokenizer_from_bpe(bpe, "t")
    assert tokenizer.encoder == "fastokens"
    assert 2256 not in tokenizer.encode("zqx zqx")
    assert tokenizer.encode("zqxfar", allow_special=True) == [2256, 4000]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"type": "Unigram"}, "Unigram"),
        ({"end_of_word_suffix": "</w>"}, "parts of words"),
        ({"byte_fallback": False, "unk_token": None}, "no ids"),
        ({"vocab": {"a": 0, "b": 2}}, "unused"),
    ],
)
def test_the_reason_against_fastokens_is_named(
    change: dict[str, Any], reason: str | None, sentencepiece_like: MakeJson
):
    content = sentencepiece_like(**change)
    content["added_tokens"] = []
    found = why_not_fastokens(read_tokenizer_json(json.dumps(content).encode(), "t"))
    assert found == reason if reason is None else reason in str(found)


def test_a_byte_without_a_token_sends_byte_level_bpe_to_the_reference(small_bpe: ByteLevelBpe):
    content = json.loads(write_tokenizer_json(small_bpe))
    assert why_not_fastokens(read_tokenizer_json(json.dumps(content).encode(), "t")) is None
    del content["model"]["vocab"]["ÿ"]
    found = why_not_fastokens(read_tokenizer_json(json.dumps(content).encode(), "t"))
    assert found == "a byte has no token"


def test_non_special_added_tokens_always_match_and_special_ones_on_demand(small_bpe: ByteLevelBpe):
    content = json.loads(write_tokenizer_json(small_bpe))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    content["added_tokens"].append({"id": 2257, "content": "    ", "special": False, **flags})
    for normalizer in (None, {"type": "NFKC"}):
        data = json.dumps({**content, "normalizer": normalizer}).encode()
        tokenizer = load_definition(data, "tokenizer.json")
        text = "x    y<|endoftext|>"
        assert 2257 in tokenizer.encode(text)
        assert 2256 not in tokenizer.encode(text)
        assert {2256, 2257} <= set(tokenizer.encode(text, allow_special=True))


def test_the_default_tokenizer_loads_no_other_library():
    code = (
        "import os, sys; from tokenmill.tokenizer import load_tokenizer; "
        "load_tokenizer('gpt2').encode('x'); "
        "others = {'tokenizers', 'sentencepiece', 'huggingface_hub', 'tiktoken'}; "
        "print(sorted(others & set(sys.modules)), os.environ['FASTOKENS_BPE_THREADS'])"
    )
    environment = {k: v for k, v in os.environ.items() if k != "FASTOKENS_BPE_THREADS"}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert result.stdout.strip() == "[] 1"


def test_a_choice_of_threads_by_the_user_stands(
    monkeypatch: pytest.MonkeyPatch, small_tokenizer: Tokenizer
):
    monkeypatch.setenv("FASTOKENS_BPE_THREADS", "3")
    load_definition(small_tokenizer.definition, "tokenizer.json")
    assert os.environ["FASTOKENS_BPE_THREADS"] == "3"


def test_a_decoder_that_looks_at_neighbours_is_left_to_the_library():
    reference = OTHER_KINDS["wordpiece"]()
    reference.decoder = decoders.WordPiece()
    tokenizer = load_definition(reference.to_str().encode(), "tokenizer.json")
    ids = tokenizer.encode("the cat sat")
    assert tokenizer.decode(ids) == reference.decode(ids) == "the cat sat"
