"""The order in which one source is read: from the number of a sample to the row that it is.

Samples of a source are numbered in the order in which the run draws them. An epoch is all rows,
each once, in an order of its own; it is finished before the next begins.

When the sequence length changes in the middle of an epoch, rows of the new length would cut across
rows that were already read. So the rest of that epoch stays in its old order, joined end to end,
and is cut into rows of the new length; after it come epochs of whole new rows. Nothing is read
twice, and nothing is lost but the tokens after the last whole row of the rest, which are counted.

    old rows in their order   | read | read | read |  a  |  b  |  c  |     (the rest: a b c)
    rest in new, longer rows                       | a + b' | b" + c |
    and then                                       an epoch of new rows, in a new order
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.permutation import permute, unpermute

Numbers = NDArray[np.int64]


class Places(NamedTuple):
    """Where samples of a source are, one of each array for a sample."""

    epochs: Numbers
    rows: Numbers
    """Numbers of rows; in the rest of an earlier sequence length, numbers of rows of that rest."""
    are_rest: NDArray[np.bool_]


class Parts(NamedTuple):
    """Parts of rows of one sequence length, to be copied into rows of another; one array each."""

    seq_len: int
    places: Numbers
    """Which of the samples asked for the part belongs to."""
    offsets: Numbers
    """Where in that sample it goes."""
    rows: Numbers
    starts: Numbers
    stops: Numbers


class Spans(NamedTuple):
    """Ranges of inputs inside numbered things: rows, or samples."""

    numbers: Numbers
    starts: Numbers
    stops: Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class Rest:
    """What was left of an epoch when the sequence length changed."""

    reading: Reading
    """The reading that began it."""
    start: int
    """The first sample of that reading that was not drawn."""
    num_samples: int
    """Samples of that reading to the end of its epoch."""

    @property
    def num_tokens(self) -> int:
        """Inputs in the rest."""
        return self.num_samples * self.reading.seq_len


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The samples of one source while the sequence length is the same, numbered from zero."""

    seq_len: int
    num_rows: int
    seed: int
    first_epoch: int = 0
    """The first epoch of whole rows; the rest, if any, belongs to the one before."""
    rest: Rest | None = None

    @property
    def num_rest(self) -> int:
        """Rows cut from the rest of an earlier sequence length."""
        return 0 if self.rest is None else self.rest.num_tokens // self.seq_len

    @property
    def num_dropped(self) -> int:
        """Inputs after the last whole row of that rest."""
        return 0 if self.rest is None else self.rest.num_tokens % self.seq_len

    def locate(self, samples: Numbers) -> Places:
        """Return the epoch and the row of each sample."""
        first, last = int(samples.min()), int(samples.max())
        epoch = self.epoch_of(first)
        if first >= self.num_rest and epoch == self.epoch_of(last):
            places = samples - self.epoch_start(epoch)
            rows = permute(places, self.num_rows, seed=self.seed, epoch=epoch)
            return Places(np.full_like(samples, epoch), rows, np.zeros(len(samples), np.bool_))
        return self._locate(samples)

    def _locate(self, samples: Numbers) -> Places:
        """Return the same for samples of several epochs, or of a rest."""
        epochs, places = np.divmod(samples - self.num_rest, self.num_rows)
        are_rest = samples < self.num_rest
        epochs = np.where(are_rest, self.first_epoch - 1, epochs + self.first_epoch)
        rows = np.where(are_rest, samples, places)
        for epoch in np.unique(epochs[~are_rest]):
            inside = (epochs == epoch) & ~are_rest
            rows[inside] = permute(places[inside], self.num_rows, seed=self.seed, epoch=int(epoch))
        return Places(epochs, rows, are_rest)

    def parts(self, samples: Numbers) -> Iterator[Parts]:
        """Yield what samples of the rest are made of, in terms of whole rows of earlier lengths."""
        spans = Spans(samples, np.zeros_like(samples), np.full_like(samples, self.seq_len))
        yield from self._parts(spans, np.arange(len(samples)), np.zeros_like(samples))

    def _parts(self, spans: Spans, places: Numbers, offsets: Numbers) -> Iterator[Parts]:
        assert self.rest is not None
        earlier = self.rest.reading
        owners, parts = _recut(spans, self.seq_len, earlier.seq_len)
        samples = self.rest.start + parts.numbers
        found = earlier.locate(samples)
        begins = spans.numbers * self.seq_len + spans.starts
        shifts = parts.numbers * earlier.seq_len + parts.starts - begins[owners]
        places, offsets = places[owners], offsets[owners] + shifts
        whole = ~found.are_rest
        if whole.any():
            yield Parts(
                earlier.seq_len,
                places[whole],
                offsets[whole],
                found.rows[whole],
                parts.starts[whole],
                parts.stops[whole],
            )
        if found.are_rest.any():
            cut = found.are_rest
            deeper = Spans(samples[cut], parts.starts[cut], parts.stops[cut])
            yield from earlier._parts(deeper, places[cut], offsets[cut])

    def samples_of(self, epoch: int, rows_of: Callable[[int], Spans]) -> Spans:
        """Return the samples, and the inputs in them, that hold something in an epoch.

        `rows_of` says, for a sequence length, in which rows of it that something lies.
        """
        if epoch >= self.first_epoch:
            found = rows_of(self.seq_len)
            places = unpermute(found.numbers, self.num_rows, seed=self.seed, epoch=epoch)
            return found._replace(numbers=places + self.epoch_start(epoch))
        if self.rest is None or epoch < self.first_epoch - 1:
            return _NOTHING
        earlier = self.rest.reading.samples_of(epoch, rows_of)
        left = earlier.numbers >= self.rest.start
        spans = Spans(earlier.numbers[left] - self.rest.start, *(a[left] for a in earlier[1:]))
        _, parts = _recut(spans, self.rest.reading.seq_len, self.seq_len)
        kept = parts.numbers < self.num_rest
        return Spans(*(array[kept] for array in parts))

    def epoch_start(self, epoch: int) -> int:
        """Return the first sample of an epoch of whole rows; negative if it was over before."""
        return self.num_rest + (epoch - self.first_epoch) * self.num_rows

    def epoch_of(self, sample: int) -> int:
        """Return the epoch of a sample."""
        return (
            self.first_epoch + (sample - self.num_rest) // self.num_rows
            if (sample >= self.num_rest)
            else self.first_epoch - 1
        )

    def change(self, sample: int, *, seq_len: int, num_rows: int) -> Reading:
        """Return the reading that follows when the length of rows changes before a sample."""
        whole = sample - self.num_rest
        begun = -(-whole // self.num_rows) if whole >= 0 else 0
        left = begun * self.num_rows - whole
        reading = Reading(
            seq_len=seq_len,
            num_rows=num_rows,
            seed=self.seed,
            first_epoch=self.first_epoch + begun,
        )
        rest = Rest(reading=self, start=sample, num_samples=left)
        return replace(reading, rest=rest) if left else reading


_NOTHING = Spans(*(np.empty(0, dtype=np.int64) for _ in range(3)))


def _recut(spans: Spans, from_len: int, to_len: int) -> tuple[Numbers, Spans]:
    """Cut spans of things of one length, joined end to end, at the borders of another length.

    Returns, for each part, the number of the span that it is part of, and the part.
    """
    begins = spans.numbers * from_len + spans.starts
    ends = spans.numbers * from_len + spans.stops
    first = begins // to_len
    num_parts = (ends - 1) // to_len - first + 1
    owners = np.repeat(np.arange(len(first)), num_parts)
    steps = np.arange(len(owners)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    numbers = first[owners] + steps
    starts = np.maximum(begins[owners] - numbers * to_len, 0)
    stops = np.minimum(ends[owners] - numbers * to_len, to_len)
    return owners, Spans(numbers, starts, stops)
