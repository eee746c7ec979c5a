"""Small models and data for tests."""

from __future__ import annotations

import torch
from torch import Tensor

from tokenmill.train.model import GPT
from tokenmill.train.model_settings import ComputeSettings, ModelSettings

VOCAB_SIZE = 300  # padded to 384


def settings(core: str = "modern", **changes: object) -> ModelSettings:
    small = {"num_layers": 2, "num_heads": 2, "width": 32, "context_length": 32}
    values = {"core": core, "vocab_size": VOCAB_SIZE, **small, **changes}
    return ModelSettings(**values)  # pyright: ignore[reportArgumentType]


def model(core: str = "modern", *, seed: int = 0, shake: bool = True, **changes: object) -> GPT:
    """Return a small model in float32; shaken, so that no matrix is zero any more."""
    made = GPT(settings(core, **changes), ComputeSettings(), seed=seed)
    if shake:
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for parameter in made.parameters():
                noise = torch.empty(parameter.shape).normal_(generator=generator)
                parameter.add_(0.1 * noise)
    return made


def batch(num_rows: int = 2, length: int = 32, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return ids and labels."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB_SIZE, (num_rows, length + 1), generator=generator)
    return ids[:, :-1], ids[:, 1:]


def gradients(made: GPT) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
    made.zero_grad(set_to_none=True)
    return found
