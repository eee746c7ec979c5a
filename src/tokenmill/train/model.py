"""The GPT: token ids in, logits or a loss out. Two cores share one skeleton.

    ids ─ embedding ─ [ + attention(norm) ─ + feed-forward(norm) ] x L ─ norm ─ head ─ logits

              gpt2, as published                      modern
    place     a learned vector for each position      queries and keys turned by it (RoPE)
    norm      LayerNorm with weight and bias          RMS norm without weights
    queries   as they are                             RMS norm of queries and keys (QK-norm)
    between   GELU (tanh)                             squared ReLU
    biases    everywhere                              nowhere
    head      the embedding                           its own matrix, logits capped softly
    start     0.02, residual ones / sqrt(2 L)         matrices into the stream and head at zero

Weights are float32. In bfloat16, matrices are cast where they are multiplied, inside the graph:
that costs a read of them for each pass, under a percent of a step, and the sums of gradients and
the optimizer stay in float32 without a second copy.

Legend: B rows of T positions, D width, H heads of Dh, V ids, L layers.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812  (what everyone calls it)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tokenmill.errors import ConfigError
from tokenmill.train.attention import (
    Documents,
    KeyValueCache,
    Mask,
    attend,
    document_kernel,
    make_documents,
    make_mask,
)
from tokenmill.train.float8 import float8_linear
from tokenmill.train.loss import cap_logits, chunked_cross_entropy_sum, cross_entropy_sum
from tokenmill.train.model_settings import ComputeSettings, ModelSettings

NORM_EPSILON = {"modern": 1e-6, "gpt2": 1e-5}
ROTARY_BASE = 10_000.0
Rotation = tuple[Tensor, Tensor] | None
"""Cosines and sines of positions, (T, 1, 1, Dh / 2) or (B, T, 1, 1, Dh / 2)."""


class GPT(nn.Module):
    """A GPT whose first weights depend on its settings and the seed alone, whatever the device."""

    def __init__(
        self,
        settings: ModelSettings,
        compute: ComputeSettings | None = None,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if settings.vocab_size == 0:
            raise ConfigError("the model has no vocabulary yet", hint="settings.for_vocab(num_ids)")
        self.settings = settings
        self.compute = compute or ComputeSettings()
        if self.compute.float8 and self.compute.dtype != "bfloat16":
            raise ConfigError(
                f"float8 needs a precision of bfloat16, got {self.compute.dtype}",
                hint="train with --precision bfloat16",
            )
        self.dtype = getattr(torch, self.compute.dtype)
        """What matrices are multiplied in."""
        is_gpt2 = settings.core == "gpt2"
        self.embedding = Table(settings.padded_vocab_size, settings.width)
        self.positions = Table(settings.context_length, settings.width) if is_gpt2 else None
        self.blocks = nn.ModuleList(
            Block(settings, self.compute, layer) for layer in range(settings.num_layers)
        )
        self.norm = make_norm(settings)
        self.head = None
        if not is_gpt2:
            float8 = self.compute.float8_head
            self.head = Linear(settings.width, settings.padded_vocab_size, float8=float8)
        if is_gpt2:
            cosines = sines = torch.empty(0)
        else:
            cosines, sines = rotary_tables(settings)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self.cosines: Tensor
        self.sines: Tensor
        initialize(self, seed=seed)

    def forward(
        self,
        token_ids: Tensor,
        labels: Tensor | None = None,
        *,
        documents: Documents | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return the sum of the losses over `labels`, or the logits (B, T, V) without labels.

        A sum, so that batches, micro-batches and ranks add up: divide by the number of labels that
        are not -100. Logits are float32 and of `vocab_size` ids.

        Args:
            token_ids: (B, T) int64.
            labels: (B, T) int64; -100 is left out.
            documents: Tokens attend only inside their document, and positions start there.
            cache: The tokens come after those in the cache, and are added to it.
        """
        hidden = self.hidden(token_ids, documents=documents, cache=cache).flatten(0, 1)  # (B*T, D)
        vocab_size, softcap = self.settings.vocab_size, self.softcap
        if labels is None:
            logits = cap_logits(self._raw_logits(hidden), softcap=softcap, vocab_size=vocab_size)
            return logits[:, :vocab_size].unflatten(0, token_ids.shape)
        labels = labels.flatten()
        if not self.compute.loss_chunk_tokens:
            logits = self._raw_logits(hidden)
            return cross_entropy_sum(logits, labels, softcap=softcap, vocab_size=vocab_size)
        return chunked_cross_entropy_sum(
            hidden,
            self.head_weight,
            labels,
            softcap=softcap,
            vocab_size=vocab_size,
            chunk_tokens=self.compute.loss_chunk_tokens,
        )

    def hidden(
        self,
        token_ids: Tensor,
        *,
        documents: Documents | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Return what the head reads, (B, T, D)."""
        start = cache.length if cache else 0
        stop = start + token_ids.shape[1]
        assert stop <= self.settings.context_length, "more tokens than context_length"
        mask: Mask = cache.mask(stop - start) if cache else self._mask(documents)
        x = self.embedding(token_ids)  # (B, T, D)
        if self.positions is not None:
            if documents is None:
                x = x + self.positions.weight[start:stop]
            else:
                x = x + self.positions(documents.positions)
        x = x.to(self.dtype if self.compute.residual_dtype == "compute" else torch.float32)
        if self.settings.core == "modern":
            x = rms_norm(x)
        else:
            x = F.dropout(x, self.settings.dropout, self.training)
        rotation = self._rotation(documents, start, stop)
        for block in self.blocks:
            if self.compute.checkpoint_blocks and self.training:
                x = checkpoint(block, x, mask, rotation, cache, use_reentrant=False)
                assert isinstance(x, Tensor)
            else:
                x = block(x, mask, rotation, cache)
        if cache:
            cache.length = stop
        return self.norm(x).to(self.dtype)

    def make_documents(self, document_ids: Tensor, position_ids: Tensor) -> Documents:
        """Return the documents of a batch as this model takes them, on the tensors' device.

        Call it outside of a compiled graph.
        """
        return make_documents(document_ids, position_ids, kernel=self._document_kernel())

    @property
    def head_weight(self) -> Tensor:
        """The matrix from the last layer to logits, (V padded, D): gpt2's is the embedding."""
        return self.embedding.weight if self.head is None else self.head.weight

    @property
    def softcap(self) -> float:
        """The bound of the logits, 0 without one."""
        return self.settings.softcap if self.settings.core == "modern" else 0.0

    def num_parameters(self) -> int:
        """Return how many numbers are trained; a tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _raw_logits(self, hidden: Tensor) -> Tensor:
        if self.head is not None:
            return self.head(hidden)
        if self.compute.float8_head and self.training:
            return float8_linear(hidden, self.embedding.weight)
        return F.linear(hidden, self.embedding.weight.to(hidden.dtype))

    def _document_kernel(self) -> str:
        device = self.embedding.weight.device
        return document_kernel(self.compute, self.settings, device=device)

    def _mask(self, documents: Documents | None) -> Mask:
        return None if documents is None else make_mask(documents, kernel=self._document_kernel())

    def _rotation(self, documents: Documents | None, start: int, stop: int) -> Rotation:
        if self.settings.core == "gpt2":
            return None
        if documents is None:
            return self.cosines[start:stop], self.sines[start:stop]
        return self.cosines[documents.positions], self.sines[documents.positions]


class Block(nn.Module):
    """One layer: attention and feed-forward, each added to what came in."""

    def __init__(self, settings: ModelSettings, compute: ComputeSettings, layer: int) -> None:
        super().__init__()
        self.attention_norm = make_norm(settings)
        self.attention = Attention(settings, compute, layer)
        self.feed_forward_norm = make_norm(settings)
        self.feed_forward = FeedForward(settings, compute)

    def forward(
        self, x: Tensor, mask: Mask, rotation: Rotation, cache: KeyValueCache | None
    ) -> Tensor:
        """Return the stream (B, T, D) after this layer."""
        x = x + self.attention(self.attention_norm(x), mask, rotation, cache)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Attention(nn.Module):
    """Attention with queries, keys and values from one matrix."""

    def __init__(self, settings: ModelSettings, compute: ComputeSettings, layer: int) -> None:
        super().__init__()
        width, bias = settings.width, settings.core == "gpt2"
        self.settings = settings
        self.kernel = compute.attention
        self.dtype = getattr(torch, compute.dtype)
        self.layer = layer
        self.qkv = Linear(width, 3 * width, bias=bias, float8=compute.float8)
        self.out = Linear(width, width, bias=bias, float8=compute.float8)

    def forward(
        self, x: Tensor, mask: Mask, rotation: Rotation, cache: KeyValueCache | None
    ) -> Tensor:
        """Return what attention adds to the stream."""
        heads = (3, self.settings.num_heads, self.settings.head_width)
        qkv = self.qkv(x.to(self.dtype)).unflatten(-1, heads)  # (B, T, 3, H, Dh)
        q, k, v = qkv.unbind(2)
        if rotation is not None:
            q, k = turn_and_norm(qkv[:, :, :2], rotation).unbind(2)
        if cache is not None:
            k, v = cache.extend(self.layer, k, v)
        dropout = self.settings.dropout if self.training else 0.0
        attended = attend(q, k, v, mask=mask, kernel=self.kernel, dropout=dropout)
        return F.dropout(self.out(attended), dropout, self.training)


class FeedForward(nn.Module):
    """Two matrices with a bend between them, for each token alone."""

    def __init__(self, settings: ModelSettings, compute: ComputeSettings) -> None:
        super().__init__()
        width, bias = settings.width, settings.core == "gpt2"
        self.core = settings.core
        self.dropout = settings.dropout
        self.dtype = getattr(torch, compute.dtype)
        self.up = Linear(width, 4 * width, bias=bias, float8=compute.float8)
        self.down = Linear(4 * width, width, bias=bias, float8=compute.float8)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the feed-forward adds to the stream."""
        x = self.up(x.to(self.dtype))
        x = F.gelu(x, approximate="tanh") if self.core == "gpt2" else F.relu(x).square()
        return F.dropout(self.down(x), self.dropout, self.training)


class Linear(nn.Module):
    """A float32 matrix, multiplied in the precision of its input, or in float8 while training."""

    def __init__(
        self, num_inputs: int, num_outputs: int, *, bias: bool = False, float8: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs))
        self.bias = nn.Parameter(torch.empty(num_outputs)) if bias else None
        self.float8 = float8

    def forward(self, x: Tensor) -> Tensor:
        """Return x times the matrix."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.float8 and self.training:
            return float8_linear(x, self.weight, bias)
        return F.linear(x, self.weight.to(x.dtype), bias)


class Table(nn.Module):
    """A vector for each id; read in float32, so that the gradients of an id add up exactly."""

    def __init__(self, num_ids: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_ids, width))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the vectors of ids."""
        return F.embedding(ids, self.weight)


