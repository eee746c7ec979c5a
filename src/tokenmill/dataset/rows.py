"""Rows: what packings make of a source of tokens, addressed by number, and how they add up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.batch import Batch


class Rows(Protocol):
    """The rows of one epoch. Row `i` depends on `i` alone; threads and processes may share them."""

    seq_len: int
    """Inputs in a row, padding included."""

    @property
    def num_rows(self) -> int:
        """Rows in an epoch, at least one."""
        ...

    def read(self, indices: NDArray[np.int64]) -> Batch:
        """Return the rows with these numbers, in this order, repeats allowed, as (B, T) arrays."""
        ...

    def accounting(self) -> Accounting:
        """Return what becomes of every token of the source in an epoch."""
        ...

    def documents(self, index: int) -> list[DocumentSpan]:
        """Return the documents of which row `index` has inputs, from left to right."""
        ...

    def rows_of(self, document: int) -> NDArray[np.int64]:
        """Return the numbers of the rows that have inputs of a document, in order."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentSpan:
    """The part of a document that is in a row: tokens `start` to `stop` of the source."""

    document: int
    """Its number in the source."""
    start: int
    stop: int
    offset: int
    """Place of its first token in the row."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accounting:
    """What becomes of the tokens of a source in one epoch; the sums are exact.

    used + dropped + truncated == num_tokens
    num_targets + num_masked + num_padded == num_rows * seq_len
    """

    num_rows: int
    seq_len: int
    num_tokens: int
    """Tokens of the source."""
    num_used: int
    """Tokens that are an input or a target at least once."""
    num_dropped: int
    """Tokens in no row, for instance those after the last whole row."""
    num_truncated: int
    """Tokens in no row because their document is longer than a row."""
    num_repeated: int
    """Inputs beyond the first use of a token as an input."""
    num_padded: int
    """Places in rows that hold no token."""
    num_masked: int
    """Inputs without a target: they have label -100, but are not padding."""

    @property
    def num_inputs(self) -> int:
        """Places in rows that hold a token."""
        return self.num_rows * self.seq_len - self.num_padded

    @property
    def num_targets(self) -> int:
        """Labels that count in the loss."""
        return self.num_inputs - self.num_masked


def check_indices(indices: NDArray[np.int64], num_rows: int) -> NDArray[np.int64]:
    """Return row numbers as an array of int64; one outside [0, num_rows) is an `IndexError`."""
    indices = np.asarray(indices, dtype=np.int64)
    if len(indices) and not (indices.min() >= 0 and indices.max() < num_rows):
        wrong = indices[(indices < 0) | (indices >= num_rows)][0]
        raise IndexError(f"row {wrong} is outside [0, {num_rows})")
    return indices
