"""Text to ids and back: load a tokenizer from any of its file forms, encode, decode."""

from __future__ import annotations

from tokenmill.tokenizer.bpe import AddedToken, ByteLevelBpe
from tokenmill.tokenizer.export import FORMS, byte_level_bpe, export
from tokenmill.tokenizer.load import load_definition, load_tokenizer, tokenizer_from_bpe
from tokenmill.tokenizer.patterns import named_pattern
from tokenmill.tokenizer.special import SpecialIds
from tokenmill.tokenizer.tokenizer import Tokenizer
from tokenmill.tokenizer.train_bpe import Merge, WordCounts, build_bpe, train_merges
from tokenmill.tokenizer.words import WordCounter

__all__ = [
    "FORMS",
    "AddedToken",
    "ByteLevelBpe",
    "Merge",
    "SpecialIds",
    "Tokenizer",
    "WordCounter",
    "WordCounts",
    "build_bpe",
    "byte_level_bpe",
    "export",
    "load_definition",
    "load_tokenizer",
    "named_pattern",
    "tokenizer_from_bpe",
    "train_merges",
]