class RMSNorm(nn.Module):
    """The norm of the modern core: it has no weights, since a matrix follows."""

    def forward(self, x: Tensor) -> Tensor:
        """Return vectors of length sqrt(D)."""
        return rms_norm(x)


def make_norm(settings: ModelSettings) -> nn.Module:
    """Return the norm of a core."""
    if settings.core == "modern":
        return RMSNorm()
    return LayerNorm(settings.width)


class LayerNorm(nn.Module):
    """The norm of GPT-2, with its weights in float32 whatever comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return vectors of mean 0 and variance 1, weighted and moved."""
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        return F.layer_norm(x, weight.shape, weight, bias, NORM_EPSILON["gpt2"])


def rms_norm(x: Tensor) -> Tensor:
    """Return vectors scaled to a mean square of 1, in the precision in which they came."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPSILON["modern"])
    return (wide * scale).to(x.dtype)


def turn_and_norm(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn queries and keys (B, T, 2, H, Dh) by the angles of their position, and norm them.

    Pairs are of one number from each half. Turning changes no length, so the norm is read off
    before; in float32, since a compiler makes one pass of it anyway.
    """
    cosine, sine = rotation
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPSILON["modern"])
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat([first * cosine + second * sine, second * cosine - first * sine], dim=-1)
    return (turned * scale).to(x.dtype)


