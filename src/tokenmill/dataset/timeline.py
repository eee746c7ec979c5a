"""The course of a run: segments of steps with the same settings, and where each source stands.

A segment is as long as nothing changes. Inside it, how far every source has come at a step is one
formula (see `mixture`); a new segment starts from what that formula gives for its first step. So a
plan with a thousand million steps and two changes is three segments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.mixture import Mixture
from tokenmill.dataset.plan_settings import Amendment, Stage, exact_weights
from tokenmill.dataset.reading import Reading
from tokenmill.errors import ConfigError

Cursors = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Steps from `start` to `stop` with the same settings."""

    start: int
    stop: int | None
    """None: without end."""
    cause: str
    """What began it: the plan itself, a stage, an amendment or a skip."""
    seq_len: int
    mixture: Mixture
    first_batch: int
    """The batch of the mixture that is drawn at step `start`."""
    readings: tuple[Reading, ...]
    """One for each source that is known by then."""
    bases: Cursors
    """The next sample of each source before batch 0 of the mixture."""
    tokens_before: int
    """Tokens trained on before step `start`."""
    skipped: Cursors
    """Tokens of each source that are passed over right before it."""

    @property
    def batch_size(self) -> int:
        """Samples in each batch."""
        return self.mixture.batch_size

    @property
    def step_tokens(self) -> int:
        """Inputs in a global batch, padding included."""
        return self.batch_size * self.seq_len

    def num_tokens(self, step: int) -> int:
        """Return the tokens that were trained on before a step of this segment."""
        return self.tokens_before + (step - self.start) * self.step_tokens

    def batch_number(self, step: int) -> int:
        """Return which batch of the mixture is drawn at a step."""
        return self.first_batch + step - self.start

    def cursors(self, step: int) -> Cursors:
        """Return the next sample of each source before a step."""
        return self.bases + self.mixture.before(self.batch_number(step))

    def find(self, source: int, sample: int) -> int | None:
        """Return the step of this segment that draws a sample of a source, if one does."""
        if source >= len(self.readings) or not self.mixture.weights[source]:
            return None
        number = sample - int(self.bases[source])
        if number < self.mixture.before(self.first_batch)[source]:
            return None
        step = self.start + self.mixture.find(source, number) - self.first_batch
        return step if self.stop is None or step < self.stop else None

    def place(self, step: int, source: int, sample: int) -> int:
        """Return where in the global batch of a step a sample is that the step draws."""
        sources, numbers = self.mixture.order(self.batch_number(step))
        wanted = sample - int(self.cursors(step)[source])
        return int(np.flatnonzero((sources == source) & (numbers == wanted))[0])


