"""Packing `best-fit`: whole documents placed into rows, so that few are cut and little is padded.

A document that fits a row is never split. A longer one gives whole rows of its own, each with the
id after it as its last label, and a remainder, which is placed like a document. So every token is
an input exactly once an epoch, and nothing is dropped or truncated.

Documents are packed in blocks of 65,536 that follow each other. In a block the longest is placed
first, each into the fullest row that has room for it (best-fit decreasing). What a block looks like
depends on its document lengths and `seq_len` alone, so it is the same everywhere. It is computed
when one of its rows is read, and kept while there is room. The number of rows of every block must
be known from the start: that takes one pass over the document table.

Rows of a block: first those that are put together, in the order of their first documents, then the
whole rows of long documents.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.batch import Batch
from tokenmill.dataset.best_fit_block import (
    BLOCK_DOCUMENTS,
    Block,
    BlockCounts,
    count_block,
    pack_block,
)
from tokenmill.dataset.buffers import BufferPool
from tokenmill.dataset.pieces import Pieces, place, read_pieces
from tokenmill.dataset.rows import Accounting, DocumentSpan, check_indices
from tokenmill.dataset.token_source import TokenSource

MAX_KEPT_BYTES: Final = 128 << 20
"""Memory for the packed blocks of one source: about 16 million documents."""


class BestFitRows:
    """Rows of whole documents, with padding at their ends."""

    def __init__(self, source: TokenSource, *, seq_len: int, mask_boundaries: bool = False) -> None:
        self.source = source
        self.seq_len = seq_len
        self.mask_boundaries = mask_boundaries
        num_blocks = -(-source.num_documents // BLOCK_DOCUMENTS)
        counts = [count_block(source, number, seq_len=seq_len) for number in range(num_blocks)]
        self._total = BlockCounts(*np.sum([(0, 0, 0, 0), *counts], axis=0).tolist())
        sizes = [count.num_packed + count.num_whole for count in counts]
        self._first_rows = np.cumsum([0, *sizes], dtype=np.int64)
        self._kept: dict[int, Block] = {}
        self._pool = BufferPool()
        self.num_rows = int(self._first_rows[-1])

    def read(self, indices: NDArray[np.int64]) -> Batch:
        """Return the rows with these numbers."""
        indices = check_indices(indices, self.num_rows)
        return read_pieces(
            self.source,
            self._pieces(indices)[0],
            shape=(len(indices), self.seq_len),
            pool=self._pool,
            mask_boundaries=self.mask_boundaries,
        )

    def accounting(self) -> Accounting:
        """Return what becomes of every token in an epoch."""
        # The last token of a row has no label, unless its document goes on in another row.
        num_masked = self._total.num_packed + self._total.num_exact
        if self.mask_boundaries:
            num_masked += self._total.num_items - self._total.num_packed
        return Accounting(
            num_rows=self.num_rows,
            seq_len=self.seq_len,
            num_tokens=self.source.num_tokens,
            num_used=self.source.num_tokens,
            num_dropped=0,
            num_truncated=0,
            num_repeated=0,
            num_padded=self.num_rows * self.seq_len - self.source.num_tokens,
            num_masked=num_masked,
        )

    def documents(self, index: int) -> list[DocumentSpan]:
        """Return the documents of which a row has inputs."""
        pieces, documents = self._pieces(check_indices(np.array([index]), self.num_rows))
        starts, lengths = pieces.starts, np.minimum(pieces.lengths, self.seq_len)
        found = np.stack((documents, starts, starts + lengths, place(pieces, 1)[0]), axis=1)
        return [
            DocumentSpan(document=document, start=start, stop=stop, offset=offset)
            for document, start, stop, offset in found.tolist()
        ]

    def rows_of(self, document: int) -> NDArray[np.int64]:
        """Return the numbers of the rows that have inputs of a document."""
        if not 0 <= document < self.source.num_documents:
            raise IndexError(f"document {document} is outside [0, {self.source.num_documents})")
        number, local = divmod(document, BLOCK_DOCUMENTS)
        return self._block(number).rows_of(local) + self._first_rows[number]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}}

    def _pieces(self, indices: NDArray[np.int64]) -> tuple[Pieces, NDArray[np.int64]]:
        """Return the pieces of rows in order, and the document that each is of."""
        blocks = self._first_rows.searchsorted(indices, side="right") - 1
        parts = [(np.empty(0, dtype=np.int64),) * 4]
        for number in np.unique(blocks).tolist():
            places = np.flatnonzero(blocks == number)
            local = indices[places] - self._first_rows[number]
            pieces, documents = self._block(number).pieces(local)
            parts.append((places[pieces.rows], pieces.starts, pieces.lengths, documents))
        rows, starts, lengths, documents = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(rows, kind="stable")
        return Pieces(rows[order], starts[order], lengths[order]), documents[order]

    def _block(self, number: int) -> Block:
        block = self._kept.get(number)
        if block is None:
            block = pack_block(self.source, number, seq_len=self.seq_len)
            self._kept[number] = block
            while len(self._kept) > 1 and self._num_kept_bytes() > MAX_KEPT_BYTES:
                self._kept.pop(next(iter(self._kept)), None)
        return block

    def _num_kept_bytes(self) -> int:
        return sum(block.num_bytes for block in tuple(self._kept.values()))