def rotary_tables(settings: ModelSettings) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of all positions, (T, 1, 1, Dh / 2), in float32."""
    halves = torch.arange(0, settings.head_width, 2, dtype=torch.float32) / settings.head_width
    angles = torch.arange(settings.context_length)[:, None] / ROTARY_BASE**halves
    return angles.cos()[:, None, None], angles.sin()[:, None, None]


def matrix_parts(name: str) -> int:
    """Return how many matrices are stacked in the parameter `name`: queries, keys and values."""
    return 3 if name.endswith("qkv.weight") else 1


@torch.no_grad()
def initialize(model: GPT, *, seed: int) -> None:
    """Give every parameter its first value, from one generator on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            continue  # somebody will load weights into it
        std = _first_std(name, parameter, model.settings)
        if std is None:
            parameter.fill_(1.0)
        elif std == 0.0:
            parameter.zero_()
        else:
            values = torch.empty(parameter.shape).normal_(std=std, generator=generator)
            parameter.copy_(values)


def _first_std(name: str, parameter: Tensor, settings: ModelSettings) -> float | None:
    """Return how far the first values of a parameter spread; None: they are one."""
    if parameter.ndim == 1:
        return None if name.endswith("norm.weight") else 0.0
    into_stream = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
    if settings.core == "gpt2":
        return 0.02 / math.sqrt(2 * settings.num_layers) if into_stream else 0.02
    if name == "embedding.weight":
        return 1.0
    if into_stream or name == "head.weight":
        return 0.0
    return 1.0 / math.sqrt(parameter.shape[1])
