"""Pure rules: which split a document belongs to, and where it stands in a shuffled store."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import xxhash
from numpy.typing import NDArray

KEY_SPACE = 1 << 64
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def content_hash(pieces: Iterable[str]) -> int:
    """Return the hash of a document's UTF-8 bytes, which decides its split; pieces do not show.

    >>> content_hash(["ab", "c"]) == content_hash(["abc"])
    True
    """
    digest = xxhash.xxh3_64()
    for piece in pieces:
        digest.update(piece.encode())
    return digest.intdigest()


def split_threshold(val_ratio: float) -> int:
    """Return the content hash below which a document belongs to `val`.

    >>> split_threshold(0.0), split_threshold(0.5) == KEY_SPACE // 2
    (0, True)
    """
    return int(val_ratio * KEY_SPACE)


def in_val(content: NDArray[np.uint64], threshold: int) -> NDArray[np.bool_]:
    """Tell for each content hash whether the document belongs to `val`."""
    if threshold >= KEY_SPACE:
        return np.ones(len(content), dtype=np.bool_)
    return content < np.uint64(threshold)


def shuffle_keys(
    sources: NDArray[np.uint32], positions: NDArray[np.uint64], *, seed: int
) -> NDArray[np.uint64]:
    """Return a random-looking key for each document; the shuffled order sorts by it.

    The key depends on the seed and on where the document stands in the input, so units and workers
    have no say in the order.
    """
    mixed = _mix(np.full(1, seed, dtype=np.uint64) + _GOLDEN)
    mixed = _mix(mixed ^ sources.astype(np.uint64))
    return _mix(mixed + positions * _GOLDEN)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spread every input bit over the whole word (the finalizer of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * _MULTIPLIERS[0]
    values = (values ^ (values >> np.uint64(27))) * _MULTIPLIERS[1]
    return values ^ (values >> np.uint64(31))
