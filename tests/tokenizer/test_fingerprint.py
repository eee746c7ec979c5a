from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import msgspec
import numpy as np
import pytest

from tokenmill.tokenizer import AddedToken, ByteLevelBpe, load_definition
from tokenmill.tokenizer.bpe import special_tokens
from tokenmill.tokenizer.fingerprint import fingerprint_byte_level, fingerprint_json
from tokenmill.tokenizer.patterns import CL100K
from tokenmill.tokenizer.tokenizer_json import write_tokenizer_json

EOS = special_tokens({"<|endoftext|>": 2256})


def changed_tokens(bpe: ByteLevelBpe) -> dict[str, Any]:
    return {"tokens": {**bpe.tokens, 2255: b"changed!"}}


def swapped_merges(bpe: ByteLevelBpe) -> dict[str, Any]:
    merges = bpe.merges.copy()
    merges[[10, 11]] = merges[[11, 10]]
    return {"merges": merges}


def moved_id(bpe: ByteLevelBpe) -> dict[str, Any]:
    tokens = dict(bpe.tokens)
    tokens[9999] = tokens.pop(2255)
    return {"tokens": tokens}


@pytest.mark.parametrize(
    "change",
    [
        changed_tokens,
        swapped_merges,
        moved_id,
        lambda bpe: {"merges": bpe.merges[:-1]},
        lambda _: {"patterns": (CL100K,)},
        lambda _: {"added": ()},
        lambda _: {"added": special_tokens({"<|endoftext|>": 2257})},
        lambda _: {"added": special_tokens({"<|end|>": 2256})},
        lambda _: {"added": (AddedToken(id=2256, content="<|endoftext|>", special=False),)},
        lambda _: {"added": (AddedToken(id=2256, content="<|endoftext|>", lstrip=True),)},
    ],
)
def test_every_change_of_behaviour_changes_it(change: Any, small_bpe: ByteLevelBpe):
    other = dataclasses.replace(small_bpe, **change(small_bpe))
    assert fingerprint_byte_level(other) != fingerprint_byte_level(small_bpe)


def test_ignoring_merges_counts_only_where_it_makes_a_difference(small_bpe: ByteLevelBpe):
    idle = dataclasses.replace(small_bpe, ignore_merges=True)
    assert fingerprint_byte_level(idle) == fingerprint_byte_level(small_bpe)
    tokens = {**small_bpe.tokens, 3000: b"unreachable"}
    extended = dataclasses.replace(small_bpe, tokens=tokens)
    matters = dataclasses.replace(extended, ignore_merges=True)
    assert fingerprint_byte_level(matters) != fingerprint_byte_level(extended)
    # as many merges as tokens, but one of them leads away from its token
    shuffled = small_bpe.merges[np.r_[1:2000, 0]]
    extended = dataclasses.replace(small_bpe, merges=shuffled)
    matters = dataclasses.replace(extended, ignore_merges=True)
    assert fingerprint_byte_level(matters) != fingerprint_byte_level(extended)


def same_meaning(content: dict[str, Any]) -> dict[str, Any]:
    other = copy.deepcopy(content)
    vocab = other["model"]["vocab"]
    other["model"]["vocab"] = dict(reversed(vocab.items()))
    other["model"]["merges"] = [merge.split(" ") for merge in other["model"]["merges"]]
    other["truncation"] = {
        "direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    other["post_processor"] = {"type": "ByteLevel", "trim_offsets": False, "add_prefix_space": True}
    other["pre_tokenizer"]["trim_offsets"] = False
    del other["model"]["fuse_unk"], other["model"]["ignore_merges"]
    return other


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}])
def test_what_does_not_bear_on_ids_or_text_leaves_it_as_it_is(
    normalizer: dict[str, str] | None, small_bpe: ByteLevelBpe
):
    content = {**json.loads(write_tokenizer_json(small_bpe)), "normalizer": normalizer}
    first = load_definition(json.dumps(content).encode(), "tokenizer.json")
    second = load_definition(json.dumps(same_meaning(content)).encode(), "tokenizer.json")
    assert first.fingerprint == second.fingerprint
    assert first.definition != second.definition


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFKC"}},
        {"decoder": None},
        {"added_tokens": []},
        {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]]}},
        {"model": {"type": "Unigram", "unk_id": None, "vocab": [["a", -1.0]]}},
        {"model": {"type": "Unigram", "unk_id": 0, "vocab": [["a", -2.0]]}},
    ],
)
def test_every_part_of_another_tokenizer_counts(change: dict[str, Any], small_bpe: ByteLevelBpe):
    content = {**json.loads(write_tokenizer_json(small_bpe)), "normalizer": {"type": "NFC"}}
    unigram = {**content, "model": {"type": "Unigram", "unk_id": 1, "vocab": [["a", -1.0]]}}
    prints = {
        fingerprint_json(json.dumps(c).encode()) for c in (content, unigram, {**content, **change})
    }
    assert len(prints) == 3


@pytest.mark.parametrize("special", [True, False])
def test_an_added_token_that_is_also_a_word_counts_only_where_it_shows(
    special: bool, small_bpe: ByteLevelBpe
):
    """With `ignore_merges` a word that is in the vocabulary gets that id; special ones never do."""
    content = json.loads(write_tokenizer_json(small_bpe))
    content["model"]["ignore_merges"] = True
    token = AddedToken(id=2257, content="zqx", special=special, single_word=True)
    content["added_tokens"].append(msgspec.to_builtins(token))
    apart = load_definition(json.dumps(content).encode(), "tokenizer.json")
    content["model"]["vocab"]["zqx"] = 2257
    within = load_definition(json.dumps(content).encode(), "tokenizer.json")
    assert (apart.encode("zqx_") == within.encode("zqx_")) is special
    assert (apart.fingerprint == within.fingerprint) is special


def test_it_names_its_hash(small_bpe: ByteLevelBpe):
    assert fingerprint_byte_level(small_bpe).startswith("sha256:")
    assert len(fingerprint_byte_level(small_bpe)) == len("sha256:") + 64


def test_gpt2_keeps_its_fingerprint(gpt2_bpe: ByteLevelBpe):
    """Stores record it: a change here makes every store seem to come from another tokenizer."""
    assert fingerprint_byte_level(gpt2_bpe) == (
        "sha256:3bf0cdcb5de93772ad57dd85f03523a1f63d07d3cce2c574187222d8057db908"
    )
