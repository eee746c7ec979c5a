"""`max_tokens`: find the document in which the limit falls, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tokenmill.pipeline.order import in_val
from tokenmill.pipeline.parts import Docs, Ids, Part, SourceCount, count_documents, lengths
from tokenmill.pipeline.shuffled import BUCKET_BITS, bucket_tokens, gather, stretches

CountBytes = Callable[[Ids], int]
"""Tells how many bytes of text some ids stand for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is left of some documents after a limit."""

    counts: list[SourceCount]
    num_truncated_tokens: int
    """Tokens of the last kept document that are beyond the limit."""
    cut_split: str | None
    """The split of the document that is cut; None if the limit falls between documents."""
    stop: tuple[int, int] | None
    """Source and position of the last kept document; None when all of the input was read."""


@dataclass(frozen=True, slots=True)
class CutRules:
    """How to split and to weigh documents at the limit."""

    threshold: int
    count_bytes: CountBytes


def keep_tokens(
    docs: Docs,
    num_tokens: NDArray[np.uint64],
    *,
    limit: int,
    ids: Callable[[int], Ids],
    rules: CutRules,
) -> Kept:
    """Keep the first `limit` tokens (at least 1) of documents that follow each other.

    `ids(i)` gives the ids of document i; they are asked for the one that is cut.
    """
    ends = np.cumsum(num_tokens)
    last = int(np.searchsorted(ends, limit))
    cut = int(ends[last]) - limit
    docs, num_tokens = docs[: last + 1].copy(), num_tokens[: last + 1].copy()
    if cut:
        num_tokens[last] -= np.uint64(cut)
        docs["num_bytes"][last] = rules.count_bytes(ids(last)[: int(num_tokens[last])])
    val = rules.threshold and in_val(docs["content"][last:], rules.threshold)[0]
    return Kept(
        counts=count_documents(docs, num_tokens, threshold=rules.threshold),
        num_truncated_tokens=cut,
        cut_split=None if not cut else "val" if val else "train",
        stop=(int(docs["source"][last]), int(docs["position"][last])),
    )


def keep_of_part(part: Part, *, limit: int, rules: CutRules) -> Kept:
    """Keep the first `limit` tokens of a part, in input order."""
    bounds = np.concatenate([np.zeros(1, dtype=np.uint64), part.docs["end"]])

    def ids(index: int) -> Ids:
        return np.concatenate(list(part.tokens.read(int(bounds[index]), int(bounds[index + 1]))))

    return keep_tokens(part.docs, lengths(part.docs), limit=limit, ids=ids, rules=rules)


def keep_shuffled(parts: Callable[[], Iterable[Part]], *, limit: int, rules: CutRules) -> Kept:
    """Keep the first `limit` tokens of all parts, in shuffled order."""
    ends = np.cumsum(bucket_tokens(parts(), split=None, threshold=0))
    bucket = int(np.searchsorted(ends, limit))
    before = int(ends[bucket - 1]) if bucket else 0
    buckets = (bucket, bucket + 1)
    found = gather(
        (stretch for part in parts() for stretch in stretches(part, buckets)),
        buckets,
        split=None,
        threshold=0,
    )
    kept = keep_tokens(
        found.docs, found.num_tokens, limit=limit - before, ids=found.ids.__getitem__, rules=rules
    )
    counts = list(kept.counts)
    for part in parts():
        whole = part.docs["key"] < np.uint64(bucket << (64 - BUCKET_BITS))
        counts += count_documents(
            part.docs[whole], lengths(part.docs)[whole], threshold=rules.threshold
        )
    return replace(kept, counts=counts, stop=None)


def smallest_hashes_threshold(parts: Iterable[Part], *, num_documents: int) -> int | None:
    """Return the threshold below which the `num_documents` smallest content hashes lie.

    Equal documents have equal hashes and stay together, so there can be more of them.
    None: there are not that many documents.
    """
    smallest = np.empty(0, dtype=np.uint64)
    for part in parts:
        smallest = np.concatenate([smallest, part.docs["content"]])
        if len(smallest) > num_documents:
            smallest = np.partition(smallest, num_documents - 1)[:num_documents]
    return int(smallest.max()) + 1 if len(smallest) == num_documents else None
