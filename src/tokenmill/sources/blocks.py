r"""Cuts a byte stream at a delimiter into blocks of whole documents, from any byte range of it.

A document starts at byte 0 and after each delimiter. The range [start, stop) owns the documents
that *start* in it, to their ends, even past `stop`. Ranges that cover a file own each one once:

    byte   0 1 2  3 4 5 6  7 8 9 10
           a b \n c d e \n f g h \n     [0, 3) owns "ab", [3, 8) owns "cde" and "fgh", [8, 11) none

To know whether a document starts exactly at `start`, the bytes just before it are read too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.sources.documents import BATCH_BYTES, Reject, too_long
from tokenmill.sources.settings import SourceFile, Span
from tokenmill.sources.streams import ByteStream, CutStreamError, open_stream


class Block(NamedTuple):
    """Whole documents that follow each other in a file: at most `BATCH_BYTES`, or a single one."""

    offset: int
    """Where `data` lies in the stream; the first document starts there."""
    data: bytes | bytearray
    ends: NDArray[np.int64]
    """Where each document ends in `data`; a delimiter follows, except at the end of the file."""

    def starts(self, num_delimiter_bytes: int) -> NDArray[np.int64]:
        """Return where each document starts in `data`."""
        starts = np.empty_like(self.ends)
        starts[0] = 0
        np.add(self.ends[:-1], num_delimiter_bytes, out=starts[1:])
        return starts


def read_blocks(
    file: SourceFile, span: Span, *, delimiter: bytes, max_bytes: int
) -> Iterator[Block | Reject]:
    """Yield the documents that start in `span`, and a reject for each that is too long to be held.

    A cut compressed stream ends with a reject at the start of the first document that is not whole.
    A long document is not kept here once it has been yielded.
    """
    if file.compression:
        span = Span(span.file, 0, sys.maxsize)
    stop = None if file.compression else span.stop
    with open_stream(file, max(span.start - len(delimiter), 0), stop=stop) as stream:
        reader = _BlockReader(stream, span, delimiter=delimiter, max_bytes=max_bytes)
        try:
            if span.start == 0 or reader.seek_document():
                yield from reader.blocks()
        except CutStreamError as error:
            yield Reject(span.file, reader.offset, "cut-stream", str(error))


class _BlockReader:
    """Reads on from `offset`, which is where `_rest`, the bytes already read, begins."""

    def __init__(self, stream: ByteStream, span: Span, *, delimiter: bytes, max_bytes: int) -> None:
        self._stream, self._span = stream, span
        self._delimiter, self._max_bytes = delimiter, max_bytes
        self.offset = max(span.start - len(delimiter), 0)
        self._rest = b""

    def seek_document(self) -> bool:
        """Move behind the next delimiter, as far as the span goes; tell whether there is one."""
        width = len(self._delimiter)
        while self.offset + width < self._span.stop:  # else even one right here would be too late
            data = self._rest + self._stream.read(BATCH_BYTES)
            if len(data) == len(self._rest):
                return False
            found = data.find(self._delimiter)
            skipped = found + width if found >= 0 else max(len(data) - width + 1, 0)
            self.offset, self._rest = self.offset + skipped, data[skipped:]
            if found >= 0:
                return True
        return False

    def blocks(self) -> Iterator[Block | Reject]:
        """Yield the documents of the span; the first one starts at `offset`."""
        at_end = False
        while self.offset < self._span.stop and not at_end:
            data = self._stream.read(BATCH_BYTES - len(self._rest))
            at_end = not data
            if self._rest:
                data = self._rest + data
            ends = find_all(data, self._delimiter)
            behind = int(ends[-1]) + len(self._delimiter) if len(ends) else 0
            if at_end and behind < len(data):
                ends = np.append(ends, len(data))
            if len(ends):
                yield self._take(data, ends)
            else:
                self._rest = data
                if len(data) >= BATCH_BYTES:
                    yield self._long_document()

    def _take(self, data: bytes, ends: NDArray[np.int64]) -> Block:
        """Make a block of what is whole and starts in the span, and keep the rest."""
        block = Block(self.offset, data, ends)
        width = len(self._delimiter)
        if self.offset + len(data) > self._span.stop:
            num_owned = np.searchsorted(block.starts(width), self._span.stop - self.offset)
            block = block._replace(ends=ends[:num_owned])
        behind = int(block.ends[-1]) + width
        self._rest = data[behind:]
        self.offset += behind
        return block

    def _long_document(self) -> Block | Reject:
        """Read a document that began with all of `_rest` to its end, holding it only if allowed."""
        width, num_bytes = len(self._delimiter), len(self._rest)
        held = bytearray(self._rest)  # grows in place: joining pieces would take twice the memory
        tail = self._tail(self._rest)
        rest = b""
        while data := self._stream.read(BATCH_BYTES):
            if num_bytes <= self._max_bytes:
                held += data
            else:
                held.clear()
            seam = tail + data
            found = seam.find(self._delimiter)
            if found >= 0:
                num_bytes += found - len(tail)
                rest = seam[found + width :]
                break
            num_bytes += len(data)
            tail = self._tail(seam)
        start, self._rest = self.offset, rest
        self.offset += num_bytes + width
        if num_bytes > self._max_bytes:
            return too_long(self._span.file, start, num_bytes=num_bytes, max_bytes=self._max_bytes)
        del held[num_bytes + width :]
        return Block(start, held, np.array([num_bytes], dtype=np.int64))

    def _tail(self, data: bytes) -> bytes:
        """Return the end of `data` where a delimiter may have begun."""
        return data[max(len(data) - len(self._delimiter) + 1, 0) :]


def find_all(data: bytes, delimiter: bytes) -> NDArray[np.int64]:
    """Return where `delimiter` occurs in `data`, from left to right, without overlap.

    >>> find_all(b"a--b---", b"--").tolist()
    [1, 4]
    """
    if len(delimiter) == 1:
        return np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == delimiter[0])
    found: list[int] = []
    position = data.find(delimiter)
    while position >= 0:
        found.append(position)
        position = data.find(delimiter, position + len(delimiter))
    return np.array(found, dtype=np.int64)
