"""From ids back to bytes: a table where tokens are bytes, the library for the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from tokenmill.tokenizer.alphabet import text_to_bytes
from tokenmill.tokenizer.bpe import ByteLevelBpe
from tokenmill.tokenizer.hf_encoder import HfEncoder
from tokenmill.tokenizer.tokenizer_json import TokenizerJson

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Decoder(Protocol):
    """Turns ids into bytes. `KeyError` for an id that is not in the vocabulary."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that an id stands for inside a text."""
        ...

    def decode_bytes(self, ids: list[int]) -> bytes:
        """Return the bytes of the text that the ids stand for."""
        ...


@dataclass(frozen=True)
class TokenTable:
    """Each id stands for its bytes, and a text for those of its ids one after the other."""

    tokens: Mapping[int, bytes]
    opening_space: bool = False
    """The encoder puts one space before a text: it is taken off again."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that an id stands for inside a text."""
        return self.tokens[token_id]

    def decode_bytes(self, ids: list[int]) -> bytes:
        """Return the bytes of the text that the ids stand for."""
        tokens = self.tokens
        joined = b"".join([tokens[token_id] for token_id in ids])
        return joined.removeprefix(b" ") if self.opening_space else joined


class LibraryDecoder:
    """Leaves decoding to HF `tokenizers`, where it depends on neighbours as in WordPiece."""

    def __init__(self, data: bytes, tokens: Mapping[int, str]) -> None:
        self._data = data
        self._tokens = tokens

    @cached_property
    def _library(self) -> HfEncoder:
        return HfEncoder(self._data)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the text of the token, as the vocabulary spells it."""
        return self._tokens[token_id].encode()

    def decode_bytes(self, ids: list[int]) -> bytes:
        """Return the bytes of the text that the ids stand for."""
        unknown = [token_id for token_id in ids if token_id not in self._tokens]
        if unknown:  # the library would pass over it
            raise KeyError(unknown[0])
        return self._library.decode(ids).encode()


def byte_level_decoder(bpe: ByteLevelBpe) -> TokenTable:
    """Return the decoder of a byte-level BPE."""
    return TokenTable({**bpe.tokens, **{token.id: token.content.encode() for token in bpe.added}})


def json_decoder(spec: TokenizerJson, data: bytes) -> Decoder:
    """Return the decoder of a tokenizer.json that is not plain byte-level BPE."""
    steps = spec.decoder or {}
    steps = steps.get("decoders") or [steps]
    kinds = [step.get("type") for step in steps]
    added = {token.id: token.content for token in spec.added_tokens}
    texts = {token_id: text for text, token_id in spec.model.ids.items()} | added
    if kinds == ["ByteLevel"]:
        table = {
            i: text.encode() if i in added else _alphabet_bytes(text) for i, text in texts.items()
        }
        return TokenTable(table)
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _is_space(steps[0]):
        table = {
            i: text.encode() if i in added else _piece_bytes(text) for i, text in texts.items()
        }
        if kinds[3:] == []:
            return TokenTable(table)
        if kinds[3:] == ["Strip"] and _is_one_space(steps[3]):
            return TokenTable(table, opening_space=True)
    return LibraryDecoder(data, texts)


def _alphabet_bytes(text: str) -> bytes:
    try:
        return text_to_bytes(text)
    except UnicodeEncodeError:  # a special token that is in the vocabulary under its own text
        return text.encode()


def _piece_bytes(text: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(text)
    return bytes([int(match[1], 16)]) if match else text.replace("▁", " ").encode()


def _is_space(step: dict[str, Any]) -> bool:
    return step.get("pattern") == {"String": "▁"} and step.get("content") == " "


def _is_one_space(step: dict[str, Any]) -> bool:
    return (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0)
