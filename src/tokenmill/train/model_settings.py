"""What a model is, and how it is computed: two sets of settings, because only the first is saved.

Legend of `train/`: B rows of T positions, D width, H heads, V ids of the vocabulary, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tokenmill.errors import ConfigError

VOCAB_MULTIPLE = 128
"""Rows of the embedding and the head are a multiple of this: matrix units like whole tiles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSettings:
    """The shape of a GPT: together with its weights, all that a checkpoint needs to be used."""

    core: Literal["modern", "gpt2"] = "modern"
    """modern: rotary positions, RMS norm, QK-norm, squared ReLU; gpt2: GPT-2 as published."""
    num_layers: int = 12
    """Blocks of attention and feed-forward."""
    num_heads: int = 6
    """Attention heads; width / num_heads of 128 is the fastest on current GPUs."""
    width: int = 768
    """Numbers that represent one token."""
    context_length: int = 1024
    """The longest sequence that the model takes."""
    vocab_size: int = 0
    """Ids that the model knows; 0 takes the number from the data."""
    softcap: float = 15.0
    """Logits stay within plus and minus this, modern core only; 0 switches it off."""
    dropout: float = 0.0
    """Share of activations set to zero while training, gpt2 core only."""

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "width", "context_length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.vocab_size < 0:
            raise ConfigError(
                f"vocab_size must be 0 (from the data) or more, got {self.vocab_size}"
            )
        if self.width % self.num_heads:
            raise ConfigError(
                f"width {self.width} is not divisible by num_heads {self.num_heads}",
                hint="heads share the width equally: try a width of 64 or 128 times num_heads",
            )
        if self.core == "modern" and self.head_width % 2:
            raise ConfigError(
                f"width / num_heads is {self.head_width}, but rotary positions need an even number"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout must be in [0, 1), got {self.dropout}")
        if self.dropout and self.core != "gpt2":
            raise ConfigError("dropout is of the gpt2 core only", hint="set core=gpt2 or dropout=0")
        if self.softcap < 0:
            raise ConfigError(f"softcap must be 0 (off) or more, got {self.softcap}")

    @property
    def head_width(self) -> int:
        """Numbers that represent one token in one head."""
        return self.width // self.num_heads

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding and the head; those past `vocab_size` are never predicted."""
        return _round_up(self.vocab_size, VOCAB_MULTIPLE)

    def for_vocab(self, num_ids: int, *, source: str) -> ModelSettings:
        """Return the settings for data of `num_ids` ids, which `source` names in errors.

        A vocabulary that was asked for may be rounded up to whole 64s or 128s, as 50304 for the
        50257 ids of GPT-2.
        """
        if self.vocab_size == 0:
            return replace(self, vocab_size=num_ids)
        fitting = (num_ids, _round_up(num_ids, 64), _round_up(num_ids, 128))
        if self.vocab_size not in fitting:
            raise ConfigError(
                f"{source} has {num_ids:,} ids, but the model has {self.vocab_size:,}",
                hint="train on data of the model's own tokenizer, or leave vocab_size at 0",
            )
        return self


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeSettings:
    """How a model is computed. Nothing here changes what it learned or how it is saved."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """What matrices are multiplied in; weights and sums are always kept in float32."""
    residual_dtype: Literal["compute", "float32"] = "compute"
    """What the stream between blocks is kept in: as the matrices, or always float32 (slower)."""
    attention: Literal["auto", "flash", "cudnn"] = "auto"
    """The kernel for rows without documents; auto leaves it to torch."""
    document_attention: Literal["auto", "flex", "varlen", "dense"] = "auto"
    """The kernel for document masks; auto is flex on CUDA and a dense mask elsewhere."""
    loss_chunk_tokens: int = 0
    """Compute the logits of this many tokens at a time, to save memory; 0 is all at once."""
    checkpoint_blocks: bool = False
    """Compute blocks again for the gradient instead of keeping their inside: saves memory."""
    float8: bool = False
    """While training, multiply matrices of blocks in 8 bits: on GPUs of capability 8.9 and up."""
    float8_head: bool = False
    """Multiply those of the head in 8 bits, too."""

    def __post_init__(self) -> None:
        if self.loss_chunk_tokens < 0:
            raise ConfigError(
                f"loss_chunk_tokens must be 0 (off) or more, got {self.loss_chunk_tokens}"
            )
        if self.float8_head and not self.float8:
            raise ConfigError("float8_head needs float8", hint="set float8=true as well")
        if self.float8_head and self.loss_chunk_tokens:
            raise ConfigError(
                "float8_head has no loss in chunks",
                hint="set loss_chunk_tokens=0 or float8_head=false",
            )
