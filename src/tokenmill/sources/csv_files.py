"""CSV and TSV: documents are the cells of the column that the first row names.

Python's own reader serves here, in its strict mode: it is slower than pyarrow's, but a quote that
is never closed, or a row that is not like the others, becomes a reject instead of text.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator

from tokenmill.errors import ConfigError
from tokenmill.sources.blocks import Block, read_blocks
from tokenmill.sources.documents import BOM, Batch, BatchBuilder, Reject, too_long
from tokenmill.sources.settings import SourceFile, SourceSettings, Span

MAX_ROW_BYTES = 64 * 1024 * 1024
"""Longer rows are rejected, whatever the limit for documents: a character takes 4 bytes here."""

_NOT_STRUCTURE = re.compile(r'[^",\t\r\n]+')


def read_csv(file: SourceFile, span: Span, settings: SourceSettings) -> Iterator[Batch]:
    """Yield the documents of a CSV or TSV file; positions number the rows below the first."""
    lines = _Lines(file, span, max_bytes=min(settings.max_document_bytes, MAX_ROW_BYTES))
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))
    is_tsv = file.path.lower().removesuffix(f".{file.compression}").endswith(".tsv")
    rows = _read_rows(lines, "\t" if is_tsv else ",")
    names = next(rows, None)
    if names is None:
        return
    builder = BatchBuilder(span.file)
    if isinstance(names, Reject):
        yield from builder.reject(0, names.reason, detail=names.detail)
    else:
        column = _find_column(names, settings.text_field, place=file.path)
        for position, row in enumerate(rows):
            text = _text(row, column, width=len(names), lines=lines)
            if isinstance(text, Reject):
                yield from builder.reject(position, text.reason, detail=text.detail)
            else:
                yield from builder.add(text, position)
    yield from builder.flush()


def _read_rows(lines: _Lines, delimiter: str) -> Iterator[list[str] | Reject]:
    """Yield each row that is not empty, or what is wrong with it."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        lines.num_row_bytes = 0
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Reject(lines.file, 0, "bad-row", str(error))
        except _LostRowError as error:
            yield error.reject
            if error.reject.reason == "cut-stream":
                return
            reader = csv.reader(lines, delimiter=delimiter, strict=True)
        else:
            if lines.num_row_bytes > lines.max_bytes:
                num_bytes, max_bytes = lines.num_row_bytes, lines.max_bytes
                yield too_long(lines.file, 0, num_bytes=num_bytes, max_bytes=max_bytes)
            elif row:
                yield row


def _text(row: list[str] | Reject, column: int, *, width: int, lines: _Lines) -> str | Reject:
    if isinstance(row, Reject):
        return row
    if len(row) != width:
        detail = f"the row has {len(row)} fields, the first row has {width}"
        return Reject(lines.file, 0, "bad-row", detail)
    text = row[column]
    if lines.has_invalid:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            byte = ord(text[error.start]) - 0xDC00  # where `surrogateescape` puts such a byte
            detail = f"byte 0x{byte:02x} after {error.start} characters is not UTF-8"
            return Reject(lines.file, 0, "invalid-utf8", detail)
    return text


def _find_column(names: list[str], text_field: str, *, place: str) -> int:
    if names.count(text_field) != 1:
        raise ConfigError(
            f"{place}: there is no single column {text_field!r}; found {', '.join(names)}",
            hint="the first row of the file has to name its columns; choose one with --text-field",
        )
    return names.index(text_field)


class _LostRowError(Exception):
    """The row at hand cannot be read."""

    def __init__(self, reject: Reject) -> None:
        super().__init__(reject.detail)
        self.reject = reject


class _Lines:
    r"""The lines of a file, each with its \n."""

    def __init__(self, file: SourceFile, span: Span, *, max_bytes: int) -> None:
        self.file, self.max_bytes = span.file, max_bytes
        self.num_row_bytes = 0  # of the row at hand; in characters, unless all are ASCII
        self.has_invalid = False
        whole = Span(span.file, 0, file.size)
        self._items = read_blocks(file, whole, delimiter=b"\n", max_bytes=max_bytes)

    def __iter__(self) -> Iterator[str]:
        """Yield the lines that are left; one that is lost ends this, and the next call goes on."""
        for item in self._items:
            if isinstance(item, Reject):
                raise _LostRowError(item)
            # This splits at \n alone, where `str.splitlines` has ten more ends of a line.
            for line in io.StringIO(self._decode(item), newline="\n"):
                self.num_row_bytes += len(line)
                is_long = self.num_row_bytes > self.max_bytes
                # Of a row that is too long only what is needed to find its end.
                yield _NOT_STRUCTURE.sub("x", line) if is_long else line

    def _decode(self, block: Block) -> str:
        start = len(BOM) if block.offset == 0 and block.data.startswith(BOM) else 0
        data = memoryview(block.data)[start : int(block.ends[-1]) + 1]
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError:
            self.has_invalid = True
            return str(data, "utf-8", "surrogateescape")
