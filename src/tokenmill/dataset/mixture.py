"""Which source each sample of a batch comes from: exact shares, in closed form.

A source with weight w has a share of w * batch_size samples in every batch, in general not a whole
number. Every batch holds the whole part. The fractions left over are laid end to end on a line,
which adds up to a whole number of samples, and batch `b` takes the sources that lie under the
points u, 1 + u, 2 + u, … with u = the bits of `b` mirrored at the point (b = 6 = 110 gives
0.011 = 3/8). No fraction is longer than 1, so a source gets its share rounded down or up.

Mirrored bits are evenly spread at every scale. So the same holds for every run of batches
[m * 2**k, (m + 1) * 2**k): each source has its share of the run rounded down or up. And how often u
fell below a bound among the first `b` batches is a sum over the bits of `b`: nobody has to go
through the batches before. The first `b` batches are a few such runs, one for each bit of `b` that
is set, so that the sum over all of them stays within a few samples of the target, too.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import ConfigError

MAX_SAMPLES: Final = 1 << 60
"""So many samples can be counted: a thousand million batches of a thousand million."""
_BITS: Final = 60
_GOLDEN: Final = 0x9E3779B97F4A7C15
_KEPT_ORDERS: Final = 256

Counts = NDArray[np.int64]


class Mixture:
    """The samples of each source in batch 0, 1, 2, …, for fixed weights and batch size.

    Weights need not add up to one. They are taken as written: 0.7 is seven tenths.
    """

    __slots__ = ("_bounds", "_is_whole", "_turns", "_whole", "batch_size", "weights")

    def __init__(self, weights: Sequence[Fraction], batch_size: int) -> None:
        self.weights = normalize(weights)
        self.batch_size = batch_size
        shares = [weight * batch_size for weight in self.weights]
        whole = [math.floor(share) for share in shares]
        ends: list[Fraction] = []
        for share, count in zip(shares, whole, strict=True):
            ends.append((ends[-1] if ends else Fraction(0)) + share - count)
        self._whole = np.array(whole, dtype=np.int64)
        self._turns = np.array([math.floor(end) for end in ends], dtype=np.int64)
        fractions = [math.floor((end - math.floor(end)) * (1 << _BITS)) for end in ends]
        self._bounds = np.array(fractions, dtype=np.uint64)
        self._is_whole = shares == whole

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mixture):
            return NotImplemented
        return (self.weights, self.batch_size) == (other.weights, other.batch_size)

    def __hash__(self) -> int:
        return hash((self.weights, self.batch_size))

    def before(self, batch: int) -> Counts:
        """Return how many samples of each source are in the batches before `batch`."""
        if not 0 <= batch * self.batch_size <= MAX_SAMPLES:
            raise IndexError(f"batch {batch} is outside [0, {MAX_SAMPLES // self.batch_size}]")
        if self._is_whole:
            return batch * self._whole
        passed = batch * self._turns + _num_below(batch, self._bounds)
        return batch * self._whole + np.diff(passed, prepend=0)

    def counts(self, batch: int) -> Counts:
        """Return how many samples of each source are in one batch."""
        if self._is_whole:
            return self._whole
        passed = self._turns + (np.uint64(_mirror(batch)) < self._bounds)
        return self._whole + np.diff(passed, prepend=0)

    def order(self, batch: int) -> tuple[NDArray[np.int32], Counts]:
        """Return, for each place in a batch, its source and how many of it come before.

        The sources are interleaved evenly, so that each part of a batch that a rank takes is close
        to the mixture, too; where the pattern starts differs from batch to batch.
        """
        sources, numbers = _interleave(tuple(self.counts(batch).tolist()))
        if len(self.weights) == 1:
            return sources, numbers
        shift = ((batch * _GOLDEN & (1 << 64) - 1) >> 32) % self.batch_size
        # Numbers count from the start of the pattern: which of a source's samples takes which of
        # its places is free, as long as it depends on nothing but the batch.
        return np.roll(sources, shift), np.roll(numbers, shift)

    def find(self, source: int, sample: int) -> int:
        """Return the batch that holds a sample, given by its number among those of its source."""
        if not self.weights[source]:
            raise IndexError(f"source {source} has no weight")
        # A sum over all batches is off by less than one sample a bit.
        share = self.weights[source] * self.batch_size
        low = max(0, math.floor((sample - _BITS) / share))
        high = math.ceil((sample + _BITS) / share) + 1
        batches = range(low, high)
        found = bisect_right(batches, sample, key=lambda batch: self.before(batch)[source])
        return low + found - 1


def normalize(weights: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """Return weights that add up to one.

    >>> [str(weight) for weight in normalize([Fraction(3), Fraction(1)])]
    ['3/4', '1/4']
    """
    total = sum(weights, Fraction(0))
    if total <= 0 or min(weights) < 0:
        shown = ", ".join(str(float(weight)) for weight in weights)
        raise ConfigError(f"weights are {shown or 'missing'}, expected none below 0 and one above")
    return tuple(weight / total for weight in weights)


def _num_below(stop: int, bounds: NDArray[np.uint64]) -> Counts:
    """Return how many of the numbers 0 to `stop` have mirrored bits below each bound.

    [0, stop) is cut into one range for each bit k that is set: numbers that share all bits from k
    on, while the lower bits run through all values. Their mirrored bits are m * 2**(60 - k) + e for
    m = 0 to 2**k, with the same e.
    """
    bits = [k for k in range(stop.bit_length()) if stop >> k & 1]
    shifts = np.array(bits, dtype=np.uint64)[:, None]
    shifts = np.uint64(_BITS) - shifts
    one = np.uint64(1)
    offsets = np.uint64(_mirror(stop)) & ((one << (shifts - one)) - one)  # the bits above k
    remainders = bounds & ((one << shifts) - one)
    below = (bounds >> shifts) + (offsets < remainders)
    return below.sum(axis=0, dtype=np.int64)


def _mirror(number: int) -> int:
    """Mirror the lowest 60 bits: the first becomes the last.

    >>> _mirror(6) == 3 << 57
    True
    """
    return int(f"{number:0{_BITS}b}"[::-1], 2)


@lru_cache(maxsize=_KEPT_ORDERS)
def _interleave(counts: tuple[int, ...]) -> tuple[NDArray[np.int32], Counts]:
    """Spread the samples of each source evenly over a batch; ties go to the earlier source."""
    sources = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    numbers = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
    places = (numbers + 0.5) / np.asarray(counts)[sources]
    order = np.argsort(places, kind="stable")
    sources, numbers = sources[order], numbers[order]
    sources.flags.writeable = numbers.flags.writeable = False  # kept for later calls
    return sources, numbers
