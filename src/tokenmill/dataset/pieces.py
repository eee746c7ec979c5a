"""Rows put together from runs of tokens and filled up with padding."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.batch import IGNORED, PADDING, Batch
from tokenmill.dataset.buffers import BufferPool
from tokenmill.dataset.numbering import empty_batch, number_documents
from tokenmill.dataset.token_source import TokenSource


class Pieces(NamedTuple):
    """Runs of tokens, in the order of rows and, in a row, from left to right without gaps.

    A row has room for `seq_len` inputs; a last piece that is one longer gives the last label, too.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]


def read_pieces(
    source: TokenSource,
    pieces: Pieces,
    *,
    shape: tuple[int, int],
    pool: BufferPool,
    mask_boundaries: bool = False,
) -> Batch:
    """Return the rows that the pieces make, each padded to `shape[1]` inputs.

    Every input has the id after it in its row as its label, across pieces unless
    `mask_boundaries`; the last one has none.
    """
    num_rows, seq_len = shape
    columns, num_filled = place(pieces, num_rows)
    (ids,) = pool.empty((num_rows, seq_len + 1), source.dtype)
    places = pieces.rows * (seq_len + 1) + columns
    runs = zip(places.tolist(), pieces.starts.tolist(), pieces.lengths.tolist(), strict=True)
    source.read_runs(ids.reshape(-1), runs)
    batch = empty_batch(num_rows, seq_len, pool=pool)
    batch["token_ids"][...] = ids[:, :-1]
    batch["labels"][...] = ids[:, 1:]
    if mask_boundaries:
        later = columns > 0
        batch.labels[pieces.rows[later], columns[later] - 1] = IGNORED
    padded = np.flatnonzero(num_filled < seq_len)
    _number(batch, pieces, columns=columns, padded=padded, num_filled=num_filled)
    batch.labels[num_filled == seq_len, -1] = IGNORED
    for row, filled in zip(padded.tolist(), num_filled[padded].tolist(), strict=True):
        batch["token_ids"][row, filled:] = source.pad_id
        batch["labels"][row, max(filled - 1, 0) :] = IGNORED
        batch["document_ids"][row, filled:] = PADDING
    batch["attention_mask"] = np.arange(seq_len) < num_filled[:, None]
    return batch


def place(pieces: Pieces, num_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the column at which each piece begins, and how much of each row is filled."""
    ends = np.cumsum(pieces.lengths)
    row_ends = np.concatenate(([0], ends))[np.searchsorted(pieces.rows, np.arange(num_rows + 1))]
    columns = ends - pieces.lengths - row_ends[pieces.rows]
    return columns, np.diff(row_ends)


def _number(
    batch: Batch,
    pieces: Pieces,
    *,
    columns: NDArray[np.int64],
    padded: NDArray[np.int64],
    num_filled: NDArray[np.int64],
) -> None:
    """Number the documents of each row and their positions; padding is numbered like a document."""
    rows = np.concatenate((pieces.rows, padded))
    columns = np.concatenate((columns, num_filled[padded]))
    order = np.argsort(rows, kind="stable")
    order = order[columns[order] > 0]
    number_documents(batch, rows[order], columns=columns[order])
