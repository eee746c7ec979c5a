"""Which optimizer, and how far it moves each kind of weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokenmill.errors import ConfigError

_NOT_NEGATIVE = ("embedding_lr", "head_lr", "other_lr", "epsilon", "momentum_warmup_steps")
_BELOW_ONE = ("beta1", "beta2", "momentum", "momentum_start")


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSettings:
    """The optimizer and its numbers, for a width of 768; the model's width scales some of them."""

    optimizer: Literal["muon", "adamw"] = "muon"
    """muon: Muon for the matrices of blocks and AdamW for the rest; adamw: AdamW for all."""
    lr: float | None = None
    """The learning rate of the matrices of blocks: 0.02 for muon; of all, 6e-4, for adamw."""
    embedding_lr: float = 0.2
    """Beside Muon: the learning rate of an embedding that is not the head, too."""
    head_lr: float = 0.004
    """Beside Muon: that of the head."""
    other_lr: float = 0.003
    """Beside Muon: that of biases, norms, positions, and of an embedding that is the head, too."""
    beta1: float | None = None
    """How long AdamW remembers gradients: 0.8 beside Muon, 0.9 alone."""
    beta2: float = 0.95
    """How long AdamW remembers their squares."""
    epsilon: float = 1e-10
    """Added to the root of the squares."""
    weight_decay: float | None = None
    """The pull of matrices towards zero, times the learning rate: 0 for muon, 0.1 for adamw."""
    momentum: float = 0.95
    """How long Muon remembers gradients."""
    momentum_start: float = 0.85
    """Muon's momentum at the first step."""
    momentum_warmup_steps: int = 300
    """Steps until Muon's momentum is reached."""

    def __post_init__(self) -> None:
        for name in (*_NOT_NEGATIVE, "lr", "weight_decay"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} must be at least 0, got {value}")
        for name in _BELOW_ONE:
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < 1.0:
                raise ConfigError(f"{name} must be in [0, 1), got {value}")

    @property
    def matrix_lr(self) -> float:
        """The learning rate of the matrices of blocks."""
        default = 0.02 if self.optimizer == "muon" else 6e-4
        return default if self.lr is None else self.lr

    @property
    def matrix_decay(self) -> float:
        """The weight decay of the matrices of blocks."""
        default = 0.0 if self.optimizer == "muon" else 0.1
        return default if self.weight_decay is None else self.weight_decay

    @property
    def betas(self) -> tuple[float, float]:
        """Both betas of AdamW."""
        default = 0.8 if self.optimizer == "muon" else 0.9
        return (default if self.beta1 is None else self.beta1, self.beta2)
