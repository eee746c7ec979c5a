"""Cross entropy on CUDA in two passes over the logits: one for the loss, one for the gradient.

What a compiler makes of the plain formula reads the logits of a token twice for the loss, and
takes exponentials at each reading: on an H200 that is more than a tenth of a step of GPT-2. Here a
program walks over one token's logits once, with a running maximum, or none where a soft cap bounds
them; nothing but the logits and their gradient is of the size of the vocabulary.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false
# pyright: reportPossiblyUnboundVariable=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokenmill.dataset import IGNORED

try:
    import triton
    from triton import language as tl
except ImportError:  # builds of torch without CUDA come without it
    triton = None

_BLOCK = 4096
_WARPS = 8


def can_fuse(logits: Tensor) -> bool:
    """Tell whether the kernels run on these logits: on CUDA, in rows that lie end to end."""
    return triton is not None and logits.is_cuda and logits.is_contiguous()


def fused_cross_entropy_sum(
    logits: Tensor, labels: Tensor, *, softcap: float, vocab_size: int
) -> Tensor:
    """Return the summed loss of raw logits (N, V) for labels (N,), as `cross_entropy_sum`."""
    total = _FusedLoss.apply(logits, labels, softcap, vocab_size)
    assert isinstance(total, Tensor)
    return total


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, softcap: float, vocab_size: int
    ) -> Tensor:
        num_rows = logits.shape[0]
        losses = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
        normalizers = torch.empty_like(losses)
        _loss_kernel[(num_rows,)](
            logits,
            labels,
            losses,
            normalizers,
            vocab_size,
            num_columns=logits.shape[1],
            softcap=softcap,
            is_capped=softcap > 0,
            ignored=IGNORED,
            block=_BLOCK,
            num_warps=_WARPS,
        )
        ctx.save_for_backward(logits, labels, normalizers)
        ctx.softcap, ctx.vocab_size = softcap, vocab_size
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        logits, labels, normalizers = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        _gradient_kernel[(logits.shape[0],)](
            logits,
            labels,
            normalizers,
            grad_outputs[0],
            gradient,
            ctx.vocab_size,
            num_columns=logits.shape[1],
            softcap=ctx.softcap,
            is_capped=ctx.softcap > 0,
            ignored=IGNORED,
            block=_BLOCK,
            num_warps=_WARPS,
        )
        return gradient, None, None, None


if triton is not None:

    @triton.jit
    def _capped(x, softcap: tl.constexpr):
        """Return softcap * tanh(x / softcap) as one exponential and one division."""
        return softcap - (2.0 * softcap) / (1.0 + tl.exp(x * (2.0 / softcap)))

    @triton.jit
    def _loss_kernel(  # noqa: PLR0913, PLR0917  (what a kernel needs)
        logits,
        labels,
        losses,
        normalizers,
        vocab_size,
        num_columns: tl.constexpr,  # known when compiled: rows are then read 16 bytes at a time
        softcap: tl.constexpr,
        is_capped: tl.constexpr,  # a condition must not be a float
        ignored: tl.constexpr,
        block: tl.constexpr,
    ) -> None:
        """Write the loss of one token, and the logarithm of the sum of its exponentials."""
        row = tl.program_id(0).to(tl.int64)
        label = tl.load(labels + row)
        start = logits + row * num_columns
        columns = tl.arange(0, block)
        # With a cap nothing exceeds it, so it stands in for the maximum.
        highest = softcap if is_capped else float("-inf")
        total = 0.0
        sums = tl.zeros([block], dtype=tl.float32)  # each lane its own, added up at the end
        for first in range(0, num_columns, block):
            places = first + columns
            inside = places < vocab_size
            x = tl.load(start + places, mask=places < num_columns, other=0.0).to(tl.float32)
            x = tl.where(inside, x, float("-inf"))
            if is_capped:
                x = _capped(x, softcap)
                sums += tl.where(inside, tl.exp(x - softcap), 0.0)
            else:
                before = highest
                highest = tl.maximum(highest, tl.max(x))
                total = total * tl.exp(before - highest) + tl.sum(tl.exp(x - highest))
        normalizer = highest + tl.log(total + tl.sum(sums))
        is_label = label != ignored
        chosen = tl.load(start + label, mask=is_label, other=0.0).to(tl.float32)
        if is_capped:
            chosen = _capped(chosen, softcap)
        tl.store(normalizers + row, normalizer)
        tl.store(losses + row, tl.where(is_label, normalizer - chosen, 0.0))

    @triton.jit
    def _gradient_kernel(  # noqa: PLR0913, PLR0917  (what a kernel needs)
        logits,
        labels,
        normalizers,
        scale,
        gradient,
        vocab_size,
        num_columns: tl.constexpr,  # known when compiled: rows are then read 16 bytes at a time
        softcap: tl.constexpr,
        is_capped: tl.constexpr,  # a condition must not be a float
        ignored: tl.constexpr,
        block: tl.constexpr,
    ) -> None:
        """Write the gradient of one token's logits: probabilities, less one at the label."""
        row = tl.program_id(0).to(tl.int64)
        label = tl.load(labels + row)
        normalizer = tl.load(normalizers + row)
        factor = tl.where(label != ignored, tl.load(scale), 0.0)
        columns = tl.arange(0, block)
        for first in range(0, num_columns, block):
            places = first + columns
            inside = places < vocab_size
            at = row * num_columns + places
            x = tl.load(logits + at, mask=places < num_columns, other=0.0).to(tl.float32)
            slope = 1.0
            if is_capped:
                x = _capped(x, softcap)
                slope = 1.0 - x * x * (1.0 / (softcap * softcap))
            share = tl.exp(x - normalizer) - tl.where(places == label, 1.0, 0.0)
            value = tl.where(inside, share * slope * factor, 0.0)
            tl.store(gradient + at, value.to(gradient.dtype.element_ty), mask=places < num_columns)
