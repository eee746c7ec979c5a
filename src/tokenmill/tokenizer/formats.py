"""Readers for the file forms of byte-level BPE other than tokenizer.json.

    vocab.json + merges.txt          {"Ġthe": 262, …} and a line "Ġ t" for each merge; GPT-2's form,
                                     also as encoder.json + vocab.bpe
    name_vocab.json + name_merges.txt  {"262": [32, 116, 104, 101], …} and a line "20 74" in hex
    name.tiktoken                    a line "IHRoZQ== 262" for each token: base64 and its rank

In the first two, a token that is neither a single byte nor the result of a merge can only come from
a match in the raw text: those are the special tokens, wherever their ids are. None of the forms
says how text is cut into words; the caller does.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tokenmill.errors import TokenizerError
from tokenmill.files import storage_error
from tokenmill.tokenizer.alphabet import text_to_bytes
from tokenmill.tokenizer.bpe import (
    AddedToken,
    ByteLevelBpe,
    all_merges,
    merges_from_ranks,
    special_tokens,
)
from tokenmill.tokenizer.patterns import canonical_pattern

_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n?\Z")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; faults name the path."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise storage_error(error, path) from error


def read_vocab_and_merges(
    vocab: Path,
    merges: Path,
    *,
    pattern: str,
    added: Iterable[AddedToken] = (),
) -> ByteLevelBpe:
    """Read a vocabulary and its merges, in GPT-2's form or as byte lists and hex.

    Args:
        pattern: How text is cut into words.
        added: Tokens that other files say to be added ones; the special tokens that the vocabulary
            itself shows are found without.
    """
    content = _read_mapping(vocab)
    in_hex = isinstance(next(iter(content.values()), None), list)
    ids = _byte_list_ids(content, vocab) if in_hex else _text_ids(content, vocab)
    pairs = _read_merges(merges, in_hex=in_hex)
    unknown = next(
        (token for pair in pairs for token in (*pair, b"".join(pair)) if token not in ids), None
    )
    if unknown is not None:
        raise TokenizerError(f"{merges}: the token {unknown!r} is not in {vocab}")
    merged = {left + right for left, right in pairs}
    ordinary = {i: token for token, i in ids.items() if len(token) == 1 or token in merged}
    specials = {token.content: token for token in _special_tokens(content, ordinary, path=vocab)}
    specials |= {token.content: token for token in added}
    return ByteLevelBpe(
        tokens=dict(sorted(ordinary.items())),
        merges=np.array([(ids[a], ids[b]) for a, b in pairs], dtype=np.uint32).reshape(-1, 2),
        patterns=(canonical_pattern(pattern, ids),),
        added=tuple(sorted(specials.values(), key=lambda token: token.id)),
    )


def read_ranks(
    data: bytes,
    path: str | Path,
    *,
    pattern: str,
    specials: Mapping[str, int],
    num_ranks: int | None = None,
) -> ByteLevelBpe:
    """Read the content of a file of ranks.

    Args:
        path: Where the content comes from, for messages.
        pattern: How text is cut into words.
        specials: The special tokens, which the file does not hold.
        num_ranks: How many tokens the file must hold, where that is known.
    """
    ranks = _parse_ranks(data, path)
    if num_ranks is not None and len(ranks) != num_ranks:
        raise TokenizerError(
            f"{path}: holds {len(ranks)} ranks, but the encoding of that name has {num_ranks}",
            hint="rename the file, and give the pattern that it was made with",
        )
    if sum(len(token) == 1 for token in ranks) != 256:  # noqa: PLR2004
        raise TokenizerError(f"{path}: does not hold all 256 single bytes")
    merges = merges_from_ranks(ranks)
    return ByteLevelBpe(
        tokens={rank: token for token, rank in sorted(ranks.items(), key=lambda item: item[1])},
        merges=all_merges(ranks) if merges is None else merges,
        patterns=(canonical_pattern(pattern, ranks),),
        added=special_tokens(specials),
        ignore_merges=merges is None,
    )


def looks_like_ranks(data: bytes) -> bool:
    """Tell whether a file begins as a file of ranks does; Llama 3's `tokenizer.model` is one."""
    return _RANK_LINE.match(data[: data.find(b"\n") + 1]) is not None


def _parse_ranks(data: bytes, path: str | Path) -> dict[bytes, int]:
    """Return the rank of each token in the content of a file of ranks."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            if line.strip():
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TokenizerError(
                f"{path}: line {number} is not a token in base64 and its rank: {line[:60]!r}"
            ) from error
    if len(set(ranks.values())) != len(ranks) or b"" in ranks:
        raise TokenizerError(f"{path}: two tokens have the same rank, or a token is empty")
    return ranks


def _read_mapping(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(read_bytes(path), type=dict[str, int | list[int]])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TokenizerError(f"{path}: not a vocabulary: {error}") from error


def _text_ids(content: Mapping[str, Any], path: Path) -> dict[bytes, int]:
    try:
        ids = {_token_bytes(text): token_id + 0 for text, token_id in content.items()}
    except TypeError as error:
        raise TokenizerError(f"{path}: holds both ids and byte lists") from error
    if len(ids) != len(content):
        raise TokenizerError(f"{path}: two tokens of the vocabulary stand for the same bytes")
    return ids


def _token_bytes(text: str) -> bytes:
    try:
        return text_to_bytes(text)
    except UnicodeEncodeError:  # only a special token can be outside the alphabet
        return text.encode()


def _byte_list_ids(content: Mapping[str, Any], path: Path) -> dict[bytes, int]:
    try:
        ids = {bytes(values): int(token_id) for token_id, values in content.items()}
    except (ValueError, TypeError) as error:
        raise TokenizerError(f"{path}: not a vocabulary of byte lists: {error}") from error
    if len(ids) != len(content):
        raise TokenizerError(f"{path}: two ids of the vocabulary stand for the same bytes")
    return ids


def _special_tokens(
    content: Mapping[str, Any], ordinary: Mapping[int, bytes], *, path: Path
) -> tuple[AddedToken, ...]:
    """Return the tokens that no merge makes; their texts stand in the file as they are."""
    found: dict[str, int] = {}
    for key, value in content.items():
        if isinstance(value, int):
            text, token_id = key, value
        else:
            text, token_id = bytes(value).decode(errors="replace"), int(key)
        if token_id not in ordinary:
            found[text] = token_id
            if "\ufffd" in text:
                raise TokenizerError(
                    f"{path}: the token {token_id} is no byte, no result of a merge and no text"
                )
    return special_tokens(found)


def _read_merges(path: Path, *, in_hex: bool) -> list[tuple[bytes, bytes]]:
    text = read_bytes(path).decode(errors="surrogateescape")
    pairs = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        try:
            left, right = line.split(" ")
            read = bytes.fromhex if in_hex else text_to_bytes
            pairs.append((read(left), read(right)))
        except (ValueError, UnicodeEncodeError) as error:
            kind = "tokens in hex" if in_hex else "tokens"
            raise TokenizerError(
                f"{path}: line {number} is not two {kind}: {line[:60]!r}"
            ) from error
    return pairs
