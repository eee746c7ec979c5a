"""Muon and AdamW: what they compute, which weights they take, and their state."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import small_models
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tokenmill.errors import ConfigError
from tokenmill.train.model import GPT
from tokenmill.train.muon import Muon
from tokenmill.train.optimizer import Optimizers, make_optimizers
from tokenmill.train.optimizer_settings import OptimizerSettings
from tokenmill.train.orthogonalize import POLAR_EXPRESS, SAFETY, orthogonalize

MUON = OptimizerSettings(momentum_warmup_steps=4)
ADAMW = OptimizerSettings(optimizer="adamw", lr=0.01)


@pytest.mark.parametrize("shape", [(4, 64, 64), (2, 256, 64), (3, 32, 128)])
def test_singular_values_come_near_one(shape: tuple[int, int, int]):
    torch.manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    spread = torch.logspace(-2, 0, u.shape[-1])
    found = orthogonalize(u @ torch.diag(spread) @ v)
    values = torch.linalg.svdvals(found.float())
    assert values.min() > 0.75
    assert values.max() < 1.25
    # the directions stay: U^T X V is near the identity
    inner = u.mT @ found.float() @ v.mT
    assert (torch.diagonal(inner, dim1=-2, dim2=-1) > 0.7).all()


def test_a_matrix_of_zeros_stays_one():
    assert not orthogonalize(torch.zeros(2, 8, 8)).any()


def plain_muon_step(
    weight: Tensor, gradient: Tensor, buffer: Tensor, *, momentum: float, lr: float
) -> None:
    """Muon for one matrix, written down step by step in float32."""
    buffer.mul_(momentum).add_(gradient, alpha=1 - momentum)
    x = (1 - momentum) * gradient + momentum * buffer
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / (x.norm() * SAFETY + 1e-7)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x.T if is_tall else x
    weight.sub_(x, alpha=lr * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5)


def test_stacked_muon_equals_a_plain_one_for_each_matrix():
    torch.manual_seed(0)
    shapes = [(24, 24), (72, 24), (96, 24), (24, 96), (24, 24), (96, 24)]
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    parts: dict[Tensor, int] = {p: 3 if p.shape == (72, 24) else 1 for p in parameters}
    expected = [m.clone() for p in parameters for m in p.detach().chunk(parts[p])]
    buffers = [torch.zeros_like(m) for m in expected]
    settings = OptimizerSettings(momentum=0.9, momentum_start=0.9, lr=0.1)
    muon = Muon(parts, settings)
    for step in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape)
        gradients = [g for p in parameters if p.grad is not None for g in p.grad.chunk(parts[p])]
        for weight, gradient, buffer in zip(expected, gradients, buffers, strict=True):
            plain_muon_step(weight, gradient, buffer, momentum=0.9, lr=0.05)
        muon.step(step, factor=0.5)
    found = [m for p in parameters for m in p.detach().chunk(parts[p])]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_muon_pulls_matrices_towards_zero_if_asked():
    parameter = nn.Parameter(torch.full((4, 4), 2.0))
    parameter.grad = torch.zeros(4, 4)
    Muon({parameter: 1}, OptimizerSettings(lr=0.1, weight_decay=0.5)).step(0)
    torch.testing.assert_close(parameter.detach(), torch.full((4, 4), 1.9))


@pytest.mark.parametrize("core", ["modern", "gpt2"])
def test_every_weight_has_one_optimizer(core: str):
    model = small_models.model(core)
    optimizers = make_optimizers(model, MUON)
    assert optimizers.muon is not None
    by_muon = set(optimizers.muon.momenta)
    by_adamw = [p for group in optimizers.adamw.param_groups for p in group["params"]]
    assert by_muon | set(by_adamw) == set(model.parameters())
    assert len(by_muon) + len(by_adamw) == len(list(model.parameters()))
    names = {name for name, parameter in model.named_parameters() if parameter in by_muon}
    assert all(n.startswith("blocks.") and n.endswith(".weight") and "norm" not in n for n in names)
    assert len(names) == 2 * 4
    parts = {name: optimizers.muon.parts[p] for name, p in model.named_parameters() if p in by_muon}
    assert {name for name, number in parts.items() if number == 3} == {
        f"blocks.{layer}.attention.qkv.weight" for layer in range(2)
    }


def test_only_matrices_decay():
    model = small_models.model("gpt2")
    groups = make_optimizers(model, ADAMW).adamw.param_groups
    for group in groups:
        dimensions = {parameter.ndim for parameter in group["params"]}
        assert dimensions == ({2} if group["weight_decay"] else {1})
        assert group["weight_decay"] in {0.0, 0.1}


def test_learning_rates_beside_muon_scale_with_the_width():
    narrow = make_optimizers(small_models.model(width=48, num_heads=2), MUON).learning_rates()
    assert narrow["muon"] == 0.02
    assert narrow["embedding"] == pytest.approx(0.2 * 4)
    assert narrow["head"] == pytest.approx(0.004 * 4)
    tied = make_optimizers(small_models.model("gpt2", width=48), MUON).learning_rates()
    assert tied["embedding"] == pytest.approx(0.003 * 4)


def train(model: GPT, optimizers: Optimizers, *, start: int, stop: int) -> None:
    for step in range(start, stop):
        ids, labels = small_models.batch(seed=step)
        (model(ids, labels) / labels.numel()).backward()
        optimizers.step(step, factor=1.0 - step / 20)
        optimizers.zero_grad()


@pytest.mark.parametrize("settings", [MUON, ADAMW], ids=lambda s: s.optimizer)
@pytest.mark.parametrize("core", ["modern", "gpt2"])
def test_a_run_that_takes_over_a_state_goes_on_bitwise(core: str, settings: OptimizerSettings):
    model = small_models.model(core)
    optimizers = make_optimizers(model, settings)
    train(model, optimizers, start=0, stop=3)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state = {name: value.clone() for name, value in optimizers.state_dict().items()}
    train(model, optimizers, start=3, stop=6)

    other = small_models.model(core, seed=9)
    other.load_state_dict(weights)
    continued = make_optimizers(other, settings)
    continued.load_state_dict(state)
    train(other, continued, start=3, stop=6)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    later, expected = continued.state_dict(), optimizers.state_dict()
    assert later.keys() == expected.keys()
    assert all(torch.equal(later[name], expected[name]) for name in expected)


def test_a_state_of_something_else_is_refused():
    model = small_models.model()
    muon, adamw = make_optimizers(model, MUON), make_optimizers(model, ADAMW)
    train(model, adamw, start=0, stop=1)
    with pytest.raises(ConfigError, match="for which this model has no place"):
        muon.load_state_dict(adamw.state_dict())
    with pytest.raises(ConfigError, match="for which this model has no place"):
        adamw.load_state_dict(muon.state_dict())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lr": -1.0}, "lr must be at least 0, got -1.0"),
        ({"beta2": 1.0}, "beta2 must be in"),
        ({"momentum": 1.5}, "momentum must be in"),
        ({"weight_decay": -0.1}, "weight_decay"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, float], words: str):
    with pytest.raises(ConfigError, match=words):
        OptimizerSettings(**changes)  # pyright: ignore[reportArgumentType]


def test_processes_that_share_or_cut_the_work_move_the_weights_alike(tmp_path: Path):
    """Two processes: replicated, with Muon's products shared, and with weights cut by FSDP."""
    model = small_models.model()
    train(model, make_optimizers(model, MUON), start=0, stop=3)
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=run_rank, args=(rank, tmp_path), daemon=True) for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
        assert process.exitcode == 0
    for way in ("shared", "cut"):
        for rank in range(2):
            found = torch.load(tmp_path / f"{way}-{rank}.pt", weights_only=True)
            assert found.keys() == model.state_dict().keys()
            for name, value in model.state_dict().items():
                torch.testing.assert_close(found[name], value, rtol=0, atol=2e-3, msg=name)


def run_rank(rank: int, folder: Path) -> None:
    """Train on one of two processes in both ways, and save the weights; checks the state, too."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    shared = small_models.model()
    train(shared, make_optimizers(shared, MUON, share_work=True), start=0, stop=3)
    torch.save(shared.state_dict(), folder / f"shared-{rank}.pt")

    cut = small_models.model()
    for block in cut.blocks:
        fully_shard(block)
    fully_shard(cut)
    optimizers = make_optimizers(cut, MUON)
    train(cut, optimizers, start=0, stop=2)
    state = {
        n: v.full_tensor() if isinstance(v, DTensor) else v
        for n, v in optimizers.state_dict().items()
    }
    optimizers = make_optimizers(cut, MUON)
    optimizers.load_state_dict(state)  # whole tensors into a model that is cut
    train(cut, optimizers, start=2, stop=3)
    whole = {
        n: v.full_tensor() if isinstance(v, DTensor) else v for n, v in cut.state_dict().items()
    }
    torch.save(whole, folder / f"cut-{rank}.pt")
    dist.destroy_process_group()
