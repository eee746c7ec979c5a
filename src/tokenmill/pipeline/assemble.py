"""Parts to shards: copy the tokens of a split into files of exactly the right length."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenmill.engine import check_stop
from tokenmill.pipeline.context import open_run
from tokenmill.pipeline.journal import FinishedShard
from tokenmill.pipeline.layout import ShardLayout
from tokenmill.pipeline.order import in_val
from tokenmill.pipeline.parts import Docs, Ids, Part, lengths
from tokenmill.store import DOCS_DTYPE, ShardWriter


class ShardTask(msgspec.Struct, frozen=True, tag=True):
    """One shard of the run that writes to `output`."""

    output: str
    threshold: int
    """Content hash below which a document belongs to val."""
    layout: ShardLayout


def assemble_shard(task: ShardTask) -> FinishedShard:
    """Write one shard in input order; memory is a piece of a part and the document tables."""
    run, shard = open_run(task.output), task.layout
    stop = shard.start + shard.num_tokens
    tables: list[NDArray[np.void]] = []
    writer = ShardWriter(
        run.folder, shard.split, index=shard.index, dtype=run.dtype, num_tokens=shard.num_tokens
    )
    with writer:
        for slot in shard.slots:
            part = run.part(slot.unit)
            chosen = select_documents(part.docs, split=shard.split, threshold=task.threshold)
            first, last = max(shard.start - slot.start, 0), stop - slot.start
            for ids in chosen_tokens(part, chosen, start=first, stop=last):
                check_stop()
                writer.write(ids)
            rows = document_rows(part.docs[chosen], lengths(part.docs)[chosen], start=slot.start)
            tables.append(clip_rows(rows, shard.start, stop, last=shard.last))
        entry = writer.finish(np.concatenate(tables))
    return FinishedShard(shard.split, shard.index, shard.start, entry)


def select_documents(docs: Docs, *, split: str, threshold: int) -> NDArray[np.bool_]:
    """Tell which documents of a part belong to a split."""
    if not threshold:
        return np.full(len(docs), split == "train")
    val = in_val(docs["content"], threshold)
    return val if split == "val" else ~val


def chosen_tokens(part: Part, chosen: NDArray[np.bool_], *, start: int, stop: int) -> Iterator[Ids]:
    """Yield ids of the chosen documents; [start, stop) counts the tokens of these only."""
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    bounds = np.concatenate([np.zeros(1, dtype=np.uint64), part.docs["end"]]).astype(np.int64)
    position = 0
    ranges: list[tuple[int, int]] = []
    for first, last in bounds[edges].reshape(-1, 2).tolist():  # stretches of neighbouring documents
        low, high = max(start - position, 0), min(stop - position, last - first)
        if low < high:
            ranges.append((first + low, first + high))
        position += last - first
    if ranges:
        part.tokens.expect(ranges[0][0], ranges[-1][1])
    for first, last in ranges:
        yield from part.tokens.read(first, last)


def clip_rows(rows: NDArray[np.void], start: int, stop: int, *, last: bool) -> NDArray[np.void]:
    """Keep documents that end in (start, stop]; at the end of a split, also the one cut there."""
    ends = rows["end"]
    bounds = np.array([start, stop], dtype=np.uint64)  # as floats, large ones would be rounded
    first, after = np.searchsorted(ends, bounds, side="right").tolist()
    if last and after < len(rows) and (after == 0 or ends[after - 1] < stop):
        after += 1
    kept = rows[first:after]
    kept["end"] = np.minimum(kept["end"], stop)
    return kept


def document_rows(docs: Docs, num_tokens: NDArray[np.uint64], *, start: int) -> NDArray[np.void]:
    """Return table rows for documents that follow each other from token `start` of a split on."""
    rows = np.empty(len(docs), dtype=DOCS_DTYPE)
    rows["end"] = np.uint64(start) + np.cumsum(num_tokens)
    rows["source"] = docs["source"]
    rows["position"] = docs["position"]
    return rows
