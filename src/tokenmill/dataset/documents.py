"""Documents as spans of tokens of a source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.rows import DocumentSpan
from tokenmill.dataset.token_source import TokenSource

_DOCUMENTS_AT_ONCE: Final = 1 << 16


def document_span(source: TokenSource, document: int) -> tuple[int, int]:
    """Return the first token of a document and the one after its last."""
    if not 0 <= document < source.num_documents:
        raise IndexError(f"document {document} is outside [0, {source.num_documents})")
    ends = source.document_ends(max(document - 1, 0), document + 1)
    return (int(ends[0]) if document else 0), int(ends[-1])


def documents_between(source: TokenSource, start: int, stop: int) -> list[DocumentSpan]:
    """Return the documents that have tokens from `start` to `stop`; a row begins at `start`."""
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


def all_document_ends(source: TokenSource) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield all document ends in order, in pieces, each with the end before it."""
    before = 0
    for first in range(0, source.num_documents, _DOCUMENTS_AT_ONCE):
        ends = source.document_ends(first, min(first + _DOCUMENTS_AT_ONCE, source.num_documents))
        yield before, ends
        before = int(ends[-1])
