"""What only a GPU can show: its kernels agree with the plain ones, in one compiled graph.

pytest -m gpu tests/train/test_on_gpu.py
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tokenmill.errors import ConfigError
from tokenmill.train.attention import document_kernel
from tokenmill.train.float8 import check_float8, float8_linear
from tokenmill.train.fused_loss import can_fuse, fused_cross_entropy_sum
from tokenmill.train.loss import cap_logits
from tokenmill.train.model import GPT
from tokenmill.train.model_settings import ComputeSettings, ModelSettings
from tokenmill.train.optimizer import make_optimizers
from tokenmill.train.optimizer_settings import OptimizerSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # a compiler may speak of itself; that is not what is tested here
    pytest.mark.filterwarnings("default"),
]

SETTINGS = ModelSettings(num_layers=2, num_heads=2, width=256, context_length=384, vocab_size=1000)
BFLOAT16 = ComputeSettings(dtype="bfloat16")
ROWS = 4


@pytest.fixture(autouse=True)
def forget_graphs():
    """Let no test run into the limit on how often one function may be compiled."""
    torch._dynamo.reset()


def make_model(compute: ComputeSettings, core: str = "modern") -> GPT:
    settings = dataclasses.replace(SETTINGS, core=core)  # pyright: ignore[reportArgumentType]
    model = GPT(settings, compute)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.03 * torch.empty(parameter.shape).normal_(generator=generator))
    return model.cuda()


def make_batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 1000, (ROWS, 385), generator=generator).cuda()
    return ids[:, :-1], ids[:, 1:]


def make_documents(model: GPT):
    starts = torch.rand(ROWS, 384, generator=torch.Generator().manual_seed(1)) < 0.02
    starts[:, 0] = False
    ids = starts.cumsum(dim=1)
    places = torch.arange(384).expand(ROWS, -1)
    first = torch.where(starts | (places == 0), places, 0).cummax(dim=1).values
    return model.make_documents(ids.int().cuda(), (places - first).int().cuda())


def loss_and_gradients(
    compute: ComputeSettings, *, with_documents: bool, compiled: bool, core: str = "modern"
) -> tuple[float, dict[str, torch.Tensor]]:
    model = make_model(compute, core)
    run = torch.compile(model, fullgraph=True, dynamic=False) if compiled else model
    documents = make_documents(model) if with_documents else None
    loss = run(*make_batch(), documents=documents) / (ROWS * 384)
    loss.backward()
    return loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def assert_alike(
    found: tuple[float, dict[str, torch.Tensor]],
    expected: tuple[float, dict[str, torch.Tensor]],
    *,
    tolerance: float = 0.05,
) -> None:
    assert found[0] == pytest.approx(expected[0], rel=0.01)
    for name, gradient in expected[1].items():
        distance = (found[1][name] - gradient).norm() / gradient.norm()
        assert distance < tolerance, f"{name}: {distance:.3f}"


@pytest.mark.parametrize("core", ["modern", "gpt2"])
@pytest.mark.parametrize("kernel", ["auto", "flash", "cudnn"])
def test_kernels_for_whole_rows_agree_with_float32(kernel: str, core: str):
    expected = loss_and_gradients(
        ComputeSettings(), with_documents=False, compiled=False, core=core
    )
    compute = dataclasses.replace(BFLOAT16, attention=kernel)  # pyright: ignore[reportArgumentType]
    found = loss_and_gradients(compute, with_documents=False, compiled=True, core=core)
    assert_alike(found, expected)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kernel", ["flex", "varlen", "dense"])
def test_kernels_for_documents_agree_with_float32(kernel: str, compiled: bool):
    compute = dataclasses.replace(BFLOAT16, document_attention=kernel)  # pyright: ignore[reportArgumentType]
    try:
        document_kernel(compute, SETTINGS, device="cuda")
    except ConfigError as error:
        pytest.skip(str(error))
    expected = loss_and_gradients(
        ComputeSettings(document_attention="dense"), with_documents=True, compiled=False
    )
    assert_alike(loss_and_gradients(compute, with_documents=True, compiled=compiled), expected)


@pytest.mark.parametrize(
    "changes",
    [
        {"loss_chunk_tokens": 500},
        {"checkpoint_blocks": True},
        {"residual_dtype": "float32"},
        {"float8": True},
        {"float8": True, "float8_head": True},
    ],
    ids=str,
)
def test_ways_to_compute_agree_with_float32(changes: dict[str, object]):
    expected = loss_and_gradients(ComputeSettings(), with_documents=False, compiled=False)
    compute = dataclasses.replace(BFLOAT16, **changes)  # pyright: ignore[reportArgumentType]
    if compute.float8:
        check_float8("cuda")
    found = loss_and_gradients(compute, with_documents=False, compiled=True)
    assert_alike(found, expected, tolerance=0.25 if compute.float8 else 0.05)


@pytest.mark.parametrize("softcap", [0.0, 15.0])
@pytest.mark.parametrize("vocab_size", [5000, 5120])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_fused_loss_is_the_plain_one(softcap: float, vocab_size: int, dtype: torch.dtype):
    torch.manual_seed(0)
    logits = (20 * torch.randn(300, 5120, device="cuda")).to(dtype).requires_grad_()
    labels = torch.randint(0, vocab_size, (300,), device="cuda")
    labels[::7] = -100
    assert can_fuse(logits)
    found = fused_cross_entropy_sum(logits, labels, softcap=softcap, vocab_size=vocab_size)
    (found_gradient,) = torch.autograd.grad(found * 0.25, logits)
    plain = cap_logits(logits, softcap=softcap, vocab_size=vocab_size)
    expected = torch.nn.functional.cross_entropy(plain, labels, reduction="sum")
    (expected_gradient,) = torch.autograd.grad(expected * 0.25, logits)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(found_gradient, expected_gradient, rtol=0.02, atol=2e-5)
    assert not found_gradient[::7].any()
    assert not found_gradient[:, vocab_size:].any()


def test_one_product_in_8_bits_is_close_in_both_directions():
    check_float8("cuda")
    torch.manual_seed(0)
    x = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(96, 128, device="cuda", requires_grad=True)
    gradient = torch.randn(64, 96, device="cuda", dtype=torch.bfloat16)
    found = torch.autograd.grad(float8_linear(x, weight), (x, weight), gradient)
    plain = torch.nn.functional.linear(x, weight.bfloat16())
    expected = torch.autograd.grad(plain, (x, weight), gradient)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() / other.norm() < 0.1


def test_muon_moves_matrices_as_on_the_cpu():
    moved = []
    for device in ("cpu", "cuda"):
        model = GPT(SETTINGS).to(device)
        optimizers = make_optimizers(model, OptimizerSettings())
        generator = torch.Generator().manual_seed(0)
        for parameter in model.parameters():
            noise = torch.empty(parameter.shape).normal_(generator=generator)
            parameter.grad = noise.to(device)
        optimizers.step(0)
        moved.append({name: p.detach().cpu() for name, p in model.named_parameters()})
    for name, expected in moved[0].items():
        torch.testing.assert_close(moved[1][name], expected, rtol=0, atol=2e-3, msg=name)


def test_it_learns_on_the_gpu():
    model = make_model(BFLOAT16)
    run = torch.compile(model, fullgraph=True, dynamic=False)
    optimizers = make_optimizers(model, OptimizerSettings(momentum_warmup_steps=10))
    ids, labels = make_batch()
    losses = []
    for step in range(30):
        loss = run(ids, labels) / labels.numel()
        loss.backward()
        optimizers.step(step)
        optimizers.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]
