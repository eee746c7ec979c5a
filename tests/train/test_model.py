"""The GPT: its first loss, its documents, its padding, and that it learns."""

from __future__ import annotations

import dataclasses
import math

import pytest
import small_models
import torch

from tokenmill.errors import ConfigError
from tokenmill.train.model import GPT
from tokenmill.train.model_settings import ComputeSettings, ModelSettings
from tokenmill.train.optimizer import make_optimizers
from tokenmill.train.optimizer_settings import OptimizerSettings

CORES = ("modern", "gpt2")


@pytest.mark.parametrize("core", CORES)
def test_a_fresh_model_has_the_loss_of_guessing(core: str):
    model = small_models.model(core, shake=False)
    ids, labels = small_models.batch(8)
    loss = model(ids, labels).item() / labels.numel()
    # GPT-2's first logits have a variance of 0.02² D, which costs half of it
    noise = 0.0 if core == "modern" else 0.02**2 * 32 / 2
    assert loss == pytest.approx(math.log(300) + noise, abs=0.03 if noise else 1e-5)


@pytest.mark.parametrize("core", CORES)
def test_the_first_weights_depend_on_the_seed_alone(core: str):
    first = small_models.model(core, seed=3, shake=False).state_dict()
    torch.manual_seed(17)
    again = small_models.model(core, seed=3, shake=False).state_dict()
    other = small_models.model(core, seed=4, shake=False).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_batch_is_learned_by_heart(core: str, dtype: str):
    compute = ComputeSettings(dtype=dtype)  # pyright: ignore[reportArgumentType]
    model = GPT(small_models.settings(core), compute)
    settings = OptimizerSettings(momentum_warmup_steps=10)
    optimizers = make_optimizers(model, settings)
    ids, labels = small_models.batch(2)
    losses = []
    for step in range(40):
        loss = model(ids, labels) / labels.numel()
        loss.backward()
        optimizers.step(step)
        optimizers.zero_grad()
        losses.append(loss.item())
    assert losses[0] > 5.0
    assert losses[-1] < 0.1


@pytest.mark.parametrize("core", CORES)
def test_documents_of_a_row_have_the_loss_and_gradient_that_they_have_alone(core: str):
    model = small_models.model(core)
    ids, labels = small_models.batch(2)
    lengths = [[10, 1, 21], [32]]
    document_ids = torch.zeros_like(ids, dtype=torch.int32)
    positions = torch.zeros_like(document_ids)
    alone = torch.zeros(())
    for row, parts in enumerate(lengths):
        start = 0
        for number, length in enumerate(parts):
            stop = start + length
            document_ids[row, start:stop] = number
            positions[row, start:stop] = torch.arange(length)
            alone = alone + model(ids[row : row + 1, start:stop], labels[row : row + 1, start:stop])
            start = stop
    alone.backward()
    expected = small_models.gradients(model)
    packed = model(ids, labels, documents=model.make_documents(document_ids, positions))
    packed.backward()
    found = small_models.gradients(model)
    assert packed.item() == pytest.approx(alone.item(), rel=1e-6)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5, msg=name)
    assert model(ids, labels).item() != pytest.approx(alone.item(), rel=1e-4), "masks do nothing"


@pytest.mark.parametrize("core", CORES)
def test_padding_after_a_document_changes_nothing(core: str):
    model = small_models.model(core)
    ids, labels = small_models.batch(1)
    alone = model(ids[:, :20], labels[:, :20])
    document_ids = torch.where(torch.arange(32) < 20, 0, -1)[None].int()
    positions = torch.cat([torch.arange(20), torch.arange(12)])[None].int()
    labels = labels.masked_fill(document_ids < 0, -100)
    padded = model(ids, labels, documents=model.make_documents(document_ids, positions))
    assert padded.item() == pytest.approx(alone.item(), rel=1e-6)


@pytest.mark.parametrize("core", CORES)
def test_a_token_sees_only_what_comes_before_it(core: str):
    model = small_models.model(core)
    ids, _ = small_models.batch(1)
    changed = ids.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 300
    before, after = model(ids), model(changed)
    torch.testing.assert_close(before[:, :20], after[:, :20])
    assert not torch.allclose(before[:, 20:], after[:, 20:])


@pytest.mark.parametrize("core", CORES)
def test_padded_ids_have_no_probability_and_no_gradient(core: str):
    model = small_models.model(core)
    ids, labels = small_models.batch()
    with torch.no_grad():
        model.head_weight[300:] = 50.0  # would win everywhere
    assert model(ids).shape == (2, 32, 300)
    loss = model(ids, labels)
    loss.backward()
    logits = model(ids).flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert model.head_weight.grad is not None
    assert not model.head_weight.grad[300:].any()


