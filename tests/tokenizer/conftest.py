from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from tokenmill.tokenizer import ByteLevelBpe, Tokenizer, load_tokenizer, tokenizer_from_bpe
from tokenmill.tokenizer.bpe import merges_from_ranks, special_tokens
from tokenmill.tokenizer.builtin import gpt2
from tokenmill.tokenizer.patterns import GPT2


@pytest.fixture(scope="session")
def gpt2_bpe() -> ByteLevelBpe:
    return gpt2()


@pytest.fixture(scope="session")
def gpt2_tokenizer() -> Tokenizer:
    return load_tokenizer("gpt2")


@pytest.fixture(scope="session")
def small_bpe(gpt2_bpe: ByteLevelBpe) -> ByteLevelBpe:
    """GPT-2's first 2000 merges: loads at once, and still has words of one and of many tokens."""
    return ByteLevelBpe(
        tokens={token_id: gpt2_bpe.tokens[token_id] for token_id in range(2256)},
        merges=gpt2_bpe.merges[:2000],
        patterns=gpt2_bpe.patterns,
        added=special_tokens({"<|endoftext|>": 2256}),
    )


MIXED = "abeBTsStr1234 \n\r\t\u00a0\u3000'.,!?/-_\x00é\u0301\u017f²日本。，🦙"  # noqa: RUF001


@pytest.fixture(scope="session")
def mixing_bpe() -> ByteLevelBpe:
    """A vocabulary with a token for any two characters of `MIXED`, of whatever kind they are.

    A real vocabulary was trained on words of its own pattern, and so hides where others are cut.
    Here a boundary between words that is missing or too many shows in the ids.
    """
    ranks = {bytes([byte]): byte for byte in range(256)}
    for char in MIXED:
        for stop in range(2, len(char.encode()) + 1):
            ranks.setdefault(char.encode()[:stop], len(ranks))
    for left in MIXED:
        for right in MIXED:
            ranks.setdefault((left + right).encode(), len(ranks))
    merges = merges_from_ranks(ranks)
    assert merges is not None
    return ByteLevelBpe(
        tokens={rank: token for token, rank in ranks.items()}, merges=merges, patterns=(GPT2,)
    )


@pytest.fixture(scope="session")
def small_tokenizer(small_bpe: ByteLevelBpe) -> Tokenizer:
    return tokenizer_from_bpe(small_bpe, "small")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to reach out is a failure of the test, not a caught error."""

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(scope="session")
def sentencepiece_like() -> Callable[..., dict[str, Any]]:
    return _sentencepiece_like


def _sentencepiece_like(**model: Any) -> dict[str, Any]:
    """Return a tokenizer.json as Llama 2 has it, over very few characters."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [*"▁abcéz<>s/xunk0123456789ABCDEF", "ab", "▁a", "abz"]
    vocab = {token: token_id for token_id, token in enumerate(dict.fromkeys(tokens))}
    return {
        "version": "1.0", "truncation": None, "padding": None, "post_processor": None,
        "added_tokens": [
            {"id": i, "content": tokens[i], "special": True, "single_word": False,
             "lstrip": False, "rstrip": False, "normalized": False} for i in range(3)
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True,
            "continuing_subword_prefix": None, "end_of_word_suffix": None, "byte_fallback": True,
            "ignore_merges": False, "vocab": vocab, "merges": ["a b", "▁ a"], **model,
        },
    }  # fmt: skip
