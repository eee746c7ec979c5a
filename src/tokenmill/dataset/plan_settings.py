"""What a plan is made of: sources, stages and amendments, each checked when it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePath
from typing import TypedDict

from tokenmill.errors import ConfigError
from tokenmill.remote import is_remote, split_url


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A store, or files of token ids, and how much of a plan comes from it."""

    path: str
    """Store, in a folder or at s3://…, or `.npy` or `.bin` files; relative to a plan file."""
    name: str = ""
    """What stages, amendments and reports call it; by default the name of the folder."""
    weight: float | None = None
    """Its share of samples relative to the others. None for all sources: as many as it has rows."""
    split: str = "train"
    """Which split of the store."""
    max_epochs: int | None = None
    """How often it may be read; a plan that needs more is an error. None: as often as needed."""
    dtype: str | None = None
    """The type of the ids, for files that do not tell it."""
    eos_id: int | None = None
    """The id that closes documents, for files that do not tell it."""
    digest: str | None = None
    """What the store must hold; a saved plan has it, so that a changed store is noticed."""
    hold_out: int = 0
    """Its last rows, so many, are never read: a run without another split is measured with them."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ConfigError("a source has an empty path")
        if is_remote(self.path):
            split_url(self.path)  # a password in it would end up in saved plans
        if self.weight is not None:
            check_weight(self.name or self.path, self.weight)
        check_at_least(1, max_epochs=self.max_epochs)
        check_at_least(0, hold_out=self.hold_out)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Other settings from a step on, known before the run starts. None keeps what was."""

    from_step: int | None = None
    """The first step of the stage."""
    from_tokens: int | None = None
    """Instead: the stage begins with the first step before which that many were trained on."""
    weights: Mapping[str, float] | None = None
    """A weight for every source by name; 0 leaves one out."""
    batch_size: int | None = None
    seq_len: int | None = None

    def __post_init__(self) -> None:
        if (self.from_step is None) == (self.from_tokens is None):
            raise ConfigError("a stage needs either from_step or from_tokens")
        check_at_least(1, from_step=self.from_step, from_tokens=self.from_tokens)
        check_at_least(1, batch_size=self.batch_size, seq_len=self.seq_len)
        check_weights(self.weights or {})


@dataclass(frozen=True, kw_only=True, slots=True)
class Amendment:
    """A change made to a plan that may have run already: steps before `at_step` stay as they were.

    None keeps what was.
    """

    at_step: int
    weights: Mapping[str, float] | None = None
    """A weight for every source by name, also for new ones; holds until the next stage."""
    sources: Sequence[Source] = ()
    """Sources to add."""
    batch_size: int | None = None
    seq_len: int | None = None
    num_steps: int | None = None
    """The new length of the run."""
    stages: Sequence[Stage] | None = None
    """Stages in place of those that have not begun."""
    skip_steps: int = 0
    """Pass over the data of this many steps."""
    note: str = ""
    """Why; only shown."""

    def __post_init__(self) -> None:
        _set(self, "sources", tuple(self.sources))
        _set(self, "stages", None if self.stages is None else tuple(self.stages))
        check_at_least(0, at_step=self.at_step, skip_steps=self.skip_steps)
        check_at_least(
            1, batch_size=self.batch_size, seq_len=self.seq_len, num_steps=self.num_steps
        )
        check_weights(self.weights or {})
        if self.sources and self.weights is None:
            raise ConfigError(
                f"the amendment at step {self.at_step} adds sources but gives no weights",
                hint="give weights for all sources, old and new",
            )


class Changes(TypedDict, total=False):
    """The fields of an `Amendment` other than its step."""

    weights: Mapping[str, float]
    sources: Sequence[Source]
    batch_size: int
    seq_len: int
    num_steps: int
    stages: Sequence[Stage]
    skip_steps: int
    note: str


def source_names(sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the name of each source: the one given, or that of its folder; they must differ.

    >>> source_names([Source(path="a/web"), Source(path="b/web"), Source(path="c", name="code")])
    ('web', 'web-2', 'code')
    """
    names: list[str] = []
    taken = [source.name for source in sources if source.name]
    for source in sources:
        name = source.name
        if not name:
            name = stem = PurePath(source.path).stem or source.path
            number = 2
            while name in names or name in taken:
                name, number = f"{stem}-{number}", number + 1
        if name in names:
            raise ConfigError(f"two sources are called {name!r}", hint="give one another name")
        names.append(name)
    return tuple(names)


def exact_weights(weights: Mapping[str, float], names: Sequence[str]) -> tuple[Fraction, ...]:
    """Return weights in the order of the sources, as exactly what was written.

    Every source must be there: one that is left out by mistake would be missed only much later.
    """
    for name in weights:
        if name not in names:
            raise ConfigError(f"a weight is given for {name!r}; sources are {', '.join(names)}")
    for name in names:
        if name not in weights:
            raise ConfigError(
                f"no weight is given for {name!r}", hint="give 0 to leave a source out"
            )
    return tuple(Fraction(str(weights[name])) for name in names)


def check_weights(weights: Mapping[str, float]) -> None:
    """Refuse weights that are negative or not numbers, or that are all zero."""
    for name, weight in weights.items():
        check_weight(name, weight)
    if weights and not any(weights.values()):
        raise ConfigError("all weights are 0, expected one above")


def check_weight(name: str, weight: float) -> None:
    """Refuse a weight that is negative or not a number."""
    if not (math.isfinite(weight) and weight >= 0):
        raise ConfigError(f"the weight of {name!r} is {weight}, expected 0 or more")


def check_at_least(least: int, **values: int | None) -> None:
    """Refuse settings that are too small."""
    for name, value in values.items():
        if value is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")


def _set(instance: object, name: str, value: object) -> None:
    object.__setattr__(instance, name, value)
