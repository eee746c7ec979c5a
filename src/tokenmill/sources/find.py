"""Finds the files of a source and settles the format of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache

import msgspec

from tokenmill.errors import ConfigError
from tokenmill.files import FileInfo
from tokenmill.sources.formats import (
    FORMATS_BY_SUFFIX,
    NEVER_COMPRESSED,
    holds_documents,
    suffixes,
)
from tokenmill.sources.jsonl import looks_like_jsonl
from tokenmill.sources.places import open_place
from tokenmill.sources.settings import DEFAULT_TEXT_FIELD, SourceFile, SourceSettings


def find_files(settings: SourceSettings) -> list[SourceFile]:
    """Return the files of a source: places in the given order, the files of each place sorted.

    With format auto a folder gives the files whose suffix is known, and a file that is named (also
    by a glob) must have a known suffix. With any other format all files are taken. A `.json` file
    that begins with one object per line is JSONL. The same file twice is an error.
    """
    files: list[SourceFile] = []
    places: dict[str, str] = {}
    real_folder = cache(_real_path)
    for place in settings.places:
        found = list(_files_of(place, settings))
        if not found:
            raise ConfigError(
                f"{place}: none of the files in this folder has a known suffix",
                hint=f"known are {', '.join(FORMATS_BY_SUFFIX)}; or say it with --format",
            )
        for file in found:
            identity = _identity(file.path, real_folder)
            if identity in places:
                raise ConfigError(
                    f"{file.path}: is read twice, for {places[identity]!r} and for {place!r}",
                    hint="name each file once",
                )
            places[identity] = place
        files += found
    if settings.separator is not None and all(file.format != "text" for file in files):
        raise ConfigError("a separator applies to text, and none of the files is text")
    return files


def _files_of(place: str, settings: SourceSettings) -> Iterator[SourceFile]:
    for found in open_place(place, settings):
        # A field that the user names goes before the one that the description names.
        text_field = found.text_field if settings.text_field == DEFAULT_TEXT_FIELD else ""
        for info in found.infos:
            if found.is_folder and not holds_documents(info.path, settings.format):
                continue
            suffix, compression = suffixes(os.path.basename(info.path))  # noqa: PTH119
            format_name = settings.format
            if format_name == "auto":
                format_name = FORMATS_BY_SUFFIX.get(suffix, "")
            if not format_name:
                raise ConfigError(
                    f"{info.path}: cannot tell the format from the suffix "
                    f"{suffix or 'of no name'!r}",
                    hint="say it with --format: text for a document per line, file for one per "
                    "file",
                )
            _check_readable(info, format_name, compression=compression)
            file = _source_file(info, format_name, compression=compression, settings=settings)
            yield msgspec.structs.replace(file, text_field=text_field) if text_field else file


def _check_readable(info: FileInfo, format_name: str, *, compression: str) -> None:
    if compression and format_name in NEVER_COMPRESSED:
        raise ConfigError(
            f"{info.path}: {format_name} files are compressed inside; this one is once more",
            hint=f"unpack it first, for example with `{compression}` tools",
        )


def _source_file(
    info: FileInfo, format_name: str, *, compression: str, settings: SourceSettings
) -> SourceFile:
    file = SourceFile(
        path=info.path,
        size=info.size,
        version=info.version,
        format=format_name,
        compression=compression,
    )
    if settings.format == "auto" and format_name == "json" and looks_like_jsonl(file):
        file = msgspec.structs.replace(file, format="jsonl")
    is_splittable = not compression and (
        file.format == "jsonl"
        or (file.format == "text" and not _overlaps_itself(settings.separator or "\n"))
    )
    return msgspec.structs.replace(file, splittable=is_splittable)


def _overlaps_itself(separator: str) -> bool:
    """Tell whether a separator can begin inside another one, as "--" does in "---".

    Where such separators lie is known only when reading from the start of the file.
    """
    return any(separator.startswith(separator[cut:]) for cut in range(1, len(separator)))


def _identity(path: str, real_folder: Callable[[str], str]) -> str:
    """Return a name that is the same for all names of a file."""
    if "://" in path:
        return path
    folder, name = os.path.split(path)
    if os.path.islink(path):  # noqa: PTH114
        return _real_path(path)
    return os.path.join(real_folder(folder), name)  # noqa: PTH118


def _real_path(path: str) -> str:
    return os.path.realpath(path)
