"""How text is sampled from a model."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleSettings:
    """How the next token is chosen, and when to stop."""

    max_tokens: int = 200
    """Tokens to generate at most."""
    temperature: float = 0.8
    """Below 1 likely tokens become likelier; 0 always takes the likeliest."""
    top_k: int = 0
    """Choose among this many of the likeliest tokens; 0 among all."""
    top_p: float = 1.0
    """Choose among the likeliest tokens that have this probability together."""
    seed: int = 0
    """The same seed gives the same text on the same machine."""
    stop_at_eos: bool = True
    """Stop where the model ends the document."""

    def __post_init__(self) -> None:
        if self.max_tokens < 0:
            raise ConfigError(f"max_tokens must be at least 0, got {self.max_tokens}")
        if not self.temperature >= 0:
            raise ConfigError(f"temperature must be at least 0, got {self.temperature}")
        if self.top_k < 0:
            raise ConfigError(f"top_k must be at least 0 (off), got {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise ConfigError(f"top_p must be above 0 and at most 1, got {self.top_p}")
