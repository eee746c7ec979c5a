from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as HfTokenizer

from tokenmill.errors import TokenizerError
from tokenmill.tokenizer import ByteLevelBpe, Tokenizer, load_definition
from tokenmill.tokenizer.bpe import special_tokens
from tokenmill.tokenizer.patterns import (
    CJK_RUNS,
    CL100K,
    DEEPSEEK,
    DIGIT_GROUPS,
    EACH_DIGIT,
    GPT2,
)
from tokenmill.tokenizer.tokenizer_json import (
    read_byte_level,
    read_tokenizer_json,
    write_tokenizer_json,
)

SMALL: dict[str, Any] = {
    "added_tokens": [],
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
}


@pytest.fixture(scope="module")
def content(small_bpe: ByteLevelBpe) -> dict[str, Any]:
    return json.loads(write_tokenizer_json(small_bpe))


def load(content: dict[str, Any]) -> Tokenizer:
    return load_definition(json.dumps(content).encode(), "tokenizer.json")


@pytest.mark.parametrize(
    "patterns",
    [(GPT2,), (CL100K,), (EACH_DIGIT, GPT2), (DIGIT_GROUPS, CJK_RUNS, DEEPSEEK), (r"\w+",), ()],
)
def test_what_is_written_is_read_back(patterns: tuple[str, ...], small_bpe: ByteLevelBpe):
    added = special_tokens({"<|endoftext|>": 2256, "<|far|>": 3000})
    written = ByteLevelBpe(
        tokens=small_bpe.tokens, merges=small_bpe.merges, patterns=patterns, added=added
    )
    read = read_byte_level(read_tokenizer_json(write_tokenizer_json(written), "t"))
    assert read is not None
    assert read.tokens == written.tokens
    assert read.merges.tolist() == written.merges.tolist()
    assert (read.patterns, read.added) == (patterns, added)


def test_the_reference_reads_what_we_write_with_the_same_ids_over_holes(small_bpe: ByteLevelBpe):
    added = special_tokens({"<|endoftext|>": 2256, "<|far|>": 3000})
    bpe = ByteLevelBpe(
        tokens=small_bpe.tokens, merges=small_bpe.merges, patterns=(GPT2,), added=added
    )
    reference = HfTokenizer.from_str(write_tokenizer_json(bpe).decode())
    assert reference.encode("a<|far|>b<|endoftext|>").ids == [64, 3000, 65, 2256]


def test_truncation_and_padding_in_the_file_never_touch_a_document(content: dict[str, Any]):
    cut = copy.deepcopy(content)
    cut["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    cut["padding"] = {
        "strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
    }  # fmt: skip
    tokenizers = [load(cut), load({**cut, "normalizer": {"type": "NFKC"}})]
    assert [t.encoder for t in tokenizers] == ["fastokens", "tokenizers"]
    for tokenizer in tokenizers:
        assert tokenizer.encode("one two three four") == [505, 734, 1115, 1440]
        assert tokenizer.encode("one") == [505]


def test_the_post_processor_adds_nothing(content: dict[str, Any]):
    template = copy.deepcopy(content)
    sequence = [
        {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    template["post_processor"] = {
        "type": "TemplateProcessing", "single": sequence, "pair": sequence,
        "special_tokens": {
            "<|endoftext|>": {"id": "<|endoftext|>", "ids": [2256], "tokens": ["<|endoftext|>"]}
        },
    }  # fmt: skip
    reference = HfTokenizer.from_str(json.dumps(template))
    assert reference.encode("one").ids == [2256, 505]
    assert load(template).encode("one") == [505]
    assert load({**template, "normalizer": {"type": "NFKC"}}).encode("one") == [505]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"model": {**SMALL["model"], "dropout": 0.1}}, "dropout is 0.1"),
        ({"model": {**SMALL["model"], "vocab": {}}}, "empty"),
        ({"model": {**SMALL["model"], "vocab": {"a": -1}}}, "below 0"),
        ({"model": {**SMALL["model"], "vocab": {"a": 2**32}}}, "above"),
        ({"model": {**SMALL["model"], "vocab": {"a": "x"}}}, "not a usable"),
        ({"added_tokens": [{"id": 7, "content": "ab"}]}, "'ab' has the id 7 .* but 2"),
        ({"model": {"type": "Magic", "vocab": {"a": 0}}}, "no encoder can load it"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(change: dict[str, Any], complaint: str):
    with pytest.raises(TokenizerError, match=complaint):
        load({**SMALL, **change})


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"model": 3}', b"\xff\xfe", b"[" * 9999]
)
def test_bytes_that_are_no_tokenizer_are_refused(data: bytes):
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_definition(data, "tokenizer.json")


def test_an_added_token_and_an_ordinary_one_cannot_share_a_text(small_bpe: ByteLevelBpe):
    bpe = ByteLevelBpe(
        tokens=small_bpe.tokens,
        merges=small_bpe.merges,
        patterns=(GPT2,),
        added=special_tokens({"the": 3000}),
    )
    with pytest.raises(TokenizerError, match="cannot hold both"):
        write_tokenizer_json(bpe)


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFC"}},
        {"decoder": {"type": "Fuse"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": {"type": "Whitespace"}},
    ],
)
def test_more_than_byte_level_bpe_is_not_taken_for_it(
    change: dict[str, Any], content: dict[str, Any]
):
    spec = read_tokenizer_json(json.dumps({**content, **change}).encode(), "t")
    assert read_byte_level(spec) is None


def test_a_file_of_the_first_years_is_read(content: dict[str, Any], tmp_path: Path):
    old = copy.deepcopy(content)
    del old["model"]["type"], old["model"]["ignore_merges"], old["pre_tokenizer"]["use_regex"]
    old["model"]["merges"] = [merge.split(" ") for merge in old["model"]["merges"]]
    assert load(old).fingerprint == load(content).fingerprint
