"""Reads the documents of a unit, whatever the formats of its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tokenmill.sources.columns import read_arrow, read_parquet
from tokenmill.sources.csv_files import read_csv
from tokenmill.sources.documents import Batch
from tokenmill.sources.json_files import read_json
from tokenmill.sources.jsonl import read_jsonl
from tokenmill.sources.settings import SourceFile, SourceSettings, Span, Unit
from tokenmill.sources.text import read_file, read_text

_READERS: dict[str, Callable[[SourceFile, Span, SourceSettings], Iterator[Batch]]] = {
    "text": read_text,
    "file": read_file,
    "jsonl": read_jsonl,
    "json": read_json,
    "parquet": read_parquet,
    "arrow": read_arrow,
    "csv": read_csv,
}


def read_unit(files: Sequence[SourceFile], unit: Unit, settings: SourceSettings) -> Iterator[Batch]:
    """Yield the documents that start in `unit`, in order, in bounded memory.

    The sequence of documents over all units is the same however the files were cut. Bad input does
    not raise: it becomes rejects. Faults of the storage, and a text column that does not exist, do.
    """
    for span in unit.spans:
        file = files[span.file]
        own = replace(settings, text_field=file.text_field) if file.text_field else settings
        yield from _READERS[file.format](file, span, own)
