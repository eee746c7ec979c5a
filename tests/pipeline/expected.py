"""An independent, slow and simple statement of what a store must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import xxhash

MASK = (1 << 64) - 1


@dataclass
class ExpectedSplit:
    ids: list[int] = field(default_factory=list)
    docs: list[tuple[int, int, int]] = field(default_factory=list)
    num_bytes: int = 0


def expected_splits(  # noqa: PLR0913  (the settings of a run)
    documents: list[tuple[int, int, str]],
    encode: Callable[[str], list[int]],
    *,
    eos_id: int | None,
    bos_id: int | None = None,
    val_ratio: float = 0.0,
    val_documents: int = 0,
    shuffle: int | None = None,
    max_tokens: int | None = None,
) -> dict[str, ExpectedSplit]:
    """Return the splits that `documents`, (source, position, text) in input order, must give."""
    hashes = [xxhash.xxh3_64(text.encode()).intdigest() for _, _, text in documents]
    threshold = int(val_ratio * 2**64)
    if val_documents:
        threshold = sorted(hashes)[val_documents - 1] + 1
    order = list(range(len(documents)))
    if shuffle is not None:
        order.sort(key=lambda i: (shuffle_key(*documents[i][:2], seed=shuffle), i))
    splits = {"train": ExpectedSplit()}
    left = max_tokens
    for i in order:
        source, position, text = documents[i]
        ids = [] if bos_id is None else [bos_id]
        ids += encode(text)
        ids += [] if eos_id is None else [eos_id]
        if left is not None:
            ids = ids[:left]
            left -= len(ids)
        if not ids:
            continue
        split = splits.setdefault("val" if hashes[i] < threshold else "train", ExpectedSplit())
        split.ids += ids
        split.docs.append((len(split.ids), source, position))
    return splits


def shuffle_key(source: int, position: int, *, seed: int) -> int:
    golden = 0x9E3779B97F4A7C15
    mixed = _mix((seed + golden) & MASK)
    mixed = _mix(mixed ^ source)
    return _mix((mixed + position * golden) & MASK)


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)
