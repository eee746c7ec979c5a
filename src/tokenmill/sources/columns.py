"""Parquet and Arrow: documents are the rows of one text column. Only this file knows pyarrow.

Memory is bounded by what the writer chose as its smallest piece: a Parquet page or an Arrow record
batch. Values that many rows share (dictionaries, views) are expanded a batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import ConfigError, MissingDependencyError
from tokenmill.files import storage_error
from tokenmill.sources.documents import (
    BATCH_BYTES,
    BATCH_DOCUMENTS,
    Batch,
    Reject,
    long_batch,
    too_long,
)
from tokenmill.sources.long_text import LongText
from tokenmill.sources.open_file import open_file
from tokenmill.sources.settings import SourceFile, SourceSettings, Span
from tokenmill.sources.streams import size_changed

if TYPE_CHECKING:
    from types import ModuleType

_ARROW_FILE_MAGIC = b"ARROW1"
_STREAMED_CHUNK_BYTES = 32 * 1024 * 1024  # smaller ones are read at once, which is a little faster
_DICTIONARY_ROWS = 1024
_SUSPICIOUS_ROW_BYTES = 64
_SUSPICIOUS_RATIO = 64


def row_group_bytes(file: SourceFile, text_field: str | None) -> list[int]:
    """Return the size of each row group of a Parquet file, or nothing if its footer is damaged.

    With `text_field` the column is checked too: a missing or wrong one is a `ConfigError`.
    """
    pa = _pyarrow()
    import pyarrow.parquet as pq

    with _open(file) as source:
        try:
            parquet = pq.ParquetFile(source)
            if text_field is not None:
                _text_path(parquet.schema_arrow, text_field, place=file.path)
            metadata = parquet.metadata
            groups = range(metadata.num_row_groups)
            return [metadata.row_group(group).total_byte_size for group in groups]
        except (pa.ArrowException, OSError) as error:
            _raise_if_storage(error, file)
            return []


def read_parquet(file: SourceFile, span: Span, settings: SourceSettings) -> Iterator[Batch]:
    """Yield the rows of the row groups of `span`; damage in one of them leaves the others whole."""
    pa = _pyarrow()
    with _open(file) as source:
        try:
            reader = _ParquetReader(source, file, settings)
        except (pa.ArrowException, OSError) as error:
            yield _damage(file, span.file, 0, error=error)
            return
        stop = span.stop or reader.metadata.num_row_groups
        for group in range(span.start, stop):
            row = reader.first_rows[group]
            try:
                for array in reader.arrays(group):
                    yield from _read_rows(array, span.file, row=row, settings=settings)
                    row += len(array)
            except (pa.ArrowException, OSError) as error:
                yield _damage(file, span.file, row, error=error)


class _ParquetReader:
    """The text column of a Parquet file."""

    def __init__(self, source: Any, file: SourceFile, settings: SourceSettings) -> None:
        import pyarrow.parquet as pq

        self._source = source
        self.metadata = pq.read_metadata(source)
        schema = self.metadata.schema.to_arrow_schema()
        self._path = _text_path(schema, settings.text_field, place=file.path)
        self._column = ".".join(self._path)
        names = [self.metadata.schema.column(i).path for i in range(len(self.metadata.schema))]
        self._index = names.index(self._column)
        groups = range(self.metadata.num_row_groups)
        num_rows = (self.metadata.row_group(group).num_rows for group in groups)
        self.first_rows = list(accumulate(num_rows, initial=0))  # of each row group, in the file

    def arrays(self, group: int) -> Iterator[Any]:
        """Yield the text of a row group, array by array."""
        import pyarrow.parquet as pq

        chunk = self.metadata.row_group(group).column(self._index)
        num_rows = max(self.metadata.row_group(group).num_rows, 1)
        row_bytes = max(chunk.total_uncompressed_size // num_rows, 1)
        most_rows = _DICTIONARY_ROWS if chunk.has_dictionary_page else BATCH_DOCUMENTS
        # A few stored bytes can stand for endless text if rows share the values of a dictionary.
        # Such a column keeps its dictionary until rows are read; other text would only be slower.
        is_suspicious = chunk.has_dictionary_page and (
            row_bytes < _SUSPICIOUS_ROW_BYTES
            or chunk.total_uncompressed_size > chunk.total_compressed_size * _SUSPICIOUS_RATIO
        )
        parquet = pq.ParquetFile(
            self._source,
            metadata=self.metadata,
            read_dictionary=[self._column] if is_suspicious else None,
            buffer_size=BATCH_BYTES if chunk.total_compressed_size > _STREAMED_CHUNK_BYTES else 0,
            pre_buffer=False,
            page_checksum_verification=True,
        )
        batches = parquet.iter_batches(
            batch_size=min(max(BATCH_BYTES // row_bytes, 1), most_rows),
            row_groups=[group],
            columns=[self._column],
            use_threads=False,
        )
        for batch in batches:
            yield _leaf(batch, self._path)


def read_arrow(file: SourceFile, span: Span, settings: SourceSettings) -> Iterator[Batch]:
    """Yield the rows of an Arrow IPC file or stream; Feather is the former."""
    pa = _pyarrow()
    row = 0
    with _open(file) as source:
        try:
            schema, batches = _open_arrow(source)
            path = _text_path(schema, settings.text_field, place=file.path)
            for batch in batches:
                array = _leaf(batch, path)
                try:
                    _check_bounds(array)
                except pa.ArrowInvalid as error:
                    yield _damage(file, span.file, row, error=error)
                else:
                    yield from _read_rows(array, span.file, row=row, settings=settings)
                row += len(batch)
        except (pa.ArrowException, OSError) as error:
            yield _damage(file, span.file, row, error=error)


def _open_arrow(source: Any) -> tuple[Any, Iterator[Any]]:
    from pyarrow import ipc

    magic = source.read(len(_ARROW_FILE_MAGIC))
    source.seek(0)
    if magic == _ARROW_FILE_MAGIC:
        reader = ipc.open_file(source)
        return reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))
    reader = ipc.open_stream(source)
    return reader.schema, iter(reader)


def _check_bounds(array: Any) -> None:
    """Raise `ArrowInvalid` if values lie outside the data: Arrow trusts what it reads.

    Whether they are valid UTF-8 is seen later, value by value.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        _check_bounds(array.dictionary)
        array.indices.validate(full=True)
        known = len(array.dictionary)
        used = array.indices.drop_null().to_numpy(zero_copy_only=False)
        if len(used) and not 0 <= int(used.min()) <= int(used.max()) < known:
            raise pa.ArrowInvalid(f"a row points outside the dictionary of {known} values")
        return
    binary = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    array.view(binary.get(array.type, array.type)).validate(full=True)


