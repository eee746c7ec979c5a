"""JSON files: the elements of one array, or values that follow each other.

Documents are objects with a text field, or strings. A file is read in pieces: only the element
at hand is held, whatever the size and depth of the file. An element with a fault is rejected alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tokenmill.sources.documents import BATCH_BYTES, BOM, Batch, BatchBuilder
from tokenmill.sources.json_documents import BadDocumentJSON, Buffer, TextField, string_text
from tokenmill.sources.settings import SourceFile, SourceSettings, Span
from tokenmill.sources.streams import ByteStream, CutStreamError, open_stream

_NOT_SPACE = re.compile(rb"[^ \t\n\r]")
_BRACKET = re.compile(rb'["\[\]{}]')
_BRACKET_OR_COMMA = re.compile(rb'["\[\]{},]')
_END_OF_WORD = re.compile(rb'[ \t\n\r"\[{]')
_BACKSLASH = ord("\\")


def read_json(file: SourceFile, span: Span, settings: SourceSettings) -> Iterator[Batch]:
    """Yield the documents of a JSON file; positions count its elements."""
    builder = BatchBuilder(span.file)
    field = TextField(settings.text_field)
    position = 0
    with open_stream(file) as stream:
        reader = _ValueReader(stream, max_bytes=settings.max_document_bytes)
        try:
            for value in reader.values():
                batches = _read_value(value, field, position=position, builder=builder)
                del value  # the bytes of a long document go before its text is used
                yield from batches
                position += 1
        except CutStreamError as error:
            yield from builder.reject(position, "cut-stream", detail=str(error))
    yield from builder.flush()


def _read_value(
    value: Buffer | BadDocumentJSON, field: TextField, *, position: int, builder: BatchBuilder
) -> Iterator[Batch]:
    if not isinstance(value, BadDocumentJSON):
        try:
            text = string_text(value) if value[:1] == b'"' else field.text(value)
            return builder.add(text, position)
        except BadDocumentJSON as error:
            value = error
    return builder.reject(position, value.reason, detail=value.detail)


class _ValueReader:
    """Finds where values end by counting brackets outside strings; the decoder judges the rest."""

    def __init__(self, stream: ByteStream, *, max_bytes: int) -> None:
        self._stream, self._max_bytes = stream, max_bytes
        self._data = bytearray()
        self._start = 0  # of the value at hand
        self._at = 0  # bytes before this are scanned
        self._num_dropped = 0  # of the value at hand, once it is too long

    def values(self) -> Iterator[Buffer | BadDocumentJSON]:
        """Yield each value, or what is wrong at its place."""
        while len(self._data) < len(BOM) and self._read_more():
            pass
        self._at = len(BOM) if self._data.startswith(BOM) else 0
        if self._peek() == b"[":
            self._at += 1
            return self._elements()
        return self._sequence()

    def _elements(self) -> Iterator[Buffer | BadDocumentJSON]:
        is_first = True
        while True:
            byte = self._peek()
            if byte == b"]" and is_first:
                self._at += 1
                break
            if byte in {b"]", b","}:
                yield BadDocumentJSON("bad-json", "a value is missing")
                self._at += 1
            else:
                self._scan_element()
                byte = bytes(self._data[self._at : self._at + 1])
                if not byte:
                    yield BadDocumentJSON("bad-json", "the file ends inside the array")
                    return
                yield self._take()
                self._at += 1
            is_first = False
            if byte == b"]":
                break
        if self._peek():
            yield BadDocumentJSON("bad-json", "something follows the end of the array")

    def _sequence(self) -> Iterator[Buffer | BadDocumentJSON]:
        while byte := self._peek():
            if byte == b'"':
                self._at += 1
                self._scan_string()
            elif byte in {b"{", b"["}:
                self._scan_container()
            else:
                self._scan_word()
            yield self._take()

    def _peek(self) -> bytes:
        """Move to the next byte that is not white space and return it, or nothing at the end."""
        while True:
            found = _NOT_SPACE.search(self._data, self._at)
            self._at = self._start = found.start() if found else len(self._data)
            if found:
                return found[0]
            if not self._read_more():
                return b""

    def _scan_element(self) -> None:
        """Move to the comma or bracket that ends the element at hand, or to the end of the file."""
        while True:
            byte = self._find(_BRACKET_OR_COMMA)
            if byte in {b",", b"]", b""}:
                return
            if byte in {b"{", b"["}:
                self._scan_container()
            else:
                self._at += 1
                if byte == b'"':
                    self._scan_string()

    def _scan_container(self) -> None:
        """Move behind the bracket that closes the one at hand. Counting needs no recursion."""
        depth = 0
        while byte := self._find(_BRACKET):
            self._at += 1
            if byte == b'"':
                self._scan_string()
            else:
                depth += 1 if byte in {b"{", b"["} else -1
                if depth == 0:
                    return

    def _scan_string(self) -> None:
        """Move behind the quote that closes the string at hand."""
        while True:
            quote = self._data.find(b'"', self._at)
            if quote < 0:
                self._at = len(self._data)
                if not self._read_more():
                    return
                continue
            before = quote
            while before and self._data[before - 1] == _BACKSLASH:
                before -= 1
            self._at = quote + 1
            if (quote - before) % 2 == 0:
                return

    def _scan_word(self) -> None:
        """Move behind something that is not JSON or not a document: a number, null, garbage."""
        self._at += 1
        self._find(_END_OF_WORD)

    def _find(self, pattern: re.Pattern[bytes]) -> bytes:
        """Move to the next match of a byte and return it, or nothing at the end."""
        while True:
            found = pattern.search(self._data, self._at)
            self._at = found.start() if found else len(self._data)
            if found:
                return found[0]
            if not self._read_more():
                return b""

    def _take(self) -> Buffer | BadDocumentJSON:
        """Return the value that ends here."""
        num_bytes, self._num_dropped = self._num_dropped + self._at - self._start, 0
        if num_bytes > self._max_bytes:
            detail = f"the document has {num_bytes} bytes, the limit is {self._max_bytes}"
            return BadDocumentJSON("too-long", detail)
        if num_bytes <= BATCH_BYTES:
            return bytes(memoryview(self._data)[self._start : self._at])
        value, self._data = self._data, self._data[self._at :]  # no copy of a long value
        del value[self._at :], value[: self._start]
        self._start = self._at = 0
        return value

    def _read_more(self) -> bool:
        """Add to the data, all of which is scanned; let go of what is not needed any more."""
        del self._data[: self._start]
        self._start = 0
        if len(self._data) > self._max_bytes:
            # One backslash at the end decides whether a quote that follows closes the string.
            slashes = len(self._data) - len(self._data.rstrip(b"\\"))
            self._num_dropped += len(self._data) - slashes % 2
            self._data = bytearray(b"\\" * (slashes % 2))
        self._at = len(self._data)
        data = self._stream.read(BATCH_BYTES)
        self._data += data
        return bool(data)
