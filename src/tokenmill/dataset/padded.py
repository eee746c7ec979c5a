"""Packing `pad`: one document a row, padded to its length; what does not fit is cut off."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.batch import Batch
from tokenmill.dataset.buffers import BufferPool
from tokenmill.dataset.documents import all_document_ends, document_span
from tokenmill.dataset.pieces import Pieces, read_pieces
from tokenmill.dataset.rows import Accounting, DocumentSpan, check_indices
from tokenmill.dataset.token_source import TokenSource


class PaddedRows:
    """Row `i` is document `i`; one without tokens is a row of padding.

    A document of more than `seq_len` tokens is truncated: its first `seq_len` are inputs, and the
    one after them is the last label.
    """

    def __init__(self, source: TokenSource, *, seq_len: int) -> None:
        self.source = source
        self.seq_len = seq_len
        self.num_rows = source.num_documents
        self._pool = BufferPool()

    def read(self, indices: NDArray[np.int64]) -> Batch:
        """Return the rows with these numbers."""
        documents = check_indices(indices, self.num_rows)
        spans = [document_span(self.source, document) for document in documents.tolist()]
        starts, stops = np.array(spans, dtype=np.int64).reshape(-1, 2).T
        return read_pieces(
            self.source,
            Pieces(np.arange(len(documents)), starts, np.minimum(stops - starts, self.seq_len + 1)),
            shape=(len(documents), self.seq_len),
            pool=self._pool,
        )

    def accounting(self) -> Accounting:
        """Return what becomes of every token in an epoch; goes through all document ends."""
        num_used = num_inputs = num_masked = 0
        for before, ends in all_document_ends(self.source):
            lengths = np.diff(ends, prepend=before)
            num_used += int(np.minimum(lengths, self.seq_len + 1).sum())
            num_inputs += int(np.minimum(lengths, self.seq_len).sum())
            num_masked += int(np.count_nonzero((lengths > 0) & (lengths <= self.seq_len)))
        return Accounting(
            num_rows=self.num_rows,
            seq_len=self.seq_len,
            num_tokens=self.source.num_tokens,
            num_used=num_used,
            num_dropped=0,
            num_truncated=self.source.num_tokens - num_used,
            num_repeated=0,
            num_padded=self.num_rows * self.seq_len - num_inputs,
            num_masked=num_masked,
        )

    def documents(self, index: int) -> list[DocumentSpan]:
        """Return the document of a row, unless it has no tokens."""
        check_indices(np.array([index]), self.num_rows)
        start, stop = document_span(self.source, index)
        stop = min(stop, start + self.seq_len)
        span = DocumentSpan(document=index, start=start, stop=stop, offset=0)
        return [span] if start < stop else []

    def rows_of(self, document: int) -> NDArray[np.int64]:
        """Return the number of the row of a document, unless it has no tokens."""
        return np.array([span.document for span in self.documents(document)], dtype=np.int64)
