"""The shuffled order: an external sort of documents by key, in bounded memory.

Each part is a series of runs sorted by key. Keys are uniform, so the documents whose keys begin
with the same 16 bits, a bucket, are a short contiguous stretch of every run. A shard is a range of
buckets: it gathers those stretches, sorts them by key and writes them; shards are independent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenmill.engine import check_stop
from tokenmill.pipeline.assemble import clip_rows, document_rows, select_documents
from tokenmill.pipeline.context import open_run
from tokenmill.pipeline.journal import FinishedShard
from tokenmill.pipeline.parts import PART_DOCS_DTYPE, Docs, Ids, Part, lengths
from tokenmill.store import ShardWriter

BUCKET_BITS = 16
NUM_BUCKETS = 1 << BUCKET_BITS
GROUP_TOKENS = 1 << 22
"""Tokens gathered at a time; a bucket or a document that is larger is gathered alone."""


class ShuffledShardTask(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One shard of a shuffled split."""

    output: str
    threshold: int
    split: str
    index: int = 0
    start: int = 0
    num_tokens: int
    last: bool = True
    groups: tuple[tuple[int, int, int], ...] = ()
    """(first bucket, bucket after the last, first token) of what is gathered at a time."""
    num_units: int


@dataclass(slots=True)
class Gathered:
    """Documents in shuffled order, with their ids."""

    docs: Docs
    ids: list[Ids]

    @property
    def num_tokens(self) -> NDArray[np.uint64]:
        """Tokens of each document."""
        return np.array([len(ids) for ids in self.ids], dtype=np.uint64)


def bucket_tokens(parts: Iterable[Part], *, split: str | None, threshold: int) -> NDArray[np.int64]:
    """Count the tokens of each bucket, of one split or of all."""
    totals = np.zeros(NUM_BUCKETS, dtype=np.int64)
    for part in parts:
        docs, num_tokens = part.docs, lengths(part.docs)
        if split is not None:
            chosen = select_documents(docs, split=split, threshold=threshold)
            docs, num_tokens = docs[chosen], num_tokens[chosen]
        buckets = (docs["key"] >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)
        totals += np.bincount(buckets, weights=num_tokens, minlength=NUM_BUCKETS).astype(np.int64)
    return totals


def shuffled_tasks(
    like: ShuffledShardTask, totals: NDArray[np.int64], *, shard_tokens: int
) -> list[ShuffledShardTask]:
    """Cut a split, given as one shard whose buckets hold `totals`, into shards."""
    starts = np.cumsum(totals) - totals
    tasks: list[ShuffledShardTask] = []
    for index, start in enumerate(range(0, like.num_tokens, shard_tokens)):
        stop = min(start + shard_tokens, like.num_tokens)
        first = int(np.searchsorted(starts + totals, start, side="right"))
        after = int(np.searchsorted(starts, stop, side="left"))
        tasks.append(
            msgspec.structs.replace(
                like,
                index=index,
                start=start,
                num_tokens=stop - start,
                last=stop == like.num_tokens,
                groups=tuple(_group_buckets(starts, totals, first=first, after=after)),
            )
        )
    return tasks


def assemble_shuffled(task: ShuffledShardTask) -> FinishedShard:
    """Write one shard in shuffled order; memory is a group of buckets and the document tables."""
    run = open_run(task.output)
    stop = task.start + task.num_tokens
    tables: list[NDArray[np.void]] = []
    writer = ShardWriter(
        run.output, task.split, index=task.index, dtype=run.dtype, num_tokens=task.num_tokens
    )
    with writer:
        for first, after, group_start in task.groups:
            check_stop()
            parts = (run.part(unit) for unit in range(task.num_units))
            found = gather(
                parts, first=first, after=after, split=task.split, threshold=task.threshold
            )
            rows = document_rows(found.docs, found.num_tokens, start=group_start)
            tables.append(clip_rows(rows, task.start, stop, last=task.last))
            position = group_start
            for ids in found.ids:
                low, high = max(task.start - position, 0), min(stop - position, len(ids))
                if low < high:
                    writer.write(ids[low:high])
                position += len(ids)
        entry = writer.finish(np.concatenate(tables))
    return FinishedShard(task.split, task.index, task.start, entry)


def gather(
    parts: Iterable[Part], *, first: int, after: int, split: str | None, threshold: int
) -> Gathered:
    """Return the documents of buckets [first, after) in shuffled order."""
    tables: list[Docs] = []
    ids: list[Ids] = []
    for part in parts:
        for start, stop in _bucket_ranges(part, first, after):
            docs = part.docs[start:stop]
            offset = int(part.docs["end"][start - 1]) if start else 0
            tokens = _joined(part.tokens(offset, int(docs["end"][-1])), dtype=part.dtype)
            ends = (docs["end"] - np.uint64(offset)).tolist()
            texts = [tokens[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]
            if split is not None:
                chosen = select_documents(docs, split=split, threshold=threshold)
                docs, texts = docs[chosen], [texts[i] for i in np.flatnonzero(chosen)]
            tables.append(docs)
            ids.extend(texts)
    if not tables:
        return Gathered(np.empty(0, dtype=PART_DOCS_DTYPE), [])
    docs = np.concatenate(tables)
    order = np.argsort(docs["key"], kind="stable")  # equal keys stay in the order of the input
    return Gathered(docs[order], [ids[i] for i in order])


def _bucket_ranges(part: Part, first: int, after: int) -> Iterator[tuple[int, int]]:
    """Yield the rows of each run of a part whose keys lie in buckets [first, after)."""
    keys = part.docs["key"]
    low, high = first << (64 - BUCKET_BITS), after << (64 - BUCKET_BITS)
    base = 0
    for num_documents in part.receipt.runs:
        start = bisect_left(keys, low, base, base + num_documents)
        stop = bisect_left(keys, high, start, base + num_documents)
        if start < stop:
            yield start, stop
        base += num_documents


def _group_buckets(
    starts: NDArray[np.int64], totals: NDArray[np.int64], *, first: int, after: int
) -> Iterator[tuple[int, int, int]]:
    while first < after:
        limit = int(starts[first]) + GROUP_TOKENS
        stop = int(np.searchsorted(starts + totals, limit, side="right"))
        stop = min(max(stop, first + 1), after)
        yield first, stop, int(starts[first])
        first = stop


def _joined(pieces: Iterator[Ids], *, dtype: np.dtype) -> Ids:
    found = list(pieces)
    return found[0] if len(found) == 1 else np.concatenate([np.empty(0, dtype=dtype), *found])
