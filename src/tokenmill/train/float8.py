"""Matrices multiplied in 8 bits by torch's own scaled product: opt-in, for GPUs that have it.

Each tensor gets one scale, from its largest number, each time it is used. Inputs and weights are
e4m3 (3 bits of precision), gradients e5m2 (2 bits, more range); sums are in float32 and come back
in the precision of the input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tokenmill.errors import ConfigError

MULTIPLE = 16
"""Both sides of a matrix must be divisible by this."""
CAPABILITY = (8, 9)
"""The first compute capability with these products: Ada and Hopper."""
_TINY = 1e-12
_FORWARD = torch.float8_e4m3fn
_GRADIENT = torch.float8_e5m2


def check_float8(device: torch.device | str) -> None:
    """Raise a clear error if a device cannot multiply in 8 bits."""
    device = torch.device(device)
    if device.type != "cuda":
        raise ConfigError(
            f"float8 needs a CUDA device, got {device}", hint="set float8=false on this machine"
        )
    found = torch.cuda.get_device_capability(device)
    if found < CAPABILITY:
        raise ConfigError(
            f"{torch.cuda.get_device_name(device)} has compute capability "
            f"{found[0]}.{found[1]}, but float8 needs {CAPABILITY[0]}.{CAPABILITY[1]}",
            hint="set float8=false on this machine",
        )


def float8_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias` for x (…, K) and weight (N, K), gradients in 8 bits, too."""
    flat = x.flatten(0, -2)
    sides = (*weight.shape, flat.shape[0])
    if any(side % MULTIPLE for side in sides):
        raise ConfigError(
            f"float8 needs sides divisible by {MULTIPLE}, got a matrix {tuple(weight.shape)} "
            f"and {flat.shape[0]} tokens",
            hint="choose another width or batch size, or set float8=false",
        )
    out = _Float8Product.apply(flat, weight)
    assert isinstance(out, Tensor)
    out = out.unflatten(0, x.shape[:-1])
    return out if bias is None else out + bias


class _Float8Product(torch.autograd.Function):
    """x (M, K) times weight (N, K) transposed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        x8, x_scale = quantize(x, _FORWARD)
        weight8, weight_scale = quantize(weight, _FORWARD)
        return _product(x8, weight8.t(), x_scale, weight_scale, x.dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        gradient = grad_outputs[0]
        gradient8, gradient_scale = quantize(gradient, _GRADIENT)
        weight8, weight_scale = quantize(weight, _FORWARD)
        x8, x_scale = quantize(x, _FORWARD)
        # the product wants its left side by rows and its right side by columns
        x_grad = _product(
            gradient8, _by_columns(weight8), gradient_scale, weight_scale, x.dtype, fast=False
        )
        weight_grad = _product(
            gradient8.t().contiguous(),
            _by_columns(x8),
            gradient_scale,
            x_scale,
            x.dtype,
            fast=False,
        )
        return x_grad, weight_grad.to(weight.dtype)


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return a tensor in 8 bits and the factor that it must be multiplied with."""
    largest = torch.finfo(dtype).max
    scale = (x.abs().max().float() / largest).clamp(min=_TINY)
    return (x.float() / scale).clamp(-largest, largest).to(dtype), scale


def _by_columns(x: Tensor) -> Tensor:
    return x.t().contiguous().t()


def _product(
    left: Tensor,
    right: Tensor,
    left_scale: Tensor,
    right_scale: Tensor,
    dtype: torch.dtype,
    *,
    fast: bool,
) -> Tensor:
    return torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
        left,
        right,
        scale_a=left_scale,
        scale_b=right_scale,
        out_dtype=dtype,
        use_fast_accum=fast,
    )
