"""Attention of each token to those before it: over whole rows, inside documents, and with a cache.

Tensors have their tokens before their heads, (B, T, H, Dh) with Dh = D / H, as matrices give them:
kernels take views of that, so nothing is copied. All of it can be traced into one compiled graph.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (what everyone calls it)
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from tokenmill.dataset.torch import cu_seqlens, document_mask, flex_block_mask
from tokenmill.errors import ConfigError
from tokenmill.train.model_settings import ComputeSettings, ModelSettings

MIN_BOUNDARIES = 64


class Documents(NamedTuple):
    """Which document each token of a batch belongs to, as the loader numbers them."""

    ids: Tensor
    """(B, T) int32: in order within a row, -1 for padding."""
    positions: Tensor
    """(B, T) int32: from 0 in each document."""
    boundaries: Tensor | None = None
    """For varlen: where documents begin in all rows laid end to end; the end is repeated."""


class Boundaries(NamedTuple):
    """The mask of documents as varlen takes it."""

    starts: Tensor
    max_length: int


Mask = Tensor | BlockMask | Boundaries | None
"""Which keys a query sees: dense (B, 1, T, T), in blocks, by boundaries; None is all before it."""


def make_documents(document_ids: Tensor, position_ids: Tensor, *, kernel: str) -> Documents:
    """Return the documents of a batch with what the kernel needs.

    Call it outside of a compiled graph, best on tensors that are still in host memory: the number
    of documents differs from batch to batch, and varlen needs it. It is rounded up to a power of
    two, so that a compiled graph is made few times.
    """
    if kernel != "varlen":
        return Documents(document_ids, position_ids)
    starts = cu_seqlens(document_ids)
    capacity = max(MIN_BOUNDARIES, 1 << (len(starts) - 1).bit_length())
    padded = F.pad(starts, (0, capacity - len(starts)), value=document_ids.numel())
    return Documents(document_ids, position_ids, padded)


def document_kernel(
    compute: ComputeSettings, settings: ModelSettings, *, device: torch.device | str
) -> str:
    """Return the kernel for document masks on a device: flex, varlen or dense."""
    is_cuda = torch.device(device).type == "cuda"
    wanted = compute.document_attention
    if wanted == "auto":
        return "flex" if is_cuda and not settings.dropout else "dense"
    if wanted == "dense":
        return wanted
    if not is_cuda:
        raise ConfigError(
            f"document_attention={wanted} needs a CUDA device, got {device}",
            hint="leave document_attention at auto",
        )
    if settings.dropout:
        raise ConfigError(
            f"document_attention={wanted} has no dropout, but dropout is {settings.dropout}",
            hint="set dropout=0 or document_attention=dense",
        )
    if wanted == "varlen" and _varlen() is None:
        raise ConfigError(
            f"torch {torch.__version__} has no torch.nn.attention.varlen",
            hint="install torch 2.10 or newer, or set document_attention=flex",
        )
    return wanted


def make_mask(documents: Documents | None, *, kernel: str) -> Mask:
    """Return the mask of documents for `attend`; made once, it serves all layers."""
    if documents is None:
        return None
    if kernel == "flex":
        return flex_block_mask(documents.ids)
    if kernel == "varlen":
        assert documents.boundaries is not None, "make_documents was not told the kernel"
        return Boundaries(documents.boundaries, documents.ids.shape[1])
    return document_mask(documents.ids)[:, None]  # (B, 1, T, T)


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Mask, kernel: str = "auto", dropout: float = 0.0
) -> Tensor:
    """Return the attention of q to k and v, all (B, T, H, Dh), as (B, T, D).

    Args:
        kernel: For rows without a mask: auto, flash or cudnn.
    """
    if isinstance(mask, Boundaries):
        return _attend_varlen(q, k, v, mask)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, H, T, Dh), as views
    if isinstance(mask, BlockMask):
        attended = _flex()(q, k, v, block_mask=mask)
    elif mask is not None:
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
    elif kernel == "cudnn" and q.is_cuda:
        attended = torch.ops.aten._scaled_dot_product_cudnn_attention(
            q, k, v, None, torch.is_grad_enabled(), dropout, is_causal=True
        )[0]
    elif kernel == "flash" and q.is_cuda:
        attended = torch.ops.aten._scaled_dot_product_flash_attention(
            q, k, v, dropout, is_causal=True
        )[0]
    else:
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
    return attended.transpose(1, 2).flatten(2)  # (B, T, D)


class KeyValueCache:
    """Keys and values of the tokens that a model has seen, so that the next needs only itself."""

    def __init__(
        self, settings: ModelSettings, *, num_rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = (num_rows, settings.context_length, settings.num_heads, settings.head_width)
        layers = range(settings.num_layers)
        self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in layers]
        self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in layers]
        self.length = 0
        """Tokens seen; the model moves it on after its last layer."""

    def extend(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put the keys and values of new tokens in and return those of all."""
        stop = self.length + k.shape[1]
        self.keys[layer][:, self.length : stop] = k
        self.values[layer][:, self.length : stop] = v
        return self.keys[layer][:, :stop], self.values[layer][:, :stop]

    def mask(self, num_new: int) -> Tensor | None:
        """Return the mask of `num_new` tokens after those seen; None if there are none yet."""
        if self.length == 0:
            return None
        seen = torch.ones(num_new, self.length + num_new, dtype=torch.bool)
        return seen.tril(self.length).to(self.keys[0].device)[None, None]


def _attend_varlen(q: Tensor, k: Tensor, v: Tensor, mask: Boundaries) -> Tensor:
    attention = _varlen()
    assert attention is not None, "document_kernel has checked it"
    length = mask.max_length
    flat = (tensor.flatten(0, 1) for tensor in (q, k, v))  # (B * T, H, Dh)
    attended = attention(*flat, mask.starts, mask.starts, length, length)
    return attended.view(q.shape).flatten(2)


def _flex() -> Callable[..., Any]:
    """Return FlexAttention: itself inside a compiled graph, otherwise compiled alone."""
    return flex_attention if torch.compiler.is_compiling() else _compiled_flex()


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)


@functools.cache
def _varlen() -> Callable[..., Any] | None:
    """Return torch's causal attention over boundaries, or None where torch has none yet."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    is_old = "is_causal" in inspect.signature(varlen_attn).parameters  # torch 2.10
    causal: dict[str, Any] = {"is_causal": True} if is_old else {"window_size": (-1, 0)}
    return functools.partial(varlen_attn, **causal)
