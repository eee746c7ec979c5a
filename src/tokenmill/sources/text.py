r"""Plain text: a document per line, between separators, or per file.

A line ends at \n; a \r before it goes too. Between separators, and in whole files, text is kept
exactly. A byte order mark at the start of a file goes. What is white space alone is blank.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from tokenmill.sources.blocks import Block, read_blocks
from tokenmill.sources.documents import (
    BATCH_BYTES,
    BOM,
    Batch,
    Reject,
    cut_batches,
    long_batch,
    too_long,
)
from tokenmill.sources.long_text import LongText
from tokenmill.sources.settings import SourceFile, SourceSettings, Span
from tokenmill.sources.streams import CutStreamError, open_stream

# Lines shorter than this on average are decoded together and then split, which saves time for each
# line; longer ones are decoded one by one, so that a rare wide character widens its line alone.
_SHORT_LINE_BYTES = 256

_CARRIAGE_RETURN = 13

# With what the UTF-8 form of white space can begin and end. Few lines do both.
_MAYBE_FIRST, _MAYBE_LAST = np.zeros((2, 256), dtype=np.bool_)
_MAYBE_FIRST[:33] = _MAYBE_LAST[:33] = True
_MAYBE_FIRST[[0xC2, 0xE1, 0xE2, 0xE3]] = _MAYBE_LAST[0x80:0xC0] = True


def read_text(file: SourceFile, span: Span, settings: SourceSettings) -> Iterator[Batch]:
    """Yield the lines of a text file, or its pieces between separators, that start in `span`."""
    separator = settings.separator
    delimiter = "\n" if separator is None else separator
    items = read_blocks(
        file, span, delimiter=delimiter.encode(), max_bytes=settings.max_document_bytes
    )
    for item in items:
        if isinstance(item, Reject):
            yield Batch(item.file, [], np.empty(0, np.uint64), 0, rejects=[item])
            continue
        if settings.is_long(int(item.ends[0])) and len(item.ends) == 1:
            yield _long_piece(item, span.file, is_line=separator is None)
            continue
        pieces = _Pieces(item, delimiter, is_line=separator is None)
        del item  # the bytes of a long document go before its text is used
        batch, sizes = pieces.batch(span.file, max_bytes=settings.max_document_bytes)
        del pieces
        yield from cut_batches(batch, sizes)


def _long_piece(block: Block, file: int, *, is_line: bool) -> Batch:
    """Return the one long document of a block."""
    data, stop = block.data, int(block.ends[0])
    start = len(BOM) if block.offset == 0 and data.startswith(BOM) else 0
    if is_line and stop < len(data) and data[stop - 1] == _CARRIAGE_RETURN:
        stop -= 1  # a last line without \n keeps its \r
    text = LongText(memoryview(data)[start:stop], False)
    return long_batch(text, file, position=block.offset)


def read_file(file: SourceFile, span: Span, settings: SourceSettings) -> Iterator[Batch]:
    """Yield a whole file as one document."""
    batch = Batch(span.file, [], np.empty(0, np.uint64), 0)
    content = _read_content(file, span, max_bytes=settings.max_document_bytes)
    if isinstance(content, Reject):
        batch.rejects.append(content)
    else:
        start = len(BOM) if content.startswith(BOM) else 0
        if settings.is_long(len(content)):
            yield long_batch(LongText(memoryview(content)[start:], False), span.file, position=0)
            return
        try:
            text = str(memoryview(content)[start:], "utf-8")
        except UnicodeDecodeError as error:
            batch.rejects.append(_invalid(span.file, 0, error=error, offset=start))
        else:
            if not text or text.isspace():
                batch.num_blank = 1
            else:
                batch.texts, batch.num_bytes = [text], len(content) - start
                batch.positions = np.zeros(1, np.uint64)
            del text
    del content
    yield batch


def _read_content(file: SourceFile, span: Span, *, max_bytes: int) -> bytes | bytearray | Reject:
    """Read all of a file, or as much as shows that it is too long."""
    if not file.compression and file.size > max_bytes:
        return too_long(span.file, 0, num_bytes=file.size, max_bytes=max_bytes)
    with open_stream(file) as stream:
        try:
            content = stream.read(BATCH_BYTES if file.compression else file.size + 1)
            if file.compression or len(content) < file.size:
                content = bytearray(content)
                while len(content) <= max_bytes and (data := stream.read(BATCH_BYTES)):
                    content += data
        except CutStreamError as error:
            return Reject(span.file, 0, "cut-stream", str(error))
    if len(content) > max_bytes:
        return Reject(span.file, 0, "too-long", f"the document has more than {max_bytes} bytes")
    return content


class _Pieces:
    """The documents of a block, with the bytes of each that make its text."""

    def __init__(self, block: Block, delimiter: str, *, is_line: bool) -> None:
        self.offset, self.data, self.ends = block
        self.delimiter = delimiter
        self.starts = block.starts(len(delimiter.encode()))
        self.positions = (self.starts + self.offset).astype(np.uint64)
        self.lengths = self.ends - self.starts  # as they stand in the file
        if self.offset == 0 and self.data.startswith(BOM) and self.lengths[0] >= len(BOM):
            self.starts[0] += len(BOM)
        self.is_joined = True  # all that stands between two documents is `delimiter`
        if is_line:
            self._drop_carriage_returns()

    def _drop_carriage_returns(self) -> None:
        view = np.frombuffer(self.data, dtype=np.uint8)
        found = view[self.ends - 1] == _CARRIAGE_RETURN
        if found.any():
            found &= self.ends > self.starts
            found[-1] &= self.ends[-1] < len(self.data)  # a last line without \n keeps its \r
            self.ends = self.ends - found
            self.delimiter = "\r\n"
            self.is_joined = bool(found.all())

    def batch(self, file: int, *, max_bytes: int) -> tuple[Batch, NDArray[np.int64]]:
        """Return the documents, and the UTF-8 bytes of each."""
        rejects: list[Reject] = []
        is_document = self.ends > self.starts
        if int(self.lengths.max()) > max_bytes:
            for index in np.flatnonzero(self.lengths > max_bytes).tolist():
                position, num_bytes = int(self.positions[index]), int(self.lengths[index])
                rejects.append(too_long(file, position, num_bytes=num_bytes, max_bytes=max_bytes))
                is_document[index] = False
                self.ends[index] = self.starts[index]
                self.is_joined = False
        texts = self._decode()
        if texts is None:
            texts = self._decode_each(file, is_document, rejects=rejects)
            rejects.sort(key=lambda reject: reject.position)
        self._find_blank(texts, is_document)
        sizes = self.ends - self.starts
        positions = self.positions
        num_blank = len(texts) - int(is_document.sum()) - len(rejects)
        if num_blank or rejects:
            texts = list(compress(texts, is_document.tolist()))
            sizes, positions = sizes[is_document], positions[is_document]
        return Batch(file, texts, positions, int(sizes.sum()), rejects, num_blank), sizes

    def _find_blank(self, texts: list[str], is_document: NDArray[np.bool_]) -> None:
        """Unmark the documents that are white space alone."""
        view = np.frombuffer(self.data, dtype=np.uint8)
        indices = np.flatnonzero(is_document)
        maybe_blank = _MAYBE_FIRST[view[self.starts[indices]]]
        maybe_blank &= _MAYBE_LAST[view[self.ends[indices] - 1]]
        for index in indices[maybe_blank].tolist():
            if texts[index].isspace():
                is_document[index] = False

    def _decode(self) -> list[str] | None:
        """Return the text of each document, or None if not all are valid UTF-8."""
        data, first, last = self.data, int(self.starts[0]), int(self.ends[-1])
        try:
            if len(self.ends) == 1:
                return [str(memoryview(data)[first:last], "utf-8")]
            is_short = last - first < _SHORT_LINE_BYTES * len(self.ends)
            if is_short and self.is_joined:
                return str(memoryview(data)[first:last], "utf-8").split(self.delimiter)
            bounds = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
            return [data[start:end].decode() for start, end in bounds]
        except UnicodeDecodeError:
            return None

    def _decode_each(
        self, file: int, is_document: NDArray[np.bool_], *, rejects: list[Reject]
    ) -> list[str]:
        texts: list[str] = []
        bounds = zip(self.starts.tolist(), self.ends.tolist(), strict=True)
        for index, (start, end) in enumerate(bounds):
            try:
                texts.append(str(memoryview(self.data)[start:end], "utf-8"))
            except UnicodeDecodeError as error:
                position, offset = int(self.positions[index]), self.offset + start
                rejects.append(_invalid(file, position, error=error, offset=offset))
                is_document[index] = False
                texts.append("")
        return texts


def _invalid(file: int, position: int, *, error: UnicodeDecodeError, offset: int) -> Reject:
    byte = error.object[error.start]
    detail = f"byte 0x{byte:02x} at byte {offset + error.start} of the file: {error.reason}"
    if offset == 0 and error.object[:2] in {b"\xff\xfe", b"\xfe\xff"}:
        detail += "; this looks like UTF-16, which has to be turned into UTF-8 first"
    return Reject(file, position, "invalid-utf8", detail)
