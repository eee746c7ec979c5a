"""Shuffle without an index: where an item goes is computed from its number and a key alone.

A keyed bijection of [0, size): nothing is stored, nothing is built at the start, and any rank can
ask for any place in any order. The key is made of the seed, the epoch and the size.

Small domains are sorted by a keyed hash, which makes every order equally likely. Larger ones go
through a Feistel network over pairs (left, right) with left < a, right < b and a * b barely larger
than size; the few pairs that lie beyond size are sent through again until they fall inside.

The results are part of what a plan promises: a change here changes the order of every run.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Final, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

MAX_SIZE: Final = 1 << 62
SORTED_SIZE: Final = 1 << 12
"""The largest domain that is sorted; its order takes 32 KB while it is in use."""

_NUM_ROUNDS: Final = 6
_KEPT_KEYS: Final = 256
_HALF: Final = np.uint64(32)
_FACTORS: Final = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
"""Odd numbers without a pattern, those of MurmurHash3."""

Indices = NDArray[np.int64]


@overload
def permute(index: int, size: int, *, seed: int, epoch: int) -> int: ...
@overload
def permute(index: Indices, size: int, *, seed: int, epoch: int) -> Indices: ...
def permute(index: int | Indices, size: int, *, seed: int, epoch: int) -> int | Indices:
    """Return the item that stands at place `index` of the shuffled order of `size` items.

    Every epoch has an order of its own. Seeds and epochs are any integers of up to 64 bits.

    >>> sorted(permute(place, 5, seed=1, epoch=0) for place in range(5))
    [0, 1, 2, 3, 4]
    """
    return _apply(index, size, keys=_make_keys(size, seed, epoch), inverse=False)


@overload
def unpermute(item: int, size: int, *, seed: int, epoch: int) -> int: ...
@overload
def unpermute(item: Indices, size: int, *, seed: int, epoch: int) -> Indices: ...
def unpermute(item: int | Indices, size: int, *, seed: int, epoch: int) -> int | Indices:
    """Return the place at which `item` stands in the shuffled order: the inverse of `permute`.

    >>> unpermute(permute(123, 10**12, seed=1, epoch=2), 10**12, seed=1, epoch=2)
    123
    """
    return _apply(item, size, keys=_make_keys(size, seed, epoch), inverse=True)


class _Keys(NamedTuple):
    """One key a round, and the two sides of the domain, with 0 <= a * b - size < a."""

    rounds: tuple[np.uint64, ...]
    a: np.uint64
    b: np.uint64


@lru_cache(maxsize=_KEPT_KEYS)
def _make_keys(size: int, seed: int, epoch: int) -> _Keys:
    if not 1 <= size <= MAX_SIZE:
        raise ValueError(f"size is {size}, expected 1 to {MAX_SIZE}")
    text = f"tokenmill permutation 1: size {size} seed {seed} epoch {epoch}"
    digest = hashlib.blake2b(text.encode(), digest_size=8 * _NUM_ROUNDS).digest()
    rounds = tuple(np.frombuffer(digest, dtype="<u8").astype(np.uint64))
    a = math.isqrt(size - 1) + 1
    return _Keys(rounds, np.uint64(a), np.uint64(-(-size // a)))


def _apply(index: int | Indices, size: int, *, keys: _Keys, inverse: bool) -> int | Indices:
    items = np.asarray(index, dtype=np.int64)
    if items.size and not (items.min() >= 0 and items.max() < size):
        wrong = items[(items < 0) | (items >= size)].ravel()[0]
        raise IndexError(f"item {wrong} is outside [0, {size})")
    if size <= SORTED_SIZE:
        result = _sorted_order(size, keys, inverse)[items]
    else:
        result = _walk(items.ravel(), size, keys=keys, inverse=inverse).reshape(items.shape)
    return int(result) if isinstance(index, int) else result


@lru_cache(maxsize=_KEPT_KEYS)
def _sorted_order(size: int, keys: _Keys, inverse: bool) -> Indices:
    """Return all of a small permutation: the order of hashes of 64 bits, ties by number."""
    items = np.arange(size, dtype=np.uint64)
    for key in keys.rounds:
        items = _mix(items, key)
    order = np.argsort(items, kind="stable").astype(np.int64)
    if inverse:
        order = np.argsort(order, kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order


def _walk(items: Indices, size: int, *, keys: _Keys, inverse: bool) -> Indices:
    """Send items through the network until all of them lie in [0, size)."""
    result = _send(items.astype(np.uint64), keys, inverse)
    # Fewer than a of the a * b pairs lie outside: the walk is almost always over here.
    outside = np.flatnonzero(result >= size)
    while len(outside):
        result[outside] = _send(result[outside], keys, inverse)
        outside = outside[result[outside] >= size]
    return result.astype(np.int64)


def _send(items: NDArray[np.uint64], keys: _Keys, inverse: bool) -> NDArray[np.uint64]:
    """Send items through all rounds, each of which moves one half by a hash of the other."""
    left, right = items // keys.b, items % keys.b
    numbers = range(_NUM_ROUNDS)
    for number in reversed(numbers) if inverse else numbers:
        if number % 2:
            _move(right, left, keys.rounds[number], size=keys.b, inverse=inverse)
        else:
            _move(left, right, keys.rounds[number], size=keys.a, inverse=inverse)
    left *= keys.b
    left += right
    return left


def _move(
    half: NDArray[np.uint64],
    other: NDArray[np.uint64],
    key: np.uint64,
    *,
    size: np.uint64,
    inverse: bool,
) -> None:
    """Add to one half a keyed hash of the other, both in [0, size), modulo size < 2**32."""
    offset = _mix(other, key)
    offset >>= _HALF
    offset *= size
    offset >>= _HALF
    if inverse:
        np.subtract(size, offset, out=offset)
    half += offset
    # Where the sum is below size, the difference wraps around to a larger number.
    np.minimum(half, half - size, out=half)


def _mix(values: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """Return keyed hashes; the upper half of the bits depends on all bits of a value."""
    values = values ^ key
    values *= _FACTORS[0]
    values ^= values >> _HALF
    values *= _FACTORS[1]
    return values
