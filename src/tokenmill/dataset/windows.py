"""Rows that are windows of the token stream: what `concat` and `sliding` have in common."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.batch import IGNORED, Batch
from tokenmill.dataset.rows import DocumentSpan
from tokenmill.dataset.token_source import TokenSource

ENDS_AT_ONCE: Final = 1 << 16
"""Documents whose ends are looked at in one piece: half a megabyte."""


def read_windows(
    source: TokenSource, starts: NDArray[np.int64], *, seq_len: int, mask_boundaries: bool
) -> Batch:
    """Return one row for each start: `seq_len` inputs, each with the id after it as its label."""
    ids, breaks = source.read_windows(starts, seq_len + 1)
    rows, columns = np.divmod(breaks, seq_len + 1)
    document_ids, position_ids = number_documents(
        rows * seq_len + columns, columns < seq_len, shape=(len(starts), seq_len)
    )
    labels = ids[:, 1:].astype(np.int64)
    if mask_boundaries:
        labels[rows, columns - 1] = IGNORED
    return Batch(
        token_ids=ids[:, :-1].astype(np.int64),
        labels=labels,
        document_ids=document_ids,
        position_ids=position_ids,
    )


def number_documents(
    breaks: NDArray[np.int64], inside: NDArray[np.bool_], *, shape: tuple[int, int]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the document ids and position ids of rows, given the flat places of breaks."""
    num_rows, seq_len = shape
    firsts = np.arange(0, num_rows * seq_len, seq_len)
    bounds = np.concatenate((breaks[inside], firsts))
    bounds.sort()
    lengths = np.diff(bounds, append=num_rows * seq_len)
    row_bounds = bounds.searchsorted(firsts)
    numbers = np.arange(len(bounds)) - np.repeat(
        row_bounds, np.diff(row_bounds, append=len(bounds))
    )
    document_ids = np.repeat(numbers.astype(np.int32), lengths)
    position_ids = np.arange(num_rows * seq_len, dtype=np.int32)
    position_ids -= np.repeat(bounds.astype(np.int32), lengths)
    return document_ids.reshape(shape), position_ids.reshape(shape)


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