def _text_path(schema: Any, text_field: str, *, place: str) -> list[str]:
    """Return the names that lead to the text column; raise `ConfigError` if it is not text."""
    path = [text_field] if text_field in schema.names else text_field.split(".")
    fields, kind = schema, None
    for name in path:
        index = fields.get_field_index(name) if kind is None or _is_struct(kind) else -1
        if index < 0:
            raise ConfigError(
                f"{place}: there is no single column {text_field!r}; "
                f"found {', '.join(sorted(schema.names)) or 'none'}",
                hint="name the column with --text-field; `a.b` is field b of the struct a",
            )
        kind = fields.field(index).type
        fields = kind
    if not _is_text(kind):
        raise ConfigError(f"{place}: column {text_field!r} has type {kind}, expected text")
    return path


def _is_struct(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_struct(kind)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    strings = (pa.string(), pa.large_string(), pa.string_view())
    return kind in (*strings, pa.binary(), pa.large_binary(), pa.binary_view())


def _leaf(batch: Any, path: list[str]) -> Any:
    import pyarrow.compute as pc

    array = batch.column(path[0])
    for name in path[1:]:
        array = pc.struct_field(array, name)  # pyright: ignore[reportAttributeAccessIssue]
    return array


def _read_rows(array: Any, file: int, *, row: int, settings: SourceSettings) -> Iterator[Batch]:
    """Yield the values of a text array as batches; `row` numbers the first value."""
    rows = np.arange(row, row + len(array))
    lengths = _lengths(array)
    ends = np.cumsum(lengths)
    start = 0
    while start < len(array):
        before = ends[start] - lengths[start]
        stop = int(np.searchsorted(ends, before + BATCH_BYTES, side="right"))
        stop = min(max(stop, start + 1), start + BATCH_DOCUMENTS)
        run = slice(start, stop)
        if stop == start + 1 and lengths[start] > settings.max_document_bytes:
            values: list[Any] = [b""]  # it is rejected by its length: leave it where it is
        elif stop == start + 1 and settings.is_long(int(lengths[start])):
            data = memoryview(_plain(array.slice(start, 1))[0].as_buffer())
            yield long_batch(LongText(data, False), file, position=row + start)
            start = stop
            continue
        else:
            values = _values(array.slice(start, stop - start))
        yield _make_batch(
            values, lengths[run], rows=rows[run], file=file, max_bytes=settings.max_document_bytes
        )
        start = stop


def _make_batch(
    values: list[Any],
    lengths: NDArray[np.int64],
    *,
    rows: NDArray[np.int64],
    file: int,
    max_bytes: int,
) -> Batch:
    """Put texts into a batch, and nulls, invalid UTF-8 and long ones into its rejects."""
    batch = Batch(file, values, rows.astype(np.uint64), int(lengths.sum()))
    if set(map(type, values)) == {str} and int(lengths.max()) <= max_bytes:
        return batch
    texts: list[str] = []
    is_document = np.zeros(len(values), dtype=np.bool_)
    for index, (value, num_bytes) in enumerate(zip(values, lengths.tolist(), strict=True)):
        row = int(rows[index])
        if num_bytes > max_bytes:
            reject = too_long(file, row, num_bytes=num_bytes, max_bytes=max_bytes)
            batch.rejects.append(reject)
        elif value is None:
            batch.rejects.append(Reject(file, row, "null-text", "the text is null"))
        else:
            try:
                texts.append(value.decode() if isinstance(value, bytes) else value)
                is_document[index] = True
            except UnicodeDecodeError as error:
                detail = f"byte 0x{value[error.start]:02x} at byte {error.start}: {error.reason}"
                batch.rejects.append(Reject(file, row, "invalid-utf8", detail))
    batch.texts, batch.positions = texts, batch.positions[is_document]
    batch.num_bytes = int(lengths[is_document].sum())
    return batch


def _lengths(array: Any) -> NDArray[np.int64]:
    """Return the bytes of each value of a text array, 0 for nulls, without expanding anything."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        known = np.append(_lengths(array.dictionary), 0)  # nulls point behind the last
        return known[array.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)]
    if str(array.type).endswith("_view"):  # a view is 16 bytes, the length first
        views = np.frombuffer(array.buffers()[1], dtype=np.int32).reshape(-1, 4)
        lengths = views[array.offset : array.offset + len(array), 0].astype(np.int64)
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
        return lengths
    lengths = pc.binary_length(array)  # pyright: ignore[reportAttributeAccessIssue]
    return lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def _plain(array: Any) -> Any:
    import pyarrow as pa

    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _values(array: Any) -> list[Any]:
    """Return the values as str, or as bytes if some are not valid UTF-8, or None."""
    import pyarrow as pa

    array = _plain(array)
    text_type = {pa.binary(): pa.string(), pa.large_binary(): pa.large_string()}
    try:
        array = array.cast(text_type.get(array.type, array.type))
        return array.to_numpy(zero_copy_only=False).tolist()
    except (pa.ArrowException, UnicodeDecodeError):
        return array.cast(pa.large_binary()).to_pylist()


@contextmanager
def _open(file: SourceFile) -> Iterator[Any]:
    pa = _pyarrow()
    with open_file(file) as raw, pa.PythonFile(raw, mode="r") as source:
        if source.size() != file.size:
            raise size_changed(file, source.size())
        yield source


def _damage(file: SourceFile, number: int, row: int, *, error: Exception) -> Batch:
    _raise_if_storage(error, file)
    reject = Reject(number, row, "cut-stream", " ".join(str(error).split())[:500])
    return Batch(number, [], np.empty(0, np.uint64), 0, rejects=[reject])


def _raise_if_storage(error: Exception, file: SourceFile) -> None:
    """Raise what the system reported; pyarrow uses OSError for damage too, but without a number."""
    if isinstance(error, OSError) and error.errno is not None:
        raise storage_error(error, file.path) from error


def _pyarrow() -> ModuleType:
    try:
        import pyarrow
    except ImportError as error:
        purpose = "reading Parquet and Arrow files"
        raise MissingDependencyError("pyarrow", extra="parquet", purpose=purpose) from error
    return pyarrow
