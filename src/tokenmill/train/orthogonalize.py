"""The nearest orthogonal matrices of a stack, by products alone: the heart of Muon.

A matrix G = U S V^T is turned into about U V^T: all directions get the same length. Each step
applies an odd polynomial to the singular values; the five polynomials are those of the Polar
Express (Amsel, Persson, Musco and Gower, 2025), which bring any value of [1e-3, 1] near 1 as fast
as five of degree 5 can. Products are of whole stacks, on CUDA in bfloat16, elsewhere in float32:
CPUs without instructions for bfloat16 would need twenty times as long.
"""

from __future__ import annotations

import torch
from torch import Tensor

POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
"""Factors of X, X X^T X and (X X^T)^2 X in each step."""
SAFETY = 1.02
"""Rounding may lift a singular value above 1, where the first polynomial would let it grow."""
_TINY = 1e-7


def product_dtype(device: torch.device) -> torch.dtype:
    """Return what products are done in on a device."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return a stack (N, rows, columns) with singular values near 1, in `product_dtype`.

    A matrix of zeros stays one.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    source = matrices.mT if is_tall else matrices
    norm = torch.linalg.vector_norm(source, dim=(-2, -1), keepdim=True, dtype=torch.float32)
    x = torch.empty_like(source, dtype=product_dtype(source.device))
    torch.mul(source, 1.0 / (norm * SAFETY + _TINY), out=x)  # one pass, whatever the types
    for a, b, c in POLAR_EXPRESS:
        gram = torch.bmm(x, x.mT)  # (N, m, m), of the shorter side m
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if is_tall else x
