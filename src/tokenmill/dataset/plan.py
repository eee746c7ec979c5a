"""A plan: what a run is trained on, step by step. The batch at step k depends on (plan, k) alone.

    plan = Plan(
        sources=(Source(path="stores/web", weight=0.7), Source(path="stores/code", weight=0.3)),
        seq_len=2048,
        batch_size=512,
    )
    plan.batch(1_000_000)

Nothing is built, stored or shared before the first batch, and no step needs the ones before it: any
rank of any number of ranks can ask for any step.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.batch import Batch
from tokenmill.dataset.buffers import BufferPool
from tokenmill.dataset.gather import gather
from tokenmill.dataset.opened import OpenSources
from tokenmill.dataset.packing import Packing
from tokenmill.dataset.plan_digest import digest_of
from tokenmill.dataset.plan_file import read_plan, write_plan
from tokenmill.dataset.plan_settings import (
    Amendment,
    Changes,
    Source,
    Stage,
    check_at_least,
    exact_weights,
    source_names,
)
from tokenmill.dataset.reading import Reading
from tokenmill.dataset.rows import Rows
from tokenmill.dataset.timeline import Opening, Segment, Timeline, build_timeline
from tokenmill.errors import ConfigError


class Indices(NamedTuple):
    """Which rows are in a global batch, or in a part of it; one item of each array for a row."""

    sources: NDArray[np.int32]
    """Number of the source in `plan.all_sources`."""
    epochs: NDArray[np.int64]
    rows: NDArray[np.int64]
    """Number of the row among those of the source; see `are_rest`."""
    are_rest: NDArray[np.bool_]
    """Whether the row is one of the rest of an epoch begun with another sequence length."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which rows of which sources are in the global batch of each step."""

    sources: tuple[Source, ...]
    """The sources at the start; amendments may add more."""
    seq_len: int
    """Tokens in a row."""
    batch_size: int
    """Rows in a global batch: that of all ranks together."""
    num_steps: int | None = None
    """Length of the run; it never changes the order. None: without end."""
    seed: int = 0
    """Decides the order in which each source is read."""
    packing: Packing = "concat"
    """How documents are laid into rows."""
    mask_boundaries: bool = False
    """Whether the last token of a document predicts nothing, rather than the next document."""
    pad_last: bool = False
    """Whether packing `concat` keeps the tokens after the last whole row, in a padded row."""
    stages: tuple[Stage, ...] = ()
    """Planned changes."""
    amendments: tuple[Amendment, ...] = ()
    """Changes made later, in the order of their steps; `amend` and `skip` add to them."""

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan from a YAML, TOML or JSON file; its paths are relative to the file."""
        return read_plan(cls, Path(path))

    def save(self, path: str | Path) -> None:
        """Write the plan with its amendments, and the digest of each store, as JSON or YAML."""
        digests = {source.path: self.opened.digest(source) for source in self.all_sources}
        write_plan(self, Path(path), digests=digests)

    def __post_init__(self) -> None:
        for name in ("sources", "stages", "amendments"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.sources:
            raise ConfigError("a plan needs at least one source")
        check_at_least(
            1, seq_len=self.seq_len, batch_size=self.batch_size, num_steps=self.num_steps
        )
        given = [source.weight is not None for source in self.sources]
        if any(given) and not all(given):
            missing = self.names[given.index(False)]
            raise ConfigError(
                f"source {missing!r} has no weight, others have one",
                hint="give a weight to all, or to none for shares in proportion to their size",
            )

    @cached_property
    def all_sources(self) -> tuple[Source, ...]:
        """The sources, with those that amendments add; their numbers never change."""
        return (*self.sources, *(s for change in self.amendments for s in change.sources))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each source."""
        return source_names(self.all_sources)

    @cached_property
    def timeline(self) -> Timeline:
        """The segments of the run; opens the sources."""
        timeline = build_timeline(self._opening, stages=self.stages, amendments=self.amendments)
        stop, used_up = timeline.num_steps, self._find_used_up(timeline)
        if stop is not None and used_up is not None and used_up[0] < stop:
            raise self._exhausted(*used_up)
        return timeline

    @cached_property
    def digest(self) -> str:
        """The name of the sequence of batches: equal for plans that give the same ones.

        Covers what decides batches, also the content of the stores; not paths, names, the length of
        the run, or how often a source may be read.
        """
        return self.digest_after(len(self.amendments))

    def digest_after(self, num_amendments: int) -> str:
        """Return the digest that the plan had with only its first amendments."""
        return digest_of(self, num_amendments)

    def check(self) -> None:
        """Open the sources and follow all changes, so that whatever is wrong is said now."""
        _ = self.timeline

    @property
    def total_steps(self) -> int | None:
        """The length of the run after all amendments."""
        return self.timeline.num_steps

    def indices(self, step: int, part: slice = slice(None)) -> Indices:
        """Return which rows are in the global batch of a step, or in a part of it."""
        segment = self._segment(step)
        sources, samples = self._samples(segment, step, part)
        epochs, rows = np.empty_like(samples), np.empty_like(samples)
        are_rest = np.empty(len(samples), dtype=np.bool_)
        for source, reading in enumerate(segment.readings):
            inside = np.flatnonzero(sources == source)
            if len(inside):
                epochs[inside], rows[inside], are_rest[inside] = reading.locate(samples[inside])
        return Indices(sources, epochs, rows, are_rest)

    def batch(self, step: int, *, rank: int = 0, world_size: int = 1) -> Batch:
        """Return the global batch of a step, or the part of it that belongs to a rank."""
        segment = self._segment(step)
        part = self.rank_part(step, rank=rank, world_size=world_size)
        sources, samples = self._samples(segment, step, part)
        return gather(segment.readings, sources, samples, open_rows=self.rows, pool=self._pool)

    def rank_part(self, step: int, *, rank: int, world_size: int) -> slice:
        """Return which rows of the global batch of a step belong to a rank."""
        return rank_part(self._segment(step).batch_size, rank=rank, world_size=world_size)

    def rows(self, source: int, seq_len: int) -> Rows:
        """Return the rows of a source, by number, of a sequence length."""
        return self.opened.rows(self.all_sources[source], seq_len)

    def first_repeat(self, name: str | None = None) -> int | None:
        """Return the first step that reads something of a source again; None: of any source."""
        chosen = range(len(self.names)) if name is None else [self.source_number(name)]
        steps = (self.timeline.epoch_step(source, 1) for source in chosen)
        return min((step for step in steps if step is not None), default=None)

    def source_number(self, name: str) -> int:
        """Return the number of a source by its name."""
        try:
            return self.names.index(name)
        except ValueError:
            known = ", ".join(self.names)
            raise ConfigError(f"no source is called {name!r}; sources are {known}") from None

    def amend(self, at_step: int, **changes: Unpack[Changes]) -> Plan:
        """Return a plan with a change from `at_step` on; the steps before are the same.

        `changes` are fields of `Amendment`: weights, sources, batch_size, seq_len, num_steps,
        stages, note. No source repeats anything early or loses anything by it, but for the tokens
        after the last whole row of what another sequence length left; `explain` counts them.
        """
        later = [change.at_step for change in self.amendments if change.at_step > at_step]
        if later:
            raise ConfigError(
                f"step {at_step} cannot be amended after step {later[0]} was",
                hint=f"plan.rewind({at_step}) forgets the amendments from step {at_step} on",
            )
        amended = self._with((*self.amendments, Amendment(at_step=at_step, **changes)))
        amended.check()
        return amended

    def skip(self, start: int, stop: int, *, note: str = "") -> Plan:
        """Return a plan that passes over the data of the steps `start` to `stop`, and says so.

        Step `start` then continues with what was to be the data of step `stop`. For runs that are
        taken back to a step before a spike of the loss.
        """
        if not 0 <= start < stop:
            raise ConfigError(f"steps {start} to {stop} cannot be skipped: expected start < stop")
        return self.amend(start, skip_steps=stop - start, note=note)

    def rewind(self, step: int) -> Plan:
        """Return the plan without the amendments made at `step` or later."""
        return self._with(tuple(c for c in self.amendments if c.at_step < step))

    @cached_property
    def opened(self) -> OpenSources:
        """The opened sources."""
        return OpenSources(self.packing, self.mask_boundaries, self.pad_last)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def _pool(self) -> BufferPool:
        return BufferPool()

    @cached_property
    def _opening(self) -> Opening:
        return Opening(
            seq_len=self.seq_len,
            batch_size=self.batch_size,
            num_steps=self.num_steps,
            weights=self.first_weights,
            names=self.names,
            begin=self._begin,
            rows_stay=self.packing == "pad",
        )

    @cached_property
    def first_weights(self) -> tuple[Fraction, ...]:
        """The weights of `sources` at the start, not normalized."""
        names = self.names[: len(self.sources)]
        weights = {
            name: source.weight
            for name, source in zip(names, self.sources, strict=True)
            if source.weight is not None
        }
        if weights:
            return exact_weights(weights, names)
        count = len(self.sources)
        if count == 1:
            return (Fraction(1),)
        return tuple(Fraction(self.rows(i, self.seq_len).num_rows) for i in range(count))

    def _begin(self, source: int, seq_len: int) -> Reading:
        """Return the reading of a source; sources with the same content differ by their number."""
        text = f"tokenmill order of source {source}, seed {self.seed}"
        key = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return Reading(
            seq_len=seq_len,
            num_rows=self.rows(source, seq_len).num_rows,
            seed=int.from_bytes(key, "little"),
        )

    def _segment(self, step: int) -> Segment:
        stop = self.timeline.num_steps
        if step < 0 or (stop is not None and step >= stop):
            raise IndexError(f"step {step} is outside [0, {stop})")
        if self._used_up is not None and step >= self._used_up[0]:
            raise self._exhausted(*self._used_up)
        return self.timeline.segment(step)

    def _samples(
        self, segment: Segment, step: int, part: slice
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the source of each row in a part of a batch, and the number of its sample."""
        sources, numbers = segment.mixture.order(segment.batch_number(step))
        sources = sources[part]
        return sources, segment.cursors(step)[sources] + numbers[part]

    @cached_property
    def _used_up(self) -> tuple[int, int] | None:
        return self._find_used_up(self.timeline)

    def _find_used_up(self, timeline: Timeline) -> tuple[int, int] | None:
        """Return the first step that reads a source more often than it may be, and the source."""
        found = [
            (step, number)
            for number, source in enumerate(self.all_sources)
            if source.max_epochs is not None
            and (step := timeline.epoch_step(number, source.max_epochs)) is not None
        ]
        return min(found, default=None)

    def _exhausted(self, step: int, number: int) -> ConfigError:
        return ConfigError(
            f"source {self.names[number]!r} is used up at step {step:,}: max_epochs is "
            f"{self.all_sources[number].max_epochs}",
            hint=f"set num_steps to {step} or less, lower its weight, or raise max_epochs",
        )

    def _with(self, amendments: tuple[Amendment, ...]) -> Plan:
        changed = replace(self, amendments=amendments)
        changed.__dict__["opened"] = self.opened  # the same sources: no need to open them again
        return changed


def rank_part(batch_size: int, *, rank: int, world_size: int) -> slice:
    """Return which rows of a global batch belong to a rank: as many for each, in order.

    >>> rank_part(12, rank=1, world_size=3)
    slice(4, 8, None)
    """
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank is {rank}, expected 0 to {world_size - 1}")
    if batch_size % world_size:
        raise ConfigError(
            f"a global batch of {batch_size} rows cannot be shared evenly by {world_size} ranks",
            hint=f"choose a batch_size that {world_size} divides, or another number of ranks",
        )
    size = batch_size // world_size
    return slice(rank * size, (rank + 1) * size)