class Timeline(NamedTuple):
    """The segments of a plan, in order, without gaps."""

    segments: tuple[Segment, ...]
    num_steps: int | None

    def segment(self, step: int) -> Segment:
        """Return the segment of a step."""
        number = bisect_right(self.segments, step, key=lambda segment: segment.start)
        return self.segments[number - 1]

    def num_tokens(self, step: int) -> int:
        """Return the tokens that were trained on before a step."""
        return self.segment(step).num_tokens(step)

    def epoch_step(self, source: int, epoch: int) -> int | None:
        """Return the first step that draws from an epoch of a source or from a later one."""
        for segment in self.segments:
            if source >= len(segment.readings):
                continue
            first = segment.readings[source].epoch_start(epoch)
            step = segment.find(source, max(first, int(segment.cursors(segment.start)[source])))
            if step is not None:
                return step
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What a timeline is built from, apart from its changes."""

    seq_len: int
    batch_size: int
    num_steps: int | None
    weights: tuple[Fraction, ...]
    """Of the sources that are there from the start."""
    names: tuple[str, ...]
    """Of all sources, also those that amendments add."""
    begin: Callable[[int, int], Reading]
    """Returns the reading of a source, by number, that starts with a sequence length."""
    rows_stay: bool = False
    """Whether rows keep their numbers when the sequence length changes: one document a row."""


def build_timeline(
    opening: Opening, *, stages: Sequence[Stage], amendments: Sequence[Amendment]
) -> Timeline:
    """Follow the changes from the first step to the last.

    A stage comes before an amendment at the same step.
    """
    builder = _Builder(opening, stages)
    for number, amendment in enumerate(amendments, start=1):
        builder.amend(amendment, number)
    builder.run_stages(None)
    return builder.finish()


class _Builder:
    """The segments so far; the last one is still open."""

    def __init__(self, opening: Opening, stages: Sequence[Stage]) -> None:
        self.opening = opening
        self.stages = list(stages)
        self.num_stages = 0
        self.last_amended = 0
        self.num_steps = opening.num_steps
        count = len(opening.weights)
        self.segments = [
            Segment(
                start=0,
                stop=None,
                cause="start",
                seq_len=opening.seq_len,
                mixture=Mixture(opening.weights, opening.batch_size),
                first_batch=0,
                readings=tuple(opening.begin(i, opening.seq_len) for i in range(count)),
                bases=np.zeros(count, dtype=np.int64),
                tokens_before=0,
                skipped=np.zeros(count, dtype=np.int64),
            )
        ]

    def amend(self, amendment: Amendment, number: int) -> None:
        """Let an amendment happen, and the stages before it."""
        step, cause = amendment.at_step, f"amendment {number}"
        if step < self.last_amended:
            raise ConfigError(
                f"amendment {number} is at step {step}, the one before it at {self.last_amended}",
                hint="list amendments in order; `plan.rewind` forgets later ones",
            )
        self.last_amended = step
        self.run_stages(step)
        if amendment.num_steps is not None:
            self.num_steps = amendment.num_steps
        if amendment.stages is not None:
            self.stages = list(amendment.stages)
        count = len(self.segments[-1].readings) + len(amendment.sources)
        weights = None
        if amendment.weights is not None:
            weights = exact_weights(amendment.weights, self.opening.names[:count])
        self._change(
            step,
            cause=cause,
            weights=weights,
            batch_size=amendment.batch_size,
            seq_len=amendment.seq_len,
        )
        if amendment.skip_steps:
            self._skip(step, amendment.skip_steps)

    def run_stages(self, until: int | None) -> None:
        """Let the stages begin that begin at or before a step; None: all that are left."""
        while self.stages:
            start = self._start_of(self.stages[0])
            if until is not None and start > until:
                return
            stage = self.stages.pop(0)
            self.num_stages += 1
            weights = None
            if stage.weights is not None:
                names = self.opening.names[: len(self.segments[-1].readings)]
                weights = exact_weights(stage.weights, names)
            self._change(
                start,
                cause=f"stage {self.num_stages}",
                weights=weights,
                batch_size=stage.batch_size,
                seq_len=stage.seq_len,
            )

    def finish(self) -> Timeline:
        """Return the segments, each closed where the next begins."""
        stops = [segment.start for segment in self.segments[1:]]
        closed = [replace(s, stop=stop) for s, stop in zip(self.segments, stops, strict=False)]
        kept = [segment for segment in closed if segment.start != segment.stop]
        return Timeline((*kept, self.segments[-1]), self.num_steps)

    def _start_of(self, stage: Stage) -> int:
        last = self.segments[-1]
        if stage.from_step is not None:
            start, shown = stage.from_step, f"step {stage.from_step}"
        else:
            missing = (stage.from_tokens or 0) - last.tokens_before
            start = last.start + -(-missing // last.step_tokens)
            shown = f"{stage.from_tokens:,} tokens"
        if start < last.start:
            raise ConfigError(
                f"the stage from {shown} begins before step {last.start} ({last.cause})",
                hint="list stages in order",
            )
        return start

    def _change(
        self,
        step: int,
        *,
        cause: str,
        weights: tuple[Fraction, ...] | None,
        batch_size: int | None,
        seq_len: int | None,
    ) -> None:
        last = self.segments[-1]
        seq_len = seq_len or last.seq_len
        mixture = Mixture(weights or last.mixture.weights, batch_size or last.batch_size)
        if mixture == last.mixture and seq_len == last.seq_len:
            return
        cursors, readings = last.cursors(step), list(last.readings)
        if seq_len != last.seq_len:
            for source, reading in enumerate(readings):
                readings[source] = self._resize(source, reading, int(cursors[source]), seq_len)
            if not self.opening.rows_stay:
                cursors = np.zeros_like(cursors)
        for source in range(len(readings), len(mixture.weights)):
            readings.append(self.opening.begin(source, seq_len))
            cursors = np.append(cursors, 0)
        self.segments.append(
            Segment(
                start=step,
                stop=None,
                cause=cause,
                seq_len=seq_len,
                mixture=mixture,
                first_batch=0,
                readings=tuple(readings),
                bases=cursors,
                tokens_before=last.num_tokens(step),
                skipped=np.pad(self._skipped_at(step), (0, len(readings) - len(last.readings))),
            )
        )

    def _skip(self, step: int, num_steps: int) -> None:
        last = self.segments[-1]
        following = self._start_of(self.stages[0]) if self.stages else None
        if following is not None and step + num_steps > following:
            raise ConfigError(
                f"steps {step} to {step + num_steps} cannot be skipped: a stage begins at "
                f"step {following}",
                hint=f"skip steps {step} to {following}, then steps of the stage",
            )
        self.segments.append(
            replace(
                last,
                start=step,
                cause=f"skip of {num_steps:,} steps",
                first_batch=last.batch_number(step) + num_steps,
                tokens_before=last.num_tokens(step),
                skipped=self._skipped_at(step)
                + (last.cursors(step + num_steps) - last.cursors(step)) * last.seq_len,
            )
        )

    def _skipped_at(self, step: int) -> Cursors:
        """Return what earlier changes at the same step passed over."""
        last = self.segments[-1]
        return last.skipped if last.start == step else np.zeros_like(last.skipped)

    def _resize(self, source: int, reading: Reading, sample: int, seq_len: int) -> Reading:
        num_rows = self.opening.begin(source, seq_len).num_rows
        if self.opening.rows_stay:
            return replace(reading, seq_len=seq_len, num_rows=num_rows)
        return reading.change(sample, seq_len=seq_len, num_rows=num_rows)
