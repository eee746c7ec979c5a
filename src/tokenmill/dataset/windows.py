"""Rows that are windows of the token stream: what `concat` and `sliding` have in common."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.batch import IGNORED, Batch
from tokenmill.dataset.buffers import BufferPool
from tokenmill.dataset.rows import DocumentSpan
from tokenmill.dataset.token_source import TokenSource

_NAMES: Final = ("token_ids", "labels", "document_ids", "position_ids")
_PLACES_AT_ONCE: Final = 1 << 14
"""So few that intermediate arrays come from memory that the process already has."""
ENDS_AT_ONCE: Final = 1 << 16
"""Documents whose ends are looked at in one piece: half a megabyte."""


def read_windows(
    source: TokenSource,
    starts: NDArray[np.int64],
    *,
    seq_len: int,
    pool: BufferPool,
    mask_boundaries: bool = False,
) -> Batch:
    """Return one row for each start: `seq_len` inputs, each with the id after it as its label."""
    ids, breaks = source.read_windows(starts, seq_len + 1)
    batch = empty_batch(len(starts), seq_len, pool=pool)
    batch.token_ids[...] = ids[:, :-1]
    batch.labels[...] = ids[:, 1:]
    rows, columns = np.divmod(breaks, seq_len + 1)
    if mask_boundaries:
        batch.labels[rows, columns - 1] = IGNORED
    inside = columns < seq_len
    number_documents(batch, rows[inside], columns=columns[inside])
    return batch


def empty_batch(num_rows: int, seq_len: int, *, pool: BufferPool) -> Batch:
    """Return a batch whose arrays hold anything."""
    arrays = pool.empty((num_rows, seq_len), np.int64, np.int64, np.int32, np.int32)
    return Batch(zip(_NAMES, arrays, strict=True))


def number_documents(batch: Batch, rows: NDArray[np.int64], *, columns: NDArray[np.int64]) -> None:
    """Fill in document ids and position ids, given where documents begin after the first column.

    The places are in order of rows, then columns.
    """
    num_rows: int = batch.document_ids.shape[0]
    seq_len: int = batch.document_ids.shape[1]
    # A batch is cut into pieces, at the first column and at the places; here are their numbers.
    row_pieces = np.searchsorted(rows, np.arange(num_rows + 1)) + np.arange(num_rows + 1)
    pieces = np.arange(1, len(rows) + 1) + rows
    numbers = np.zeros(row_pieces[-1], dtype=np.int32)
    numbers[pieces] = pieces - row_pieces[rows]
    starts = np.zeros(len(numbers), dtype=np.int32)
    starts[pieces] = columns
    lengths = np.diff(starts, append=np.int32(0))
    lengths[row_pieces[1:] - 1] += seq_len
    places = np.arange(seq_len, dtype=np.int32)
    rows_at_once = max(1, _PLACES_AT_ONCE // seq_len)
    for first in range(0, num_rows, rows_at_once):
        some = slice(first, first + rows_at_once)
        low, high = row_pieces[first], row_pieces[min(first + rows_at_once, num_rows)]
        shape, repeats = (-1, seq_len), lengths[low:high]
        batch.document_ids[some] = np.repeat(numbers[low:high], repeats).reshape(shape)
        before = np.repeat(starts[low:high], repeats).reshape(shape)
        np.subtract(places, before, out=batch.position_ids[some])


def window_documents(source: TokenSource, start: int, stop: int) -> list[DocumentSpan]:
    """Return the documents that have tokens from `start` to `stop`."""
    spans: list[DocumentSpan] = []
    document, token = source.document_at(start), start
    while token < stop:
        end = min(int(source.document_ends(document, document + 1)[0]), stop)
        if end > token:
            spans.append(
                DocumentSpan(document=document, start=token, stop=end, offset=token - start)
            )
        document, token = document + 1, end
    return spans


def document_span(source: TokenSource, document: int) -> tuple[int, int]:
    """Return the first token of a document and the one after its last."""
    if not 0 <= document < source.num_documents:
        raise IndexError(f"document {document} is outside [0, {source.num_documents})")
    ends = source.document_ends(max(document - 1, 0), document + 1)
    return (int(ends[0]) if document else 0), int(ends[-1])


def count_breaks(source: TokenSource, stop: int) -> int:
    """Return at how many of the tokens 1 to `stop` a document begins; reads all document ends."""
    total, last = 0, 0
    for first in range(0, source.num_documents, ENDS_AT_ONCE):
        ends = source.document_ends(first, min(first + ENDS_AT_ONCE, source.num_documents))
        changed = np.diff(ends, prepend=last) > 0  # a document without tokens repeats an end
        total += int(np.count_nonzero(changed & (ends < stop)))
        last = int(ends[-1])
    return total
