"""Text to ids and back: load a tokenizer from any of its file forms, encode, decode."""

from __future__ import annotations

from tokenmill.tokenizer.bpe import AddedToken, ByteLevelBpe
from tokenmill.tokenizer.load import load_definition, load_tokenizer, tokenizer_from_bpe
from tokenmill.tokenizer.special import SpecialIds
from tokenmill.tokenizer.tokenizer import Tokenizer

__all__ = [
    "AddedToken",
    "ByteLevelBpe",
    "SpecialIds",
    "Tokenizer",
    "load_definition",
    "load_tokenizer",
    "tokenizer_from_bpe",
]
