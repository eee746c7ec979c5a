"""Fill batches: rows of several sources, and rows joined from parts of earlier, other rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.batch import PADDING, Batch
from tokenmill.dataset.buffers import BufferPool
from tokenmill.dataset.numbering import number_documents
from tokenmill.dataset.reading import Reading
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
    begins = np.zeros(shape, dtype=np.bool_)
    for parts in reading.parts(samples):
        batch = open_rows(parts.seq_len).read(parts.rows)
        for name, array in batch.items():
            joined.setdefault(name, np.empty(shape, dtype=array.dtype))
        places = zip(*(array.tolist() for array in parts[1:]), strict=True)
        for index, (place, offset, _, start, stop) in enumerate(places):
            begins[place, offset] = True
            for name, array in batch.items():
                joined[name][place, offset : offset + stop - start] = array[index, start:stop]
    _number(joined, begins)
    return joined


def _number(batch: Batch, begins: NDArray[np.bool_]) -> None:
    """Number documents and positions anew: a document begins with a part and as it did before.

    Only padding at the end of a row is numbered as padding. Between parts, it is a document without
    labels and attention, since documents are numbered in order.
    """
    begins[:, 1:] |= np.diff(batch.document_ids, axis=1) != 0
    begins[:, 0] = False
    rows, columns = np.nonzero(begins)
    number_documents(batch, rows, columns=columns)
    if batch.attention_mask is not None:
        are_followed = np.logical_or.accumulate(batch.attention_mask[:, ::-1], axis=1)[:, ::-1]
        batch.document_ids[~are_followed] = PADDING
