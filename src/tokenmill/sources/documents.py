"""What reading yields: batches of documents, and the input that could not become a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenmill.sources.long_text import LongText

BATCH_BYTES = 1024 * 1024
"""A batch holds about this much text; a longer document is a batch of its own."""
BATCH_DOCUMENTS = 8192
"""A batch never holds more documents than this."""

BOM = b"\xef\xbb\xbf"

_msgpack = msgspec.msgpack.Encoder()


class Reject(msgspec.Struct, frozen=True):
    """A place in the input that gave no document, and why."""

    file: int
    position: int
    reason: str
    """A short slug: invalid-utf8, bad-json, missing-text, null-text, not-text, not-an-object,
    lone-surrogate, too-long, bad-row or cut-stream."""
    detail: str


def too_long(file: int, position: int, *, num_bytes: int, max_bytes: int) -> Reject:
    """Return the reject for a document over the limit."""
    detail = f"the document has {num_bytes} bytes, the limit is {max_bytes}"
    return Reject(file, position, "too-long", detail)


@dataclass(slots=True)
class Batch:
    """Documents of one file in their order, with where each was found."""

    file: int
    texts: list[str]
    positions: NDArray[np.uint64]
    """Byte offset in the (decompressed) file for text and JSONL, number of the row for columns, of
    the element for JSON, 0 for a whole file; strictly increasing."""
    num_bytes: int
    """UTF-8 bytes of the texts."""
    rejects: list[Reject] = field(default_factory=list[Reject])
    num_blank: int = 0
    """Blank lines, pieces or files that were passed over."""
    long_text: LongText | None = None
    """A single document, if `SourceSettings.long_bytes` asked for it; `texts` is then empty."""


def long_batch(text: LongText, file: int, *, position: int) -> Batch:
    """Return a batch of one long document, or of the reject that it turns out to be."""
    batch = Batch(file, [], np.empty(0, np.uint64), 0)
    is_blank = True
    try:
        for piece in text.pieces():
            batch.num_bytes += len(piece) if piece.isascii() else len(piece.encode())
            is_blank = is_blank and piece.isspace()
    except UnicodeDecodeError as error:
        detail = f"{error.reason} at byte {error.start} of the document"
        batch.rejects.append(Reject(file, position, "invalid-utf8", detail))
        batch.num_bytes = 0
        return batch
    if is_blank and not text.is_json:
        batch.num_blank, batch.num_bytes = 1, 0
        return batch
    batch.positions = np.array([position], dtype=np.uint64)
    batch.long_text = text
    return batch


def cut_batches(batch: Batch, sizes: NDArray[np.int64] | None = None) -> Iterator[Batch]:
    """Yield `batch`, as several of equal length if it holds more than `BATCH_DOCUMENTS`.

    `sizes` are the UTF-8 bytes of each text; without them they are counted. Nothing is yielded for
    a batch that says nothing.
    """
    num_documents = len(batch.texts)
    if num_documents <= BATCH_DOCUMENTS:
        if num_documents or batch.rejects or batch.num_blank:
            yield batch
        return
    num_parts = -(-num_documents // BATCH_DOCUMENTS)
    bounds = [num_documents * part // num_parts for part in range(num_parts + 1)]
    for start, stop in pairwise(bounds):
        texts = batch.texts[start:stop]
        part = Batch(
            file=batch.file,
            texts=texts,
            positions=batch.positions[start:stop],
            num_bytes=count_bytes(texts) if sizes is None else int(sizes[start:stop].sum()),
        )
        if start == 0:
            part.rejects, part.num_blank = batch.rejects, batch.num_blank
        yield part


def count_bytes(texts: Sequence[str]) -> int:
    """Return the number of UTF-8 bytes of the texts.

    >>> count_bytes(["abc", "é", "😀"])
    9
    """
    return sum(len(text) if text.isascii() else _count_text(text) for text in texts)


def _count_text(text: str) -> int:
    if len(text) > BATCH_BYTES:  # in slices, so that a long document is not held once more
        cuts = range(0, len(text), BATCH_BYTES)
        return sum(len(text[cut : cut + BATCH_BYTES].encode()) for cut in cuts)
    # msgpack writes a header and the UTF-8 form, which CPython then keeps inside the string: the
    # encoder, which needs that form too, gets it for nothing. `text.encode()` would be paid twice.
    num_bytes = len(_msgpack.encode(text))
    for header, bound in ((1, 32), (2, 256), (3, 65536)):
        if num_bytes - header < bound:
            return num_bytes - header
    return num_bytes - 5


class BatchBuilder:
    """Gathers documents one by one into batches of the right size."""

    def __init__(self, file: int) -> None:
        self.file = file
        self._clear()

    def add(self, text: str, position: int) -> Iterator[Batch]:
        """Take a document; yield the batch that it completes, if any."""
        num_bytes = count_bytes((text,))
        if self._texts and self._num_bytes + num_bytes > BATCH_BYTES:
            yield from self.flush()
        self._texts.append(text)
        self._positions.append(position)
        self._num_bytes += num_bytes
        del text  # a long document must not be held here while it is used
        if self._num_bytes >= BATCH_BYTES or len(self._texts) == BATCH_DOCUMENTS:
            yield from self.flush()

    def reject(self, position: int, reason: str, *, detail: str) -> Iterator[Batch]:
        """Take a reject; yield the batch that it completes, if any."""
        self._rejects.append(Reject(self.file, position, reason, detail))
        if len(self._rejects) == BATCH_DOCUMENTS:
            yield from self.flush()

    def skip_blank(self) -> None:
        """Count a blank document."""
        self._num_blank += 1

    def flush(self) -> Iterator[Batch]:
        """Yield what is left."""
        if self._texts or self._rejects or self._num_blank:
            batch = Batch(
                file=self.file,
                texts=self._texts,
                positions=np.array(self._positions, dtype=np.uint64),
                num_bytes=self._num_bytes,
                rejects=self._rejects,
                num_blank=self._num_blank,
            )
            self._clear()
            yield batch

    def _clear(self) -> None:
        self._texts: list[str] = []
        self._positions: list[int] = []
        self._num_bytes = 0
        self._rejects: list[Reject] = []
        self._num_blank = 0
