"""A tokenizer's fingerprint: a hash of what it does, not of a name or of the file it came from.

Two tokenizers with the same fingerprint give the same ids for every text and the same text for all
ids. Byte-level BPE is hashed as a value: patterns in their canonical spelling, tokens by id, merges
in order, added tokens. So GPT-2 has one fingerprint whether it was read from tokenizer.json, from
vocab.json and merges.txt, from ranks or from a byte-list vocabulary. Of any other tokenizer.json
everything is hashed that bears on ids or text, in a canonical order: truncation, padding, the
post-processor and offsets do not. A SentencePiece model is hashed as it is. Which tokens open and
close a document (`SpecialIds`) is not part of it: that is a choice, recorded beside it.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np

from tokenmill.tokenizer.bpe import ByteLevelBpe, merges_from_ranks


def fingerprint_byte_level(bpe: ByteLevelBpe) -> str:
    """Return the fingerprint of a byte-level BPE."""
    added = [
        (token.id, token.content, token.special, token.single_word, token.lstrip, token.rstrip)
        for token in bpe.added  # `normalized` has no effect where nothing normalizes
    ]
    header = {
        "kind": "byte-level bpe 1",
        "patterns": bpe.patterns,
        "added": added,
        "ignore_merges": bpe.ignore_merges and not _is_idle(bpe),
        "num_tokens": len(bpe.tokens),
        "num_merges": len(bpe.merges),
    }
    tokens = list(bpe.tokens.values())
    digest = hashlib.sha256(msgspec.json.encode(header))
    digest.update(np.fromiter(bpe.tokens, dtype="<u4", count=len(tokens)).tobytes())
    digest.update(np.fromiter(map(len, tokens), dtype="<u4", count=len(tokens)).tobytes())
    digest.update(b"".join(tokens))
    digest.update(bpe.merges.astype("<u4").tobytes())
    return f"sha256:{digest.hexdigest()}"


def fingerprint_json(data: bytes) -> str:
    """Return the fingerprint of a tokenizer.json that is not plain byte-level BPE."""
    content = msgspec.json.decode(data)
    # a switch that is off and one that is not written are the same
    model = {
        key: value
        for key, value in content["model"].items()
        if not (value is None or value is False or value == "")
    }
    model["merges"] = [
        merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges", [])
    ]
    canonical = {
        "kind": "tokenizer.json 1",
        "model": model,
        "added_tokens": sorted(content.get("added_tokens") or [], key=lambda token: token["id"]),
        **{key: content.get(key) for key in ("normalizer", "pre_tokenizer", "decoder")},
    }
    text = msgspec.json.encode(_without_offsets(canonical), order="sorted")
    return f"sha256:{hashlib.sha256(text).hexdigest()}"


def fingerprint_sentencepiece(data: bytes) -> str:
    """Return the fingerprint of a SentencePiece model file."""
    return f"sha256:{hashlib.sha256(b'sentencepiece 1' + data).hexdigest()}"


def _is_idle(bpe: ByteLevelBpe) -> bool:
    """Tell whether merging alone already turns every word that is a token into that token."""
    if len(bpe.merges) + 256 != len(bpe.tokens):
        return False
    given = [(bpe.tokens[a], bpe.tokens[b]) for a, b in bpe.merges.tolist()]
    in_order = [token for token in bpe.tokens.values() if len(token) == 1]
    in_order += [left + right for left, right in given]
    ranks = {token: rank for rank, token in enumerate(in_order)}
    derived = merges_from_ranks(ranks)
    if derived is None or len(ranks) != len(in_order):
        return False
    return given == [(in_order[a], in_order[b]) for a, b in derived.tolist()]


def _without_offsets(value: Any) -> Any:
    """Drop settings that only say how positions in the text are reported."""
    if isinstance(value, dict):
        return {key: _without_offsets(v) for key, v in value.items() if key != "trim_offsets"}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_without_offsets(item) for item in value]
    return value
