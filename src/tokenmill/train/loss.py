"""Cross entropy over the ids of a vocabulary: in one piece, or without ever holding all logits.

Both give the sum over labels in float32; labels of -100 are left out. N tokens, D width, V ids.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (what everyone calls it)
from torch import Tensor

from tokenmill.dataset import IGNORED
from tokenmill.train.fused_loss import can_fuse, fused_cross_entropy_sum


def cap_logits(logits: Tensor, *, softcap: float, vocab_size: int) -> Tensor:
    """Return logits (…, V) in float32, within plus and minus `softcap`, padded ids at -inf."""
    logits = logits.float()
    if softcap:
        # softcap * tanh(logits / softcap), by the function of which GPUs have a fast one
        logits = softcap * (2.0 * torch.sigmoid(logits * (2.0 / softcap)) - 1.0)
    if vocab_size < logits.shape[-1]:
        is_padding = torch.arange(logits.shape[-1], device=logits.device) >= vocab_size
        logits = logits.masked_fill(is_padding, float("-inf"))
    return logits


def cross_entropy_sum(
    logits: Tensor, labels: Tensor, *, softcap: float = 0.0, vocab_size: int
) -> Tensor:
    """Return the summed loss of raw logits (N, V), of any precision, for labels (N,).

    On CUDA by kernels of our own; elsewhere a compiler fuses all of it: the logits are read as they
    are, and nothing of their size is kept in float32.
    """
    if can_fuse(logits):
        return fused_cross_entropy_sum(logits, labels, softcap=softcap, vocab_size=vocab_size)
    capped = cap_logits(logits, softcap=softcap, vocab_size=vocab_size)
    return F.cross_entropy(capped, labels, ignore_index=IGNORED, reduction="sum")


def chunked_cross_entropy_sum(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    softcap: float = 0.0,
    vocab_size: int,
    chunk_tokens: int,
) -> Tensor:
    """Return the summed loss of `hidden @ weight.T` with the logits of few tokens at a time.

    The gradients are computed with the loss, chunk by chunk: no matrix is multiplied twice, and
    what is kept for the backward pass has the size of `hidden` (N, D) and `weight` (V, D).
    """
    if not torch.is_grad_enabled():
        low = weight.to(hidden.dtype)
        parts = zip(hidden.split(chunk_tokens), labels.split(chunk_tokens), strict=True)
        losses = [
            cross_entropy_sum(part @ low.T, wanted, softcap=softcap, vocab_size=vocab_size)
            for part, wanted in parts
        ]
        return torch.stack(losses).sum()
    return _ChunkedLoss.apply(hidden, weight, labels, softcap, vocab_size, chunk_tokens)  # pyright: ignore[reportReturnType]


class _ChunkedLoss(torch.autograd.Function):
    """Loss and gradients of the head, chunk by chunk."""

    @staticmethod
    def forward(  # noqa: PLR0913, PLR0917  (the shape that autograd asks for)
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        softcap: float,
        vocab_size: int,
        chunk_tokens: int,
    ) -> Tensor:
        low = weight.to(hidden.dtype)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_grads = []
        weight_grad = torch.zeros_like(weight, dtype=torch.float32)
        for part, part_labels in zip(
            hidden.split(chunk_tokens), labels.split(chunk_tokens), strict=True
        ):
            loss, logits_grad = _loss_and_gradient(part @ low.T, part_labels, softcap, vocab_size)
            total = total + loss
            hidden_grads.append(logits_grad @ low)
            weight_grad = weight_grad + (logits_grad.T @ part).float()
        ctx.save_for_backward(torch.cat(hidden_grads), weight_grad.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, weight_grad = ctx.saved_tensors
        scale = grad_outputs[0]
        return (
            hidden_grad * scale.to(hidden_grad.dtype),
            weight_grad * scale.to(weight_grad.dtype),
            None,
            None,
            None,
            None,
        )


def _loss_and_gradient(
    logits: Tensor, labels: Tensor, softcap: float, vocab_size: int
) -> tuple[Tensor, Tensor]:
    """Return the summed loss of raw logits and its gradient, which has their precision."""
    capped = cap_logits(logits, softcap=softcap, vocab_size=vocab_size)
    is_label = labels != IGNORED
    places = labels.clamp(min=0)[:, None]
    normalizer = torch.logsumexp(capped, dim=-1, keepdim=True)
    losses = (normalizer - capped.gather(-1, places)).squeeze(-1)
    is_chosen = torch.arange(logits.shape[-1], device=logits.device) == places
    gradient = torch.exp(capped - normalizer) - is_chosen.float()
    if softcap:
        # of tanh: 1 - tanh²; padded ids have a gradient of 0 already, where capped is infinite
        slope = 1.0 - (capped / softcap).square()
        gradient = torch.where(capped.isinf(), 0.0, gradient * slope)
    gradient = gradient * is_label[:, None]
    return torch.where(is_label, losses, 0.0).sum(), gradient.to(logits.dtype)
