"""Make a batch: its memory, and the ids that say which document each token is of."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.batch import Batch
from tokenmill.dataset.buffers import BufferPool

_NAMES: Final = ("token_ids", "labels", "document_ids", "position_ids")
_DTYPES: Final = tuple(np.dtype(name) for name in ("int64", "int64", "int32", "int32"))
_PLACES_AT_ONCE: Final = 1 << 16
"""So few that intermediate arrays come from memory that the process already has."""


def empty_batch(num_rows: int, seq_len: int, *, pool: BufferPool) -> Batch:
    """Return a batch whose arrays hold anything."""
    arrays = pool.empty((num_rows, seq_len), *_DTYPES)
    return Batch(zip(_NAMES, arrays, strict=True))


def number_documents(batch: Batch, rows: NDArray[np.int64], *, columns: NDArray[np.int64]) -> None:
    """Fill in document ids and position ids, given where documents begin after the first column.

    The places are in order of rows, then columns. One behind the last column changes nothing: it
    begins a document of which the row has no input.
    """
    documents: NDArray[np.int32] = batch["document_ids"]
    positions: NDArray[np.int32] = batch["position_ids"]
    num_rows, seq_len = len(documents), positions.shape[1]
    # A batch is cut into pieces, at the first column and at the places; here are their numbers.
    row_pieces = np.searchsorted(rows, np.arange(num_rows + 1)) + np.arange(num_rows + 1)
    pieces = np.arange(1, len(rows) + 1) + rows
    numbers = np.zeros(row_pieces[-1], dtype=np.int32)
    numbers[pieces] = pieces - row_pieces[rows]
    starts = np.zeros(len(numbers), dtype=np.int32)
    starts[pieces] = columns
    lengths = -starts
    lengths[:-1] += starts[1:]
    lengths[row_pieces[1:] - 1] += seq_len
    places = np.arange(seq_len, dtype=np.int32)
    rows_at_once = max(1, _PLACES_AT_ONCE // seq_len)
    for first in range(0, num_rows, rows_at_once):
        some = slice(first, first + rows_at_once)
        low, high = row_pieces[first], row_pieces[min(first + rows_at_once, num_rows)]
        shape, repeats = (-1, seq_len), lengths[low:high]
        documents[some] = np.repeat(numbers[low:high], repeats).reshape(shape)
        before = np.repeat(starts[low:high], repeats).reshape(shape)
        np.subtract(places, before, out=positions[some])
        del before  # so that its memory is there for the next
