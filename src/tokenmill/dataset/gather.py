"""Fill batches: rows of several sources, and rows joined from parts of earlier, other rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.batch import Batch
from tokenmill.dataset.buffers import BufferPool
from tokenmill.dataset.reading import Parts, Reading
from tokenmill.dataset.rows import Rows

OpenRows = Callable[[int, int], Rows]
"""Returns the rows of a source, by number, of a sequence length."""


def gather(
    readings: Sequence[Reading],
    sources: NDArray[np.int32],
    samples: NDArray[np.int64],
    *,
    open_rows: OpenRows,
    pool: BufferPool,
) -> Batch:
    """Return samples, each given by its source and its number there, as one batch in this order."""
    parts: list[tuple[NDArray[np.int64], Batch]] = []
    for source, reading in enumerate(readings):
        places = np.flatnonzero(sources == source)
        if not len(places):
            continue
        found = reading.locate(samples[places])
        whole = places[~found.are_rest]
        if len(whole):
            rows = open_rows(source, reading.seq_len)
            parts.append((whole, rows.read(found.rows[~found.are_rest])))
        if found.are_rest.any():
            joined = _join(reading, found.rows[found.are_rest], partial(open_rows, source))
            parts.append((places[found.are_rest], joined))
    if len(parts) == 1:
        return parts[0][1]  # of one source, and so in order already
    return _merge(parts, len(sources), pool=pool)


def _merge(
    parts: list[tuple[NDArray[np.int64], Batch]], num_rows: int, *, pool: BufferPool
) -> Batch:
    """Put the rows of each part at their places; all parts have the same arrays."""
    first = parts[0][1]
    shape = (num_rows, first.token_ids.shape[1])
    dtypes = (array.dtype for array in first.values())
    merged = Batch(zip(first, pool.empty(shape, *dtypes), strict=True))
    for places, batch in parts:
        for name, array in batch.items():
            merged[name][places] = array
    return merged


def _join(reading: Reading, samples: NDArray[np.int64], open_rows: Callable[[int], Rows]) -> Batch:
    """Return rows of the rest of an epoch that was begun with another sequence length.

    Each part of an earlier row counts as a document of its own, from position 0 on. Labels are
    those of the earlier row: the last input of a part still predicts the token that followed it.
    """
    shape = (len(samples), reading.seq_len)
    joined = Batch()
    copies: list[tuple[int, int, Batch]] = []
    for parts in reading.parts(samples):
        batch = open_rows(parts.seq_len).read(parts.rows)
        for name, array in batch.items():
            joined.setdefault(name, np.empty(shape, dtype=array.dtype))
        copies.extend(_cut(parts, batch))
    next_document = np.zeros(len(samples), dtype=np.int64)
    for place, offset, part in sorted(copies, key=lambda copy: copy[:2]):
        stop = offset + len(part.token_ids)
        part.document_ids = _renumber(part.document_ids, int(next_document[place]))
        next_document[place] = max(next_document[place], part.document_ids.max() + 1)
        for name, array in part.items():
            joined[name][place, offset:stop] = array
    return joined


def _cut(parts: Parts, batch: Batch) -> list[tuple[int, int, Batch]]:
    """Return each part with the row and the place in it that it goes to."""
    copies: list[tuple[int, int, Batch]] = []
    for index, (place, offset, _, start, stop) in enumerate(zip(*parts[1:], strict=True)):
        part = Batch({name: array[index, start:stop] for name, array in batch.items()})
        positions, documents = part.position_ids.copy(), part.document_ids
        if documents[0] >= 0:  # a document that was cut starts again
            positions[documents == documents[0]] -= positions[0]
        part.position_ids = positions
        copies.append((int(place), int(offset), part))
    return copies


def _renumber(document_ids: NDArray[np.int32], first: int) -> NDArray[np.int32]:
    """Let the documents of a part be counted from `first` on; padding stays what it is."""
    real = document_ids >= 0
    if not real.any():
        return document_ids
    shift = first - document_ids[real].min()
    return np.where(real, document_ids + shift, document_ids).astype(np.int32)
