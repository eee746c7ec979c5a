"""Packings `concat` and `sliding`: rows are windows of the stream of tokens, at a fixed distance.

`concat` cuts the stream into rows that overlap by one id:

    tokens   a b c d e f g h i j        seq_len 3
    row 0    a b c d                    inputs a b c, labels b c d
    row 1          d e f g
    row 2                g h i j

So every token is an input once and a target once an epoch; only the first has nobody to predict it,
and the last nothing to predict. Tokens after the last whole row are dropped and counted, or padded.

`sliding` begins a row at every token, or at every `stride`-th: with stride 1 there are
`num_tokens - seq_len` rows, and a token is an input up to `seq_len` times.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.batch import IGNORED, Batch
from tokenmill.dataset.buffers import BufferPool
from tokenmill.dataset.documents import all_document_ends, document_span, documents_between
from tokenmill.dataset.numbering import empty_batch, number_documents
from tokenmill.dataset.pieces import Pieces, read_pieces
from tokenmill.dataset.rows import Accounting, DocumentSpan, check_indices
from tokenmill.dataset.token_source import TokenSource


class WindowRows:
    """Row `i` has the tokens from `i * stride` on, and one more for its last label.

    `concat` is a stride of `seq_len`. With `pad_last`, tokens after the last whole row make one
    more row, filled up with padding.
    """

    def __init__(
        self,
        source: TokenSource,
        *,
        seq_len: int,
        stride: int,
        mask_boundaries: bool = False,
        pad_last: bool = False,
    ) -> None:
        self.source = source
        self.seq_len = seq_len
        self.stride = stride
        self.mask_boundaries = mask_boundaries
        self.pad_last = pad_last
        reach = source.num_tokens - 1  # the last token can only be a label
        if pad_last:
            self.num_rows = max(0, -(-reach // stride))
        else:
            self.num_rows = max(0, (reach - seq_len) // stride + 1)
        self._pool = BufferPool()

    def read(self, indices: NDArray[np.int64]) -> Batch:
        """Return the rows with these numbers."""
        starts = check_indices(indices, self.num_rows) * self.stride
        return self._read_padded(starts) if self.pad_last else self._read(starts)

    def accounting(self) -> Accounting:
        """Return what becomes of every token in an epoch."""
        num_rows, seq_len, num_tokens = self.num_rows, self.seq_len, self.source.num_tokens
        last_start = (num_rows - 1) * self.stride
        if self.stride > seq_len:  # there are tokens between the rows
            num_used, num_distinct = num_rows * (seq_len + 1), num_rows * seq_len
        else:
            num_used = last_start + seq_len + 1
            num_distinct = num_used - 1
        num_padded = max(0, last_start + seq_len - num_tokens) if self.pad_last else 0
        num_used = min(num_used, num_tokens)
        ends_in_padding = self.pad_last and last_start + seq_len >= num_tokens
        return Accounting(
            num_rows=num_rows,
            seq_len=seq_len,
            num_tokens=num_tokens,
            num_used=num_used,
            num_dropped=num_tokens - num_used,
            num_truncated=0,
            num_repeated=num_rows * seq_len - num_distinct,
            num_padded=num_padded,
            num_masked=ends_in_padding + (self._count_boundaries() if self.mask_boundaries else 0),
        )

    def documents(self, index: int) -> list[DocumentSpan]:
        """Return the documents of which a row has inputs."""
        start = int(check_indices(np.array([index]), self.num_rows)[0]) * self.stride
        stop = min(start + self.seq_len, self.source.num_tokens)
        return documents_between(self.source, start, stop)

    def rows_of(self, document: int) -> NDArray[np.int64]:
        """Return the numbers of the rows that have inputs of a document."""
        start, stop = document_span(self.source, document)
        first = max(0, -(-(start - self.seq_len + 1) // self.stride))
        last = min((stop - 1) // self.stride, self.num_rows - 1)
        return np.arange(first, last + 1 if start < stop else first)

    def _read(self, starts: NDArray[np.int64]) -> Batch:
        ids, rows, columns = self.source.read_windows(starts, self.seq_len + 1)
        batch = empty_batch(len(starts), self.seq_len, pool=self._pool)
        batch["token_ids"][...] = ids[:, :-1]
        batch["labels"][...] = ids[:, 1:]
        if self.mask_boundaries:
            batch.labels[rows, columns - 1] = IGNORED
        number_documents(batch, rows, columns=columns)
        return batch

    def _read_padded(self, starts: NDArray[np.int64]) -> Batch:
        """Read rows of which one may reach past the last token: from their documents one by one."""
        stops = np.minimum(starts + self.seq_len + 1, self.source.num_tokens)
        found = [
            (row, span.start, span.stop - span.start)
            for row, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True))
            for span in documents_between(self.source, start, stop)
        ]
        return read_pieces(
            self.source,
            Pieces(*np.array(found, dtype=np.int64).reshape(-1, 3).T),
            shape=(len(starts), self.seq_len),
            pool=self._pool,
            mask_boundaries=self.mask_boundaries,
        )

    def _count_boundaries(self) -> int:
        """Return how many labels are the first token of a document; reads all document ends."""
        total = 0
        for before, ends in all_document_ends(self.source):
            begun = ends[np.diff(ends, prepend=before) > 0]  # without tokens, it repeats an end
            begun = begun[begun < self.source.num_tokens]
            first = np.maximum(0, -(-(begun - self.seq_len) // self.stride))
            last = np.minimum((begun - 1) // self.stride, self.num_rows - 1)
            total += int(np.maximum(0, last - first + 1).sum())
        return total
