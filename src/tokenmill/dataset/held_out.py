"""Rows without the last ones, which a run keeps to be measured with and never trains on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.batch import IGNORED, Batch
from tokenmill.dataset.rows import Accounting, DocumentSpan, Rows, check_indices
from tokenmill.errors import ConfigError


class FirstRows:
    """All rows but the last `num_held_out`; every other row is what it would be with them."""

    def __init__(self, rows: Rows, num_held_out: int) -> None:
        if num_held_out >= rows.num_rows:
            raise ConfigError(
                f"hold_out is {num_held_out:,} rows, but there are only {rows.num_rows:,}",
                hint="hold out fewer, or choose a shorter context",
            )
        self.seq_len = rows.seq_len
        self.num_rows = rows.num_rows - num_held_out
        self._rows = rows

    def read(self, indices: NDArray[np.int64]) -> Batch:
        """Return the rows with these numbers."""
        return self._rows.read(check_indices(indices, self.num_rows))

    def accounting(self) -> Accounting:
        """Return what becomes of every token; inputs of rows that are held out count as dropped."""
        every = self._rows.accounting()
        held_out = self._rows.read(np.arange(self.num_rows, self._rows.num_rows))
        num_padded = int(np.count_nonzero(held_out.document_ids < 0))
        num_without_label = int(np.count_nonzero(held_out.labels == IGNORED))
        num_inputs = held_out.token_ids.size - num_padded
        return replace(
            every,
            num_rows=self.num_rows,
            num_used=every.num_used - num_inputs,
            num_dropped=every.num_dropped + num_inputs,
            num_padded=every.num_padded - num_padded,
            num_masked=every.num_masked - (num_without_label - num_padded),
        )

    def documents(self, index: int) -> list[DocumentSpan]:
        """Return the documents of which a row has inputs."""
        check_indices(np.array([index]), self.num_rows)
        return self._rows.documents(index)

    def rows_of(self, document: int) -> NDArray[np.int64]:
        """Return the numbers of the rows that have inputs of a document."""
        found = self._rows.rows_of(document)
        return found[found < self.num_rows]
