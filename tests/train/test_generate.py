"""Generated text: reproducible, the same with and without a cache, in whole characters."""

from __future__ import annotations

import numpy as np
import pytest
import small_models
import torch

from tokenmill.errors import ConfigError
from tokenmill.tokenizer import (
    AddedToken,
    ByteLevelBpe,
    Tokenizer,
    byte_level_bpe,
    load_tokenizer,
    tokenizer_from_bpe,
)
from tokenmill.train.generate import (
    choose,
    generate_ids,
    probabilities,
    sample,
)
from tokenmill.train.model import GPT
from tokenmill.train.sample_settings import SampleSettings

GREEDY = SampleSettings(temperature=0.0, max_tokens=80)


@pytest.mark.parametrize("core", ["modern", "gpt2"])
@pytest.mark.parametrize("prompt", [[7], list(range(30)), list(range(100))], ids=len)
@pytest.mark.parametrize(
    "settings", [GREEDY, SampleSettings(max_tokens=80, top_k=50, seed=3)], ids=str
)
def test_the_cache_changes_no_token(core: str, prompt: list[int], settings: SampleSettings):
    model = small_models.model(core)
    cached = list(generate_ids(model, prompt, settings=settings))
    plain = list(generate_ids(model, prompt, settings=settings, use_cache=False))
    assert cached == plain
    assert len(cached) == 80
    assert len(set(cached)) > 20 or settings.temperature == 0


def test_a_seed_decides_the_text():
    model = small_models.model()
    texts = [
        list(generate_ids(model, [1], settings=SampleSettings(seed=seed, max_tokens=40)))
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_temperature_zero_takes_the_likeliest():
    model = small_models.model()
    first = next(generate_ids(model, [4, 5], settings=GREEDY))
    logits = model(torch.tensor([[4, 5]]))[0, -1]
    assert first == logits.argmax()


def test_top_k_keeps_the_k_likeliest():
    logits = torch.tensor([1.0, 4.0, 2.0, 3.0])
    found = probabilities(logits, SampleSettings(temperature=1.0, top_k=2))
    expected = torch.softmax(torch.tensor([4.0, 3.0]).double(), dim=0)
    torch.testing.assert_close(found, torch.tensor([0, expected[0], 0, expected[1]]).double())


def test_top_p_keeps_the_fewest_ids_that_reach_it():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    for top_p, kept in [(0.4, 1), (0.5, 1), (0.6, 2), (0.81, 3), (0.99, 4), (1.0, 4)]:
        found = probabilities(logits, SampleSettings(temperature=1.0, top_p=top_p - 1e-6))
        assert int((found > 0).sum()) == kept, top_p
        assert found.sum() == pytest.approx(1.0)
        assert (found[:kept] / found[0]).tolist() == pytest.approx(
            [p / 0.5 for p in (0.5, 0.3, 0.15, 0.05)[:kept]], rel=1e-5
        )


def test_choices_follow_the_probabilities():
    logits = torch.tensor([0.7, 0.2, 0.1]).log()
    rng = torch.Generator().manual_seed(0)
    settings = SampleSettings(temperature=1.0)
    counts = torch.zeros(3)
    for _ in range(2000):
        counts[choose(logits, settings, rng=rng)] += 1
    assert (counts / 2000).tolist() == pytest.approx([0.7, 0.2, 0.1], abs=0.03)


def model_for(tokenizer: Tokenizer) -> GPT:
    return small_models.model(vocab_size=tokenizer.num_ids, width=16, num_layers=1)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """256 ids that are bytes, and one that ends a document."""
    bpe = ByteLevelBpe(
        tokens={i: bytes([i]) for i in range(256)},
        merges=np.zeros((0, 2), dtype=np.uint32),
        added=(AddedToken(id=256, content="<|endoftext|>"),),
        patterns=byte_level_bpe(load_tokenizer("gpt2")).patterns,
    )
    return tokenizer_from_bpe(bpe, "bytes")


def force(ids: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let any model say given ids."""
    coming = iter(ids)
    monkeypatch.setattr("tokenmill.train.generate.choose", lambda *_, **__: next(coming))


def test_pieces_never_cut_a_character(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch):
    text = "héllo 日本 🙂 end"
    model = model_for(tokenizer)
    force([*tokenizer.encode(text), 256, 65], monkeypatch)
    pieces = list(sample(model, tokenizer, "x"))
    assert "".join(pieces) == text
    assert len(pieces) == len(text)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_bytes_that_are_no_character_come_out_marked(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
):
    model = model_for(tokenizer)
    broken = [*b"a\xffb\xf0\x9f"]
    force(broken, monkeypatch)
    settings = SampleSettings(max_tokens=len(broken))
    assert "".join(sample(model, tokenizer, "x", settings=settings)) == bytes(broken).decode(
        errors="replace"
    )


def test_the_end_of_a_document_stops_it_unless_told_otherwise(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
):
    model = model_for(tokenizer)
    script = [*b"ab", 256, *b"cd"]
    force(script, monkeypatch)
    assert "".join(sample(model, tokenizer)) == "ab"
    force(script, monkeypatch)
    settings = SampleSettings(max_tokens=5, stop_at_eos=False)
    assert "".join(sample(model, tokenizer, settings=settings)) == "ab<|endoftext|>cd"


def test_a_model_that_trains_keeps_training(tokenizer: Tokenizer):
    model = model_for(tokenizer).train()
    list(sample(model, tokenizer, "a", settings=SampleSettings(max_tokens=3)))
    assert model.training


def test_a_tokenizer_of_another_model_is_refused(tokenizer: Tokenizer):
    with pytest.raises(ConfigError, match="the tokenizer bytes has 257 ids, but the model has 300"):
        next(sample(small_models.model(), tokenizer))


@pytest.mark.parametrize(
    "changes",
    [{"max_tokens": -1}, {"temperature": -0.1}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}],
    ids=str,
)
def test_settings_out_of_range_are_refused(changes: dict[str, float]):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        SampleSettings(**changes)  # pyright: ignore[reportArgumentType]
