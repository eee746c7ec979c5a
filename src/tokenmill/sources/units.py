"""Cuts files into units of work by rules that depend on the files alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenmill.errors import ConfigError
from tokenmill.sources.columns import row_group_bytes
from tokenmill.sources.settings import SourceFile, Span, Unit

UNIT_BYTES = 64 * 1024 * 1024
_TYPICAL_EXPANSION = 4  # of compressed text


def cut_units(
    files: Sequence[SourceFile], *, unit_bytes: int = UNIT_BYTES, text_field: str | None = None
) -> list[Unit]:
    """Cut `files` into units of about `unit_bytes` of text each, in order.

    Plain text and JSONL are cut into byte ranges and Parquet into row groups; any other file is
    whole. Small parts that follow each other share a unit. The result depends on the sizes of the
    files and the footers of Parquet files alone. With `text_field`, that column of Parquet files is
    checked on the way, so that a missing one is found before work begins.
    """
    if unit_bytes < 1:
        raise ConfigError(f"unit_bytes must be at least 1, got {unit_bytes}")
    groups: list[list[Span]] = []
    room = 0
    for span, num_bytes in _parts(files, unit_bytes, text_field=text_field):
        if not groups or num_bytes > room:
            groups.append([])
            room = unit_bytes
        room -= num_bytes
        last = groups[-1][-1] if groups[-1] else None
        if last and (last.file, last.stop) == (span.file, span.start):
            groups[-1][-1] = Span(span.file, last.start, span.stop)
        else:
            groups[-1].append(span)
    return [Unit(index, tuple(spans)) for index, spans in enumerate(groups)]


def _parts(
    files: Sequence[SourceFile], unit_bytes: int, *, text_field: str | None
) -> Iterator[tuple[Span, int]]:
    """Yield the smallest parts, with about how many bytes of text each holds."""
    for number, file in enumerate(files):
        if file.splittable and file.size:
            for start in range(0, file.size, unit_bytes):
                stop = min(start + unit_bytes, file.size)
                yield Span(number, start, stop), stop - start
        elif file.format == "parquet" and (
            sizes := row_group_bytes(file, _field(file, text_field))
        ):
            for group, num_bytes in enumerate(sizes):
                yield Span(number, group, group + 1), num_bytes
        elif file.format in {"text", "jsonl"} and not file.compression:
            yield Span(number, 0, file.size), file.size
        else:
            yield Span(number, 0, 0), file.size * (_TYPICAL_EXPANSION if file.compression else 1)


def _field(file: SourceFile, text_field: str | None) -> str | None:
    return (file.text_field or text_field) if text_field is not None else None
