"""tokenizer.json, the file form that the encoders load: read it, check it, write it.

A file whose model is plain byte-level BPE is also readable as a `ByteLevelBpe`; whatever else the
form can say (normalizers, Unigram, WordPiece, byte fallback) stays in the form it came in.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import TokenizerError
from tokenmill.tokenizer.alphabet import bytes_to_text, text_to_bytes
from tokenmill.tokenizer.bpe import MAX_ID, AddedToken, ByteLevelBpe
from tokenmill.tokenizer.patterns import COMPLETE_PATTERNS, EACH_DIGIT, GPT2, canonical_pattern

FILE_NAME = "tokenizer.json"


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The part of tokenizer.json that turns words into tokens."""

    type: str = ""
    """Files of before 2020 do not say it; they hold BPE."""
    dropout: float | None = None
    unk_token: str | None = None
    continuing_subword_prefix: str | None = None
    end_of_word_suffix: str | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    ignore_merges: bool = False
    vocab: dict[str, int] | list[tuple[str, float]]
    merges: list[str | tuple[str, str]] = []

    @property
    def is_bpe(self) -> bool:
        """Tell whether words become tokens by merging pairs."""
        return self.type == "BPE" or (not self.type and bool(self.merges))

    @property
    def ids(self) -> dict[str, int]:
        """The id of every token; a Unigram vocabulary is a list in the order of the ids."""
        if isinstance(self.vocab, dict):
            return self.vocab
        return {token: token_id for token_id, (token, _) in enumerate(self.vocab)}


