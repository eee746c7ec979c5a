"""Tensors that FSDP has cut, of which each process holds a part: take, gather, cut again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor, Replicate

if TYPE_CHECKING:
    from torch import Tensor


def local_part(tensor: Tensor) -> Tensor:
    """Return what this process holds of a tensor, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gathered(local: Tensor, like: Tensor) -> Tensor:
    """Return the whole of a tensor that is cut as `like`, from the part of each process."""
    if not isinstance(like, DTensor):
        return local
    mesh, placements = like.device_mesh, like.placements
    cut = DTensor.from_local(
        local, mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return cut.full_tensor()


def cut_like(whole: Tensor, like: Tensor) -> Tensor:
    """Return a tensor that every process holds whole, cut as `like` is."""
    if not isinstance(like, DTensor) or isinstance(whole, DTensor):
        return whole
    mesh = like.device_mesh
    whole = whole.to(like.to_local().device)
    replicated = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return replicated.redistribute(mesh, like.placements)
