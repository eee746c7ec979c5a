"""Muon: matrices move by the orthogonal part of their momentum, all of one shape at once.

The momentum is Nesterov's. A step is as long for every matrix of one shape; tall ones move
sqrt(rows / columns) times as far, which keeps the change of their output the same.
"""

# torch._foreach_*: one launch for a list of tensors, what its own optimizers are made of
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from tokenmill.train.optimizer_settings import OptimizerSettings
from tokenmill.train.orthogonalize import orthogonalize, product_dtype
from tokenmill.train.schedule import momentum_warmup
from tokenmill.train.sharded import cut_like, gathered, local_part


class Muon:
    """The optimizer of matrices; a parameter may hold several, stacked by rows."""

    def __init__(
        self,
        parts: Mapping[Tensor, int],
        settings: OptimizerSettings,
        *,
        share_work: bool = False,
    ) -> None:
        self.settings = settings
        self.share_work = share_work
        self.parts = dict(parts)
        """How many matrices each parameter holds."""
        self.momenta = {parameter: torch.zeros_like(parameter) for parameter in parts}
        self._by_shape: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
        for parameter, num_parts in parts.items():
            rows, columns = parameter.shape
            self._by_shape[rows // num_parts, columns].append(parameter)

    @torch.no_grad()
    def step(self, step: int, *, factor: float = 1.0) -> None:
        """Move the matrices; `factor` is the schedule's, `step` counts from 0."""
        settings = self.settings
        momentum = momentum_warmup(
            step,
            start=settings.momentum_start,
            end=settings.momentum,
            num_steps=settings.momentum_warmup_steps,
        )
        lr = settings.matrix_lr * factor
        for (rows, columns), parameters in self._by_shape.items():
            with_gradient = [p for p in parameters if p.grad is not None]
            if not with_gradient:
                continue
            directions = self._directions(with_gradient, (rows, columns), momentum)
            length = max(1.0, rows / columns) ** 0.5
            for parameter, direction in zip(with_gradient, directions, strict=True):
                weight = local_part(parameter)
                if settings.matrix_decay:
                    weight.mul_(1.0 - lr * settings.matrix_decay)
                weight.add_(direction, alpha=-lr * length)

    def _directions(
        self, parameters: list[Tensor], shape: tuple[int, int], momentum: float
    ) -> list[Tensor]:
        """Return the orthogonal directions, or this process's parts of them."""
        gradients = [local_part(p.grad) for p in parameters if p.grad is not None]
        momenta = [local_part(self.momenta[p]) for p in parameters]
        torch._foreach_lerp_(momenta, gradients, 1.0 - momentum)
        ahead = torch._foreach_lerp(gradients, momenta, momentum)  # Nesterov: one step further
        whole = [gathered(a, p) for a, p in zip(ahead, parameters, strict=True)]
        num_parts = [self.parts[p] for p in parameters]
        dtype = product_dtype(whole[0].device)
        stack = whole[0].new_empty((sum(num_parts), *shape), dtype=dtype)
        places = [place.flatten(0, 1) for place in stack.split(num_parts)]
        torch._foreach_copy_(places, whole)
        if self.share_work and dist.is_initialized() and dist.get_world_size() > 1:
            stack = _orthogonalize_together(stack)
        else:
            stack = orthogonalize(stack)
        pieces = zip(stack.split(num_parts), parameters, strict=True)
        return [local_part(cut_like(piece.reshape(p.shape), p)) for piece, p in pieces]


def _orthogonalize_together(stack: Tensor) -> Tensor:
    """Do this process's share of a stack that all have, and exchange the results."""
    world_size, rank = dist.get_world_size(), dist.get_rank()
    share = -(-len(stack) // world_size)
    own = stack.new_zeros((share, *stack.shape[1:]))
    taken = stack[rank * share : (rank + 1) * share]
    own[: len(taken)] = taken
    results = stack.new_empty((world_size * share, *stack.shape[1:]))
    dist.all_gather_into_tensor(results, orthogonalize(own).contiguous())
    return results[: len(stack)]
