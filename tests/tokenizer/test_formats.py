from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tokenmill.errors import TokenizerError
from tokenmill.tokenizer import ByteLevelBpe, Tokenizer, load_tokenizer
from tokenmill.tokenizer.alphabet import bytes_to_text
from tokenmill.tokenizer.tokenizer_json import write_tokenizer_json

TEXT = "It's <|endoftext|> 12345 naïve\n\n\t日本語 🦙\x00 "


def write_gpt2_form(bpe: ByteLevelBpe, vocab: Path, merges: Path, *, newline: str = "\n") -> None:
    texts = {token_id: bytes_to_text(token) for token_id, token in bpe.tokens.items()}
    ids = {text: token_id for token_id, text in texts.items()}
    ids |= {token.content: token.id for token in bpe.added}
    vocab.write_text(json.dumps(ids), encoding="utf-8")
    lines = ["#version: 0.2", *(f"{texts[a]} {texts[b]}" for a, b in bpe.merges.tolist()), ""]
    merges.write_bytes(newline.join(lines).encode())


def write_byte_lists(bpe: ByteLevelBpe, vocab: Path, merges: Path) -> None:
    tokens = {**bpe.tokens, **{token.id: token.content.encode() for token in bpe.added}}
    vocab.write_text(json.dumps({str(i): list(token) for i, token in tokens.items()}))
    pairs = [(bpe.tokens[a], bpe.tokens[b]) for a, b in bpe.merges.tolist()]
    merges.write_text("".join(f"{a.hex()} {b.hex()}\n" for a, b in pairs))


def write_ranks(bpe: ByteLevelBpe, path: Path) -> None:
    lines = [base64.b64encode(token) + b" %d\n" % i for i, token in bpe.tokens.items()]
    path.write_bytes(b"".join(lines))


@pytest.mark.parametrize("form", ["json", "vocab", "vocab-crlf", "encoder", "ranks", "bytes"])
def test_every_form_gives_the_same_tokenizer(
    form: str, tmp_path: Path, small_bpe: ByteLevelBpe, small_tokenizer: Tokenizer
):
    place = tmp_path
    options: dict[str, Any] = {}
    if form == "json":
        (tmp_path / "tokenizer.json").write_bytes(write_tokenizer_json(small_bpe))
    elif form.startswith("vocab"):
        newline = "\r\n" if form == "vocab-crlf" else "\n"
        write_gpt2_form(
            small_bpe, tmp_path / "vocab.json", tmp_path / "merges.txt", newline=newline
        )
    elif form == "encoder":
        write_gpt2_form(small_bpe, tmp_path / "encoder.json", tmp_path / "vocab.bpe")
    elif form == "ranks":
        write_ranks(small_bpe, tmp_path / "mine.tiktoken")
        options = {"pattern": "gpt2", "special_tokens": {"<|endoftext|>": 2256}}
    else:
        write_byte_lists(small_bpe, tmp_path / "my_vocab.json", tmp_path / "my_merges.txt")
        place = tmp_path / "my"
    tokenizer = load_tokenizer(place, **options)
    assert tokenizer.fingerprint == small_tokenizer.fingerprint
    assert tokenizer.encode(TEXT) == small_tokenizer.encode(TEXT)
    assert tokenizer.special_ids == small_tokenizer.special_ids
    assert tokenizer.num_ids == small_tokenizer.num_ids


def test_ranks_of_a_known_name_need_nothing_else(
    tmp_path: Path, gpt2_bpe: ByteLevelBpe, gpt2_tokenizer: Tokenizer
):
    write_ranks(gpt2_bpe, tmp_path / "gpt2.tiktoken")
    tokenizer = load_tokenizer(tmp_path / "gpt2.tiktoken")
    assert tokenizer.fingerprint == gpt2_tokenizer.fingerprint
    assert tokenizer.special_ids == gpt2_tokenizer.special_ids


