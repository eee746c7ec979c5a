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
from tokenmill.folder import map_ahead
from tokenmill.pipeline.assemble import clip_rows, document_rows, select_documents
from tokenmill.pipeline.context import RunContext, open_run
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


class Stretch:
    """Documents of one sorted run that follow each other, and where their tokens are."""

    def __init__(self, part: Part, docs: Docs, start: int) -> None:
        self.docs = docs
        self.start = start
        """The first token, counted in the part."""
        self._tokens = part.tokens.narrowed(start, int(docs["end"][-1]))

    def read(self, start: int, stop: int) -> Ids:
        """Return the ids of [start, stop), counted in the part."""
        found = list(self._tokens.read(start, stop))
        self._tokens.forget()
        return found[0] if len(found) == 1 else np.concatenate(found)


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
        run.folder, task.split, index=task.index, dtype=run.dtype, num_tokens=task.num_tokens
    )
    with writer:
        found_in = _all_stretches(run, task)
        for first, after, group_start in task.groups:
            check_stop()
            found = gather(found_in, (first, after), split=task.split, threshold=task.threshold)
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
    stretches: Iterable[Stretch], buckets: tuple[int, int], *, split: str | None, threshold: int
) -> Gathered:
    """Return the documents of buckets [first, after) in shuffled order."""
    tables: list[Docs] = []
    ids: list[Ids] = []
    for stretch in stretches:
        start, stop = _rows(stretch.docs["key"], buckets)
        if start == stop:
            continue
        docs = stretch.docs[start:stop]
        offset = int(stretch.docs["end"][start - 1]) if start else stretch.start
        tokens = stretch.read(offset, int(docs["end"][-1]))
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


def stretches(part: Part, buckets: tuple[int, int]) -> Iterator[Stretch]:
    """Yield what each run of a part holds of buckets [first, after)."""
    base = 0
    for num_documents in part.receipt.runs:
        start, stop = _rows(part.docs["key"][base : base + num_documents], buckets)
        if start < stop:
            first = base + start
            offset = int(part.docs["end"][first - 1]) if first else 0
            yield Stretch(part, part.docs[first : base + stop].copy(), offset)
        base += num_documents


def _all_stretches(run: RunContext, task: ShuffledShardTask) -> list[Stretch]:
    """Return what all parts hold of a shard; the document tables of these stretches are kept."""
    if not task.groups:
        return []
    buckets = task.groups[0][0], task.groups[-1][1]

    def of_unit(unit: int) -> list[Stretch]:
        return list(stretches(run.part(unit), buckets))

    found: list[Stretch] = []
    units = range(task.num_units)
    for several in map_ahead(of_unit, units, num_threads=run.folder.num_readers):
        check_stop()
        found += several
    return found


def _rows(keys: NDArray[np.uint64], buckets: tuple[int, int]) -> tuple[int, int]:
    """Return the range of sorted keys that lie in buckets [first, after)."""
    low, high = (bucket << (64 - BUCKET_BITS) for bucket in buckets)
    start = bisect_left(keys, low)
    return start, bisect_left(keys, high, start)


def _group_buckets(
    starts: NDArray[np.int64], totals: NDArray[np.int64], *, first: int, after: int
) -> Iterator[tuple[int, int, int]]:
    while first < after:
        limit = int(starts[first]) + GROUP_TOKENS
        stop = int(np.searchsorted(starts + totals, limit, side="right"))
        stop = min(max(stop, first + 1), after)
        yield first, stop, int(starts[first])
        first = stop
