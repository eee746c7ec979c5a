"""JSON Lines: one JSON object per line; blank lines are passed over."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenmill.sources.blocks import Block, read_blocks
from tokenmill.sources.documents import (
    BOM,
    Batch,
    Reject,
    count_bytes,
    cut_batches,
    long_batch,
    too_long,
)
from tokenmill.sources.json_documents import BadDocumentJSON, TextField
from tokenmill.sources.long_text import LongText
from tokenmill.sources.settings import SourceFile, SourceSettings, Span
from tokenmill.sources.streams import CutStreamError, open_stream

_HEAD_BYTES = 1024 * 1024
_OPEN, _CLOSE, _CARRIAGE_RETURN = b"{}\r"


def read_jsonl(file: SourceFile, span: Span, settings: SourceSettings) -> Iterator[Batch]:
    """Yield the documents of the lines that start in `span`."""
    max_bytes = settings.max_document_bytes
    field = TextField(settings.text_field)
    for item in read_blocks(file, span, delimiter=b"\n", max_bytes=max_bytes):
        if isinstance(item, Reject):
            yield Batch(item.file, [], np.empty(0, np.uint64), 0, rejects=[item])
            continue
        if settings.is_long(int(item.ends[0])) and len(item.ends) == 1:
            long = _read_long(item, field, file=span.file)
            if long is not None:
                del item
                yield long
                continue
        batch = _read_fast(item, field, file=span.file, max_bytes=max_bytes)
        if batch is None:
            batch = _read_each(item, field, file=span.file, max_bytes=max_bytes)
        del item  # the bytes of a long document go before its text is used
        batch.num_bytes = count_bytes(batch.texts)
        yield from cut_batches(batch)


def _read_long(block: Block, field: TextField, *, file: int) -> Batch | None:
    """Return the one long document of a block, or None if there is any fault with it."""
    start = len(BOM) if block.offset == 0 and block.data.startswith(BOM) else 0
    try:
        inside = field.raw_text(memoryview(block.data)[start : int(block.ends[0])])
        if inside is None:
            return None
        return long_batch(LongText(inside, True), file, position=block.offset)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the ordinary way finds the words for it


def _read_fast(block: Block, field: TextField, *, file: int, max_bytes: int) -> Batch | None:
    """Decode all lines in one call; return None if that is not certain to be right."""
    starts = block.starts(1)
    if int((block.ends - starts).max()) > max_bytes:
        return None
    positions = starts + block.offset
    first, last = int(starts[0]), int(block.ends[-1])
    if block.offset == 0 and block.data.startswith(BOM):
        starts[0] = first = len(BOM)
    is_document = _lines_with_objects(block, starts)
    if is_document is None:
        return None
    num_blank = len(starts) - int(is_document.sum())
    texts = field.texts(memoryview(block.data)[first:last])
    if texts is None or len(texts) != len(starts) - num_blank:
        return None
    if num_blank:
        positions = positions[is_document]
    return Batch(file, texts, positions.astype(np.uint64), 0, num_blank=num_blank)


def _lines_with_objects(block: Block, starts: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """Mark the lines that are not empty, or return None if not all of them look like `{…}`.

    The decoder takes values one after the other and does not mind where lines end. If every line
    opens with `{` and closes with `}`, then no value can cross lines, since `}` and `{` never meet
    inside a value; and if there are as many values as lines, each line holds one.
    """
    view = np.frombuffer(block.data, dtype=np.uint8)
    ends = block.ends
    closes = view[ends - 1]
    returns = closes == _CARRIAGE_RETURN
    if returns.any():
        ends = ends - (returns & (ends > starts))
        closes = view[ends - 1]
    is_document = ends > starts
    opens = view[np.minimum(starts, len(view) - 1)]
    if not ((opens == _OPEN) & (closes == _CLOSE) | ~is_document).all():
        return None
    return is_document


def _read_each(block: Block, field: TextField, *, file: int, max_bytes: int) -> Batch:
    """Decode line by line, so that only the lines with a fault are rejected."""
    texts: list[str] = []
    positions: list[int] = []
    batch = Batch(file, texts, np.empty(0, np.uint64), 0)
    bounds = zip(block.starts(1).tolist(), block.ends.tolist(), strict=True)
    for start, end in bounds:
        position = block.offset + start
        if end - start > max_bytes:
            reject = too_long(file, position, num_bytes=end - start, max_bytes=max_bytes)
            batch.rejects.append(reject)
            continue
        line = memoryview(block.data)[start:end]
        if position == 0 and block.data.startswith(BOM):
            line = line[len(BOM) :]
        if _is_blank(line):
            batch.num_blank += 1
            continue
        try:
            texts.append(field.text(line))
            positions.append(position)
        except BadDocumentJSON as error:
            batch.rejects.append(Reject(file, position, error.reason, error.detail))
    batch.positions = np.array(positions, dtype=np.uint64)
    return batch


def _is_blank(line: memoryview) -> bool:
    head = bytes(line[:256])
    return not head.strip() and (len(line) <= len(head) or not bytes(line).strip())


def looks_like_jsonl(file: SourceFile) -> bool:
    """Tell whether a file begins with a JSON object on a line of its own, and another follows."""
    try:
        with open_stream(file, stop=_HEAD_BYTES) as stream:
            head = stream.read(_HEAD_BYTES)
    except CutStreamError:
        return False
    first, _, rest = head.removeprefix(BOM).lstrip().partition(b"\n")
    if not first.startswith(b"{") or not rest.lstrip().startswith(b"{"):
        return False
    try:
        msgspec.json.decode(first, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