@pytest.mark.parametrize("core", CORES)
def test_ignored_labels_count_nothing(core: str):
    model = small_models.model(core)
    ids, labels = small_models.batch()
    cut = labels.clone()
    cut[:, 5:] = -100
    expected = model(ids[:, :5], labels[:, :5])
    assert model(ids, cut).item() == pytest.approx(expected.item(), rel=1e-5)
    assert model(ids, torch.full_like(labels, -100)).item() == 0.0


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    "changes",
    [
        {"checkpoint_blocks": True},
        {"loss_chunk_tokens": 20},
        {"residual_dtype": "float32"},
        {"document_attention": "dense"},
    ],
    ids=str,
)
def test_how_it_is_computed_changes_neither_loss_nor_gradient(
    core: str, changes: dict[str, object]
):
    plain = small_models.model(core)
    other = GPT(plain.settings, dataclasses.replace(ComputeSettings(), **changes))  # pyright: ignore[reportArgumentType]
    other.load_state_dict(plain.state_dict())
    ids, labels = small_models.batch()
    losses = []
    for model in (plain, other):
        loss = model(ids, labels)
        loss.backward()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    expected, found = small_models.gradients(plain), small_models.gradients(other)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("core", CORES)
def test_bfloat16_is_close_to_float32_and_keeps_weights_in_float32(core: str):
    exact = small_models.model(core)
    rounded = GPT(exact.settings, ComputeSettings(dtype="bfloat16"))
    rounded.load_state_dict(exact.state_dict())
    ids, labels = small_models.batch()
    loss = rounded(ids, labels)
    loss.backward()
    assert loss.item() == pytest.approx(exact(ids, labels).item(), rel=0.02)
    assert loss.dtype == torch.float32
    assert {gradient.dtype for gradient in small_models.gradients(rounded).values()} == {
        torch.float32
    }


def test_dropout_is_for_training_only():
    model = small_models.model("gpt2", dropout=0.5)
    ids, _ = small_models.batch()
    torch.manual_seed(0)
    assert not torch.equal(model.train()(ids), model(ids))
    assert torch.equal(model.eval()(ids), model(ids))


def test_logits_stay_within_the_cap():
    model = small_models.model("modern", softcap=2.0)
    with torch.no_grad():
        model.head_weight.mul_(100.0)
    ids, _ = small_models.batch()
    assert 1.9 < model(ids).abs().max().item() <= 2.0
    uncapped = small_models.model("modern", softcap=0.0)
    uncapped.load_state_dict(model.state_dict())
    capped = 2.0 * torch.tanh(uncapped(ids) / 2.0)
    torch.testing.assert_close(model(ids), capped, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": 30, "num_heads": 4}, "width 30 is not divisible by num_heads 4"),
        ({"width": 6, "num_heads": 2}, "even number"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"dropout": 0.1}, "gpt2 core only"),
        ({"core": "gpt2", "dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"softcap": -1.0}, "softcap"),
    ],
)
def test_settings_that_make_no_model_are_refused(changes: dict[str, object], words: str):
    with pytest.raises(ConfigError, match=words):
        small_models.settings(**changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss_chunk_tokens": -1}, "loss_chunk_tokens"),
        ({"float8_head": True}, "float8_head needs float8"),
        ({"float8": True, "float8_head": True, "loss_chunk_tokens": 8}, "chunks"),
    ],
)
def test_ways_to_compute_that_do_not_fit_together_are_refused(
    changes: dict[str, object], words: str
):
    with pytest.raises(ConfigError, match=words):
        ComputeSettings(**changes)  # pyright: ignore[reportArgumentType]


def test_float8_is_for_models_in_bfloat16():
    with pytest.raises(ConfigError, match="needs a precision of bfloat16, got float32"):
        GPT(small_models.settings(), ComputeSettings(float8=True))
    GPT(small_models.settings(), ComputeSettings(float8=True, dtype="bfloat16"))


def test_the_vocabulary_comes_from_the_data_or_must_fit_it():
    assert ModelSettings().for_vocab(1000, source="a store").vocab_size == 1000
    asked = ModelSettings(vocab_size=50304)
    assert asked.for_vocab(50257, source="a store") is asked
    with pytest.raises(ConfigError, match="my-store has 32,000 ids, but the model has 50,304"):
        asked.for_vocab(32000, source="my-store")
    with pytest.raises(ConfigError, match="my-store has 50,305 ids"):
        asked.for_vocab(50305, source="my-store")
    with pytest.raises(ConfigError, match="no vocabulary"):
        GPT(ModelSettings())


def test_gpt2_has_the_parameters_of_gpt2():
    with torch.device("meta"):
        model = GPT(ModelSettings(core="gpt2", num_heads=12, vocab_size=50257))
    padding = (50304 - 50257) * 768
    assert model.num_parameters() == 124_439_808 + padding
