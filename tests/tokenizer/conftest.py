from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from tokenmill.tokenizer import ByteLevelBpe, Tokenizer, load_tokenizer, tokenizer_from_bpe
from tokenmill.tokenizer.bpe import special_tokens
from tokenmill.tokenizer.builtin import gpt2


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
