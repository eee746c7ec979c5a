"""The learning rate over a run: pure functions of the step, so there is nothing to save."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tokenmill.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """How the learning rate rises and falls between the first step and the last."""

    shape: Literal["trapezoid", "cosine", "linear", "constant"] = "trapezoid"
    """After warm-up: level and then down in a line, half a cosine, a line, or level."""
    warmup_steps: int = 0
    """Steps of rising from almost 0 to 1, in a line."""
    cooldown_share: float = 0.4
    """The share of all steps in which a trapezoid falls."""
    final_factor: float = 0.0
    """Where it ends, as a share of the peak."""

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ConfigError(f"warmup_steps must be at least 0, got {self.warmup_steps}")
        if not 0.0 <= self.cooldown_share <= 1.0:
            raise ConfigError(f"cooldown_share must be in [0, 1], got {self.cooldown_share}")
        if not 0.0 <= self.final_factor <= 1.0:
            raise ConfigError(f"final_factor must be in [0, 1], got {self.final_factor}")

    def factor(self, step: int, num_steps: int) -> float:
        """Return the factor of the learning rate at `step` of [0, num_steps).

        It is never 0 in a run unless `final_factor` is and the step is past the last: the first
        step learns, and the last does, too.

        >>> Schedule(shape="linear", warmup_steps=2).factor(0, 6)
        0.5
        >>> [Schedule(shape="linear").factor(step, 4) for step in range(5)]
        [1.0, 0.75, 0.5, 0.25, 0.0]
        """
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.shape == "constant":
            return 1.0
        num_cooldown = num_steps - self.warmup_steps
        if self.shape == "trapezoid":
            num_cooldown = min(num_cooldown, round(self.cooldown_share * num_steps))
        if num_cooldown <= 0:
            return 1.0 if step < num_steps else self.final_factor
        left = min(max((num_steps - step) / num_cooldown, 0.0), 1.0)
        if self.shape == "cosine":
            left = 0.5 - 0.5 * math.cos(math.pi * left)
        return self.final_factor + (1.0 - self.final_factor) * left


def momentum_warmup(step: int, *, start: float, end: float, num_steps: int) -> float:
    """Return Muon's momentum: it rises in a line, since early gradients are worth less.

    >>> momentum_warmup(0, start=0.85, end=0.95, num_steps=300)
    0.85
    """
    if step >= num_steps:
        return end
    return start + (end - start) * step / num_steps
