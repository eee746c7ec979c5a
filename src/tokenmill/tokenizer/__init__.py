"""Text to ids and back: load a tokenizer from any of its file forms, encode, decode."""

from __future__ import annotations

from tokenmill.tokenizer.bpe import AddedToken, ByteLevelBpe
from tokenmill.tokenizer.export import FORMS, byte_level_bpe, export
from tokenmill.tokenizer.load import (
    load_ahead,
    load_definition,
    load_tokenizer,
    tokenizer_from_bpe,
)
from tokenmill.tokenizer.patterns import named_pattern
from tokenmill.tokenizer.special import SpecialIds
from tokenmill.tokenizer.tokenizer import Tokenizer
from tokenmill.tokenizer.train_bpe import Merge, build_bpe, train_merges
from tokenmill.tokenizer.word_counts import WordCounts, add_up, can_compile
from tokenmill.tokenizer.words import WORD_MEMORY, has_fast_counter, make_counter

__all__ = [
    "FORMS",
    "WORD_MEMORY",
    "AddedToken",
    "ByteLevelBpe",
    "Merge",
    "SpecialIds",
    "Tokenizer",
    "WordCounts",
    "add_up",
    "build_bpe",
    "byte_level_bpe",
    "can_compile",
    "export",
    "has_fast_counter",
    "load_ahead",
    "load_definition",
    "load_tokenizer",
    "make_counter",
    "named_pattern",
    "tokenizer_from_bpe",
    "train_merges",
]