class TokenizerJson(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a tokenizer.json, as far as tokenmill needs to understand it."""

    version: str = "1.0"
    truncation: Any = None
    padding: Any = None
    added_tokens: list[AddedToken] = []
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    post_processor: Any = None
    decoder: dict[str, Any] | None = None
    model: Model

    @property
    def num_ids(self) -> int:
        """The highest id plus one, added tokens included."""
        ids = [*self.model.ids.values(), *(token.id for token in self.added_tokens)]
        return 1 + max(ids, default=-1)


def read_tokenizer_json(data: bytes, path: str) -> TokenizerJson:
    """Parse and check the content of a tokenizer.json; `path` is for messages."""
    try:
        spec = msgspec.json.decode(data, type=TokenizerJson)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TokenizerError(f"{path}: not a usable tokenizer.json: {error}") from error
    ids = spec.model.ids
    if not ids:
        raise TokenizerError(f"{path}: the vocabulary is empty")
    if min(ids.values()) < 0 or spec.num_ids > MAX_ID + 1:
        raise TokenizerError(f"{path}: an id is below 0 or above 2**32 - 1")
    for token in spec.added_tokens:
        if ids.get(token.content, token.id) != token.id:
            raise TokenizerError(
                f"{path}: {token.content!r} has the id {token.id} as an added token, "
                f"but {ids[token.content]} in the vocabulary"
            )
    if spec.model.dropout:
        raise TokenizerError(
            f"{path}: BPE dropout is {spec.model.dropout}, which gives other ids every time",
            hint='set "dropout" to null in the file',
        )
    return spec


def read_byte_level(spec: TokenizerJson) -> ByteLevelBpe | None:
    """Return the byte-level BPE that the file holds, or None if it holds anything more or else."""
    model = spec.model
    plain = (
        model.is_bpe
        and not (model.byte_fallback or model.continuing_subword_prefix or model.end_of_word_suffix)
        and spec.normalizer is None
        and (spec.decoder is None or spec.decoder.get("type") == "ByteLevel")
    )
    if not plain:
        return None
    added = {token.content for token in spec.added_tokens}
    always = {token.content for token in spec.added_tokens if not token.special}
    if model.ignore_merges and not always.isdisjoint(model.ids):
        return None  # such a token can also be a word of its own: more than the value type can say
    try:
        merges, results = _read_merges(model)
        only_added = {text for text in added if len(text) > 1 and text not in results}
        tokens = {i: text_to_bytes(text) for text, i in model.ids.items() if text not in only_added}
        patterns = split_patterns(spec.pre_tokenizer, list(tokens.values()))
        if patterns is None:
            return None
        return ByteLevelBpe(
            tokens=dict(sorted(tokens.items())),
            merges=merges,
            patterns=patterns,
            added=tuple(sorted(spec.added_tokens, key=lambda token: token.id)),
            ignore_merges=model.ignore_merges,
        )
    except (UnicodeEncodeError, KeyError, ValueError, TokenizerError):
        return None  # odd, but the encoders may still know what to do with it


def split_patterns(
    pre_tokenizer: dict[str, Any] | None, tokens: list[bytes]
) -> tuple[str, ...] | None:
    """Return the patterns that a byte-level pre-tokenizer cuts by, or None if it does otherwise."""
    steps = [pre_tokenizer or {}]
    if steps[0].get("type") == "Sequence":
        steps = steps[0].get("pretokenizers", [])
    *splits, last = steps or [{}]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space", True):
        return None
    patterns = [_split_pattern(step, tokens) for step in splits]
    if last.get("use_regex", True):
        patterns.append(GPT2)
    return None if None in patterns else tuple(str(pattern) for pattern in patterns)


def merges_without(merges: list[Any], tokens: Container[str]) -> list[Any]:
    """Return the merges that neither lead to one of the tokens nor start from it."""
    kept = []
    for merge in merges:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        if left not in tokens and right not in tokens and left + right not in tokens:
            kept.append(merge)
    return kept


def byte_level_json(bpe: ByteLevelBpe) -> TokenizerJson:
    """Return a byte-level BPE in the form of tokenizer.json.

    Added tokens are put into the model's vocabulary as well: some readers number them anew
    otherwise, which would move the ids where there are holes.
    """
    texts = {token_id: bytes_to_text(token) for token_id, token in bpe.tokens.items()}
    vocab = {text: token_id for token_id, text in texts.items()}
    for token in bpe.added:
        if vocab.setdefault(token.content, token.id) != token.id:
            raise TokenizerError(
                f"{token.content!r} is an ordinary token (id {vocab[token.content]}) and an added "
                f"token (id {token.id}); tokenizer.json cannot hold both"
            )
    model = Model(
        type="BPE",
        ignore_merges=bpe.ignore_merges,
        vocab=vocab,
        merges=[texts[a] + " " + texts[b] for a, b in bpe.merges.tolist()],
    )
    return TokenizerJson(
        added_tokens=list(bpe.added),
        pre_tokenizer=write_pre_tokenizer(bpe.patterns),
        decoder=byte_level_step(use_regex=True),
        model=model,
    )


def write_tokenizer_json(bpe: ByteLevelBpe) -> bytes:
    """Return the content of a tokenizer.json that holds a byte-level BPE."""
    return msgspec.json.encode(byte_level_json(bpe))


def _split_pattern(step: dict[str, Any], tokens: list[bytes]) -> str | None:
    if step.get("type") == "Digits" and step.get("individual_digits"):
        return EACH_DIGIT
    regex = step.get("pattern", {}).get("Regex")
    # "remove everything that does not match" is the same, for patterns that leave nothing out
    isolated = step.get("behavior") == "Isolated" and not step.get("invert")
    removed = step.get("behavior") == "Removed" and step.get("invert")
    if step.get("type") != "Split" or not isinstance(regex, str) or not (isolated or removed):
        return None
    pattern = canonical_pattern(regex, tokens)
    return pattern if isolated or pattern in COMPLETE_PATTERNS else None


def _read_merges(model: Model) -> tuple[NDArray[np.uint32], set[str]]:
    """Return the merges as pairs of ids, and the tokens that they result in."""
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model.merges]
    results = {left + right for left, right in pairs}
    ids = model.ids
    if not results <= ids.keys():
        raise ValueError("a merge results in something that is not in the vocabulary")
    merges = np.array([ids[token] for pair in pairs for token in pair], dtype=np.uint32)
    return merges.reshape(-1, 2), results


def write_pre_tokenizer(patterns: tuple[str, ...]) -> dict[str, Any]:
    """Return the pre-tokenizer that cuts text by patterns and writes bytes as letters."""
    *splits, last = patterns or ("",)
    if last and last != GPT2:
        splits.append(last)
    last_step = byte_level_step(use_regex=last == GPT2)
    if not splits:
        return last_step
    steps = [split_step(split) for split in splits]
    return {"type": "Sequence", "pretokenizers": [*steps, last_step]}


def split_step(pattern: str) -> dict[str, Any]:
    """Return the step of a pre-tokenizer that sets the matches of a pattern apart."""
    regex = {"Regex": pattern}
    return {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}


def byte_level_step(*, use_regex: bool) -> dict[str, Any]:
    """Return the step of a pre-tokenizer, or the decoder, that writes bytes as letters."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }
