"""Packing `concat`: the stream of tokens cut into rows that overlap by one id.

    tokens   a b c d e f g h i j        seq_len 3
    row 0    a b c d                    inputs a b c, labels b c d
    row 1          d e f g
    row 2                g h i j

So every token is an input once and a target once an epoch; only the first has nobody to predict it,
and the last nothing to predict. Tokens after the last whole row are dropped and counted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.batch import Batch
from tokenmill.dataset.buffers import BufferPool
from tokenmill.dataset.rows import Accounting, DocumentSpan, check_indices
from tokenmill.dataset.token_source import TokenSource
from tokenmill.dataset.windows import (
    count_breaks,
    document_span,
    read_windows,
    window_documents,
)


class ConcatRows:
    """Row `i` has the tokens from `i * seq_len` on, and one more for its last label."""

    def __init__(self, source: TokenSource, *, seq_len: int, mask_boundaries: bool = False) -> None:
        self.source = source
        self.seq_len = seq_len
        self.mask_boundaries = mask_boundaries
        self._pool = BufferPool()
        self.num_rows = max(source.num_tokens - 1, 0) // seq_len

    def read(self, indices: NDArray[np.int64]) -> Batch:
        """Return the rows with these numbers."""
        return read_windows(
            self.source,
            check_indices(indices, self.num_rows) * self.seq_len,
            seq_len=self.seq_len,
            pool=self._pool,
            mask_boundaries=self.mask_boundaries,
        )

    def accounting(self) -> Accounting:
        """Return what becomes of every token in an epoch."""
        num_inputs = self.num_rows * self.seq_len
        num_used = num_inputs + 1 if self.num_rows else 0
        return Accounting(
            num_rows=self.num_rows,
            seq_len=self.seq_len,
            num_tokens=self.source.num_tokens,
            num_used=num_used,
            num_dropped=self.source.num_tokens - num_used,
            num_truncated=0,
            num_repeated=0,
            num_padded=0,
            num_masked=count_breaks(self.source, num_used) if self.mask_boundaries else 0,
        )

    def documents(self, index: int) -> list[DocumentSpan]:
        """Return the documents of which a row has inputs."""
        start = int(check_indices(np.array([index]), self.num_rows)[0]) * self.seq_len
        return window_documents(self.source, start, start + self.seq_len)

    def rows_of(self, document: int) -> NDArray[np.int64]:
        """Return the numbers of the rows that have inputs of a document."""
        start, stop = document_span(self.source, document)
        if start == stop:
            return np.empty(0, dtype=np.int64)
        last = min((stop - 1) // self.seq_len, self.num_rows - 1)
        return np.arange(start // self.seq_len, last + 1)