@pytest.mark.parametrize("specials_first", [True, False])
def test_special_tokens_stand_before_the_bytes_or_after_them(specials_first: bool, tmp_path: Path):
    shift = 2 if specials_first else 0
    special_ids = [0, 1] if specials_first else [256, 257]
    vocab = {str(byte + shift): [byte] for byte in range(256)}
    for token_id, text in zip(special_ids, ("<|endoftext|>", "<|user|>"), strict=True):
        vocab[str(token_id)] = list(text.encode())
    vocab |= {"258": list(b"ab"), "259": list(b"abc"), "260": list(" é".encode())}
    (tmp_path / "t_vocab.json").write_text(json.dumps(vocab))
    merges = [("61", "62"), ("6162", "63"), ("c3", "a9"), ("20", "c3a9")]
    vocab["261"] = list("é".encode())
    (tmp_path / "t_vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "t_merges.txt").write_text("".join(f"{a} {b}\n" for a, b in merges))
    tokenizer = load_tokenizer(tmp_path / "t")
    assert tokenizer.special_tokens == {"<|endoftext|>": special_ids[0], "<|user|>": special_ids[1]}
    assert tokenizer.eos_id == special_ids[0]
    assert tokenizer.encoder == "fastokens"
    assert tokenizer.encode("abc é!") == [259, 260, ord("!") + shift]
    with_control = tokenizer.encode("abc<|endoftext|>", allow_special=True)
    assert with_control == [259, special_ids[0]]
    assert tokenizer.decode(with_control) == "abc<|endoftext|>"


def test_a_special_token_outside_the_alphabet_keeps_its_text(
    tmp_path: Path, small_bpe: ByteLevelBpe
):
    write_gpt2_form(small_bpe, tmp_path / "vocab.json", tmp_path / "merges.txt")
    vocab = json.loads((tmp_path / "vocab.json").read_text())
    vocab |= {"<end of é>": 2257, "<｜日｜>": 2258}  # noqa: RUF001
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.special_tokens["<end of é>"] == 2257
    text = "a<end of é>b<｜日｜>"  # noqa: RUF001
    ids = tokenizer.encode(text, allow_special=True)
    assert ids == [64, 2257, 65, 2258]
    assert tokenizer.decode(ids) == text


def test_ranks_need_a_pattern_unless_their_name_is_known(tmp_path: Path, small_bpe: ByteLevelBpe):
    write_ranks(small_bpe, tmp_path / "mine.tiktoken")
    with pytest.raises(TokenizerError, match="does not say how text is cut") as caught:
        load_tokenizer(tmp_path / "mine.tiktoken")
    assert "pattern" in str(caught.value.hint)
    tokenizer = load_tokenizer(
        tmp_path / "mine.tiktoken", pattern="cl100k_base", special_tokens={"<|endoftext|>": 3000}
    )
    assert tokenizer.encode("12345")[0] == token_id(small_bpe, b"12")
    assert (tokenizer.eos_id, tokenizer.num_ids) == (3000, 3001)
    assert tokenizer.encoder == "fastokens"
    assert tokenizer.encode("<|endoftext|>", allow_special=True) == [3000]


def token_id(bpe: ByteLevelBpe, token: bytes) -> int:
    return next(i for i, found in bpe.tokens.items() if found == token)


def test_a_known_name_on_other_ranks_is_refused(tmp_path: Path, small_bpe: ByteLevelBpe):
    write_ranks(small_bpe, tmp_path / "cl100k_base.tiktoken")
    with pytest.raises(TokenizerError, match="holds 2256 ranks"):
        load_tokenizer(tmp_path / "cl100k_base.tiktoken")


BYTE_LISTS = json.dumps({str(byte): [byte] for byte in range(256)} | {"256": [97, 98]})


@pytest.mark.parametrize(
    ("vocab", "merges", "complaint"),
    [
        (BYTE_LISTS, "61 62 63\n", "line 1 is not two tokens in hex"),
        (BYTE_LISTS, "61 62\nzz 62\n", "line 2"),
        (BYTE_LISTS, "61 63\n", r"b'ac' is not in"),
        (BYTE_LISTS.replace("[97, 98]", "[97, 300]"), "", "byte lists"),
        (BYTE_LISTS.replace("[97, 98]", "[97]"), "", "same bytes"),
        (BYTE_LISTS.replace("[97, 98]", "[255, 254]"), "", "no byte, no result of a merge"),
        (BYTE_LISTS.replace("[1]", "[1, 1]"), "", "1 of the 256"),
        ('{"a": 1.5}', "", "not a vocabulary"),
        ("[1, 2]", "", "not a JSON object"),
        ('{"a": 1, "b": [2]}', "a b\n", "holds both ids and byte lists"),
    ],
)
def test_broken_files_are_named(vocab: str, merges: str, complaint: str, tmp_path: Path):
    (tmp_path / "x_vocab.json").write_text(vocab)
    (tmp_path / "x_merges.txt").write_text(merges)
    with pytest.raises(TokenizerError, match=complaint):
        load_tokenizer(tmp_path / "x_vocab.json")


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (b"IQ== 0\nIg== x\n", "line 2"),
        (b"IQ== 0\n!!!! 1\n", "line 2"),
        (b"IQ== 0\nIg== 0\n", "same rank"),
        (b"IQ== 0\n", "256 single bytes"),
    ],
)
def test_broken_ranks_are_named(lines: bytes, complaint: str, tmp_path: Path):
    (tmp_path / "x.tiktoken").write_bytes(lines)
    with pytest.raises(TokenizerError, match=complaint):
        load_tokenizer(tmp_path / "x.tiktoken", pattern="gpt2")
