"""One block of the packing `best-fit`: which documents are in which of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.bins import best_fit_decreasing, count_bins
from tokenmill.dataset.pieces import Pieces
from tokenmill.dataset.token_source import TokenSource

BLOCK_DOCUMENTS: Final = 1 << 16


class BlockCounts(NamedTuple):
    """What a block comes to."""

    num_packed: int
    """Rows that are put together from documents and remainders."""
    num_whole: int
    """Rows that are cut from long documents."""
    num_items: int
    """Documents and remainders that are put together."""
    num_exact: int
    """Documents that end where a whole row of theirs ends."""


@dataclass(frozen=True, slots=True)
class Block:
    """A packed block; takes six bytes a document and four a row."""

    first_document: int
    first_token: int
    seq_len: int
    bounds: NDArray[Any]
    """Where each document begins, counted from the first token, and where the last ends."""
    items: NDArray[np.uint16]
    """Documents in the order of rows, counted from the first of the block."""
    row_items: NDArray[np.uint32]
    """For each row that is put together, its first item; and the number of items."""
    long: NDArray[np.uint16]
    """Documents that have whole rows."""
    long_rows: NDArray[np.int64]
    """For each of them its first whole row; and the number of these rows."""

    @property
    def num_bytes(self) -> int:
        """Memory that the block takes."""
        arrays = (self.bounds, self.items, self.row_items, self.long, self.long_rows)
        return sum(array.nbytes for array in arrays)

    def pieces(self, rows: NDArray[np.int64]) -> tuple[Pieces, NDArray[np.int64]]:
        """Return the pieces of rows of the block, and the document of each.

        `Pieces.rows` are places in `rows`; the pieces of a row are in order, the rows are not.
        """
        num_packed = len(self.row_items) - 1
        packed, whole = np.flatnonzero(rows < num_packed), np.flatnonzero(rows >= num_packed)
        firsts = self.row_items[rows[packed]].astype(np.int64)
        counts = self.row_items[rows[packed] + 1] - firsts
        places = np.repeat(firsts - np.cumsum(counts) + counts, counts)
        places += np.arange(len(places))
        items = self.items[places].astype(np.int64)
        stops = self.bounds[items + 1].astype(np.int64)
        remainders = (stops - self.bounds[items].astype(np.int64)) % self.seq_len

        numbers = rows[whole] - num_packed
        which = self.long_rows.searchsorted(numbers, side="right") - 1
        documents = self.long[which].astype(np.int64)
        starts = (numbers - self.long_rows[which]) * self.seq_len
        starts += self.bounds[documents].astype(np.int64)
        lengths = np.minimum(self.bounds[documents + 1] - starts, self.seq_len + 1)
        pieces = Pieces(
            np.concatenate((np.repeat(packed, counts), whole)),
            np.concatenate((stops - remainders, starts)) + self.first_token,
            np.concatenate((remainders, lengths)),
        )
        return pieces, np.concatenate((items, documents)) + self.first_document

    def rows_of(self, document: int) -> NDArray[np.int64]:
        """Return the rows that have inputs of a document of the block, in order."""
        items = np.flatnonzero(self.items == document)
        packed = self.row_items.searchsorted(items, side="right") - 1
        which = np.flatnonzero(self.long == document)
        first = len(self.row_items) - 1
        for i in which.tolist():
            start, stop = int(self.long_rows[i]), int(self.long_rows[i + 1])
            packed = np.concatenate((packed, np.arange(start, stop) + first))
        return packed


def count_block(source: TokenSource, number: int, *, seq_len: int) -> BlockCounts:
    """Return what a block comes to, without finding out what is where."""
    lengths = np.diff(_read_bounds(source, number))
    remainders = lengths % seq_len
    items = remainders[remainders > 0]
    return BlockCounts(
        num_packed=count_bins(items, seq_len),
        num_whole=int((lengths // seq_len).sum()),
        num_items=len(items),
        num_exact=int(np.count_nonzero((remainders == 0) & (lengths > 0))),
    )


def pack_block(source: TokenSource, number: int, *, seq_len: int) -> Block:
    """Pack the documents of a block."""
    bounds = _read_bounds(source, number)
    lengths = np.diff(bounds)
    candidates = np.flatnonzero(lengths % seq_len)
    order, bins = best_fit_decreasing((lengths % seq_len)[candidates], seq_len)
    items = candidates[order]
    num_rows = int(bins.max()) + 1 if len(bins) else 0
    # Rows in the order of their first documents, documents in order in each row.
    firsts = np.full(num_rows, BLOCK_DOCUMENTS)
    np.minimum.at(firsts, bins, items)
    row_numbers = np.empty(num_rows, dtype=np.int64)
    row_numbers[np.argsort(firsts)] = np.arange(num_rows)
    rows = row_numbers[bins]
    long = np.flatnonzero(lengths >= seq_len)
    size = int(bounds[-1] - bounds[0])
    return Block(
        first_document=number * BLOCK_DOCUMENTS,
        first_token=int(bounds[0]),
        seq_len=seq_len,
        bounds=(bounds - bounds[0]).astype(np.uint32 if size < 1 << 32 else np.int64),
        items=items[np.argsort(rows * BLOCK_DOCUMENTS + items)].astype(np.uint16),
        row_items=_starts(np.bincount(rows, minlength=num_rows)).astype(np.uint32),
        long=long.astype(np.uint16),
        long_rows=_starts(lengths[long] // seq_len),
    )


def _read_bounds(source: TokenSource, number: int) -> NDArray[np.int64]:
    """Return where the documents of a block begin, and where the last of them ends."""
    first = number * BLOCK_DOCUMENTS
    stop = min(first + BLOCK_DOCUMENTS, source.num_documents)
    if first:
        return source.document_ends(first - 1, stop)
    return np.concatenate(([0], source.document_ends(0, stop)))


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(counts)))
