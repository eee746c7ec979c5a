"""Every file form loads back in its home library and in tokenmill, with identical ids."""

from __future__ import annotations

import base64
import json
from collections import Counter
from pathlib import Path

import pytest
import tiktoken
import tokenizers

from tokenmill.errors import TokenizerError
from tokenmill.tokenizer import (
    ByteLevelBpe,
    build_bpe,
    byte_level_bpe,
    export,
    load_tokenizer,
    make_counter,
    named_pattern,
    tokenizer_from_bpe,
    train_merges,
)

SAMPLE = "It's the öld house, the 1234 houses aaaaa\n\n  and   the mouse's <|endoftext|> 日本語!"
SPECIALS = ("<|endoftext|>", "<|pad|>", "<söme>")


def trained(pattern: str, *, special_first: bool) -> ByteLevelBpe:
    counter = make_counter(named_pattern(pattern), compiled=False)
    counter.add([SAMPLE, "the house and the mouse " * 5, "öldest houses 123 aaaa"])
    merges = train_merges(counter.take(), 120)
    return build_bpe(merges, SPECIALS, pattern=named_pattern(pattern), special_first=special_first)


def written(bpe: ByteLevelBpe, folder: Path) -> Path:
    for name, data in export(bpe, "all").items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(params=[("gpt2", False), ("gpt2", True), ("gpt4", False), ("o200k", True)])
def bpe(request: pytest.FixtureRequest) -> ByteLevelBpe:
    pattern, special_first = request.param
    return trained(pattern, special_first=special_first)


def test_all_forms_load_back_as_the_same_tokenizer(bpe: ByteLevelBpe, tmp_path: Path):
    folder = written(bpe, tmp_path)
    expected = tokenizer_from_bpe(bpe, "trained")
    specials = dict(expected.special_tokens)
    pattern = bpe.patterns[0]
    loaded = [
        load_tokenizer(folder),
        load_tokenizer(folder / "tokenizer.json"),
        load_tokenizer(vocab=folder / "vocab.json", merges=folder / "merges.txt", pattern=pattern),
        load_tokenizer(folder / "bytes", pattern=pattern),
        load_tokenizer(folder / "tokenizer.tiktoken", pattern=pattern, special_tokens=specials),
    ]
    for tokenizer in loaded:
        assert tokenizer.fingerprint == expected.fingerprint
        assert tokenizer.eos_id == specials["<|endoftext|>"]
        for allow in (False, True):
            ids = tokenizer.encode(SAMPLE, allow_special=allow)
            assert ids == expected.encode(SAMPLE, allow_special=allow)
            assert tokenizer.decode(ids) == SAMPLE


def test_hf_tokenizers_gives_the_same_ids(bpe: ByteLevelBpe, tmp_path: Path):
    folder = written(bpe, tmp_path)
    expected = tokenizer_from_bpe(bpe, "trained").encode(SAMPLE, allow_special=True)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert theirs.encode(SAMPLE).ids == expected
    model = tokenizers.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
    plain = tokenizers.Tokenizer(model)
    plain.pre_tokenizer = theirs.pre_tokenizer
    text = SAMPLE.replace("<|endoftext|>", "")
    assert plain.encode(text).ids == theirs.encode(text).ids


def test_transformers_gives_the_same_ids(tmp_path: Path):
    from transformers import AutoTokenizer, GPT2Tokenizer

    folder = written(trained("gpt4", special_first=False), tmp_path)
    expected = load_tokenizer(folder)
    theirs = AutoTokenizer.from_pretrained(folder)
    assert theirs.encode(SAMPLE) == expected.encode(SAMPLE, allow_special=True)
    assert theirs.decode(theirs.encode(SAMPLE)) == SAMPLE
    assert theirs.eos_token_id == expected.eos_id
    assert len(theirs) == expected.num_ids
    folder = written(trained("gpt2", special_first=False), tmp_path)
    theirs = GPT2Tokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"))
    text = SAMPLE.replace("<|endoftext|>", "")
    assert theirs.encode(text) == load_tokenizer(folder).encode(text)


def test_tiktoken_gives_the_same_ids(bpe: ByteLevelBpe, tmp_path: Path):
    lines = (written(bpe, tmp_path) / "tokenizer.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines}
    theirs = tiktoken.Encoding(
        "trained",
        pat_str=bpe.patterns[0],
        mergeable_ranks=ranks,
        special_tokens={token.content: token.id for token in bpe.added},
    )
    expected = tokenizer_from_bpe(bpe, "trained").encode(SAMPLE, allow_special=True)
    assert theirs.encode(SAMPLE, allowed_special="all") == expected


@pytest.mark.parametrize("special_first", [False, True])
def test_ids_are_laid_out_as_asked(special_first: bool, tmp_path: Path):
    folder = written(trained("gpt2", special_first=special_first), tmp_path)
    vocab = {
        int(i): bytes(v) for i, v in json.loads((folder / "bytes_vocab.json").read_text()).items()
    }
    names = [text.encode() for text in SPECIALS]
    all_bytes = [bytes([byte]) for byte in range(256)]
    first = [*names, *all_bytes] if special_first else [*all_bytes, *names]
    assert [vocab[i] for i in range(256 + len(SPECIALS))] == first
    left, right = (folder / "bytes_merges.txt").read_text().splitlines()[0].split(" ")
    assert vocab[256 + len(SPECIALS)] == bytes.fromhex(left) + bytes.fromhex(right)


def test_gpt2_converts_to_every_form_and_back(tmp_path: Path):
    gpt2 = load_tokenizer("gpt2")
    folder = written(byte_level_bpe(gpt2), tmp_path)
    assert (
        load_tokenizer(vocab=folder / "vocab.json", merges=folder / "merges.txt").fingerprint
        == gpt2.fingerprint
    )
    assert load_tokenizer(folder / "bytes").fingerprint == gpt2.fingerprint
    ranks = load_tokenizer(
        folder / "tokenizer.tiktoken", pattern="gpt2", special_tokens=gpt2.special_tokens
    )
    assert ranks.fingerprint == gpt2.fingerprint


def test_a_form_that_cannot_hold_a_tokenizer_is_refused():
    bpe = trained("gpt2", special_first=False)
    shuffled = ByteLevelBpe(
        tokens=bpe.tokens, merges=bpe.merges[::-1], patterns=bpe.patterns, added=bpe.added
    )
    with pytest.raises(TokenizerError, match="ranks cannot hold"):
        export(shuffled, "tiktoken")
    assert "tokenizer.tiktoken" not in export(shuffled, "all")
    with pytest.raises(TokenizerError, match="unknown form"):
        export(bpe, "sentencepiece")


def test_special_tokens_take_no_part_in_merges():
    counts = Counter(trained("gpt2", special_first=False).tokens.values())
    assert not any(b"|" in token and len(token) > 1 and b"end" in token for token in counts)
