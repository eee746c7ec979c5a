"""What to read: the settings of a source, its files, and ranges of them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tokenmill.errors import ConfigError

FORMATS = ("auto", "text", "file", "jsonl", "json", "parquet", "arrow", "csv")
MAX_SEPARATOR_BYTES = 4096
DEFAULT_TEXT_FIELD = "text"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSettings:
    """Where documents come from and how files are cut into documents."""

    places: tuple[str, ...]
    """Files, folders, globs, names in the catalog and datasets on a hub, read in this order."""
    format: str = "auto"
    """auto (by the file's suffix), text (one document per line or between separators), file (one
    document per file), jsonl, json, parquet, arrow or csv."""
    separator: str | None = None
    """What stands between documents in text, such as `<|endoftext|>`; by default the line end."""
    split: str | None = None
    """The split to take of folders and of datasets on a hub: train, validation, test, …, all."""
    catalog: str | None = None
    """A JSON file that gives datasets names."""
    text_field: str = DEFAULT_TEXT_FIELD
    """Field or column that holds the text; `a.b` is field b inside field a."""
    max_document_bytes: int = 512 * 1024 * 1024
    """Documents longer than this are rejected without being held in memory."""
    long_bytes: int | None = None
    """Documents longer than this come as `LongText`, which never makes one string of them."""

    def __post_init__(self) -> None:
        if not self.places:
            raise ConfigError("no input was given", hint="name files, folders or globs to read")
        if self.format not in FORMATS:
            raise ConfigError(f"unknown format {self.format!r}; known are {', '.join(FORMATS)}")
        if self.separator is not None:
            self._check_separator(self.separator)
        if not all(self.text_field.split(".")):
            raise ConfigError(
                f"text field {self.text_field!r} has an empty name; expected `a` or `a.b`"
            )
        if self.max_document_bytes < 1:
            raise ConfigError(
                f"max_document_bytes must be at least 1, got {self.max_document_bytes}"
            )

    def is_long(self, num_bytes: int) -> bool:
        """Tell whether a document of this size is to be kept as bytes."""
        return self.long_bytes is not None and num_bytes > self.long_bytes

    def _check_separator(self, separator: str) -> None:
        if not separator:
            raise ConfigError(
                "the separator is empty", hint="leave it out for one document per line"
            )
        if self.format not in {"auto", "text"}:
            raise ConfigError(
                f"a separator applies to text, not to format {self.format!r}",
                hint="leave out the separator, or use format text",
            )
        try:
            num_bytes = len(separator.encode())
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"the separator {separator!r} is not valid Unicode: {error}"
            ) from error
        if num_bytes > MAX_SEPARATOR_BYTES:
            raise ConfigError(f"the separator has {num_bytes} bytes, at most {MAX_SEPARATOR_BYTES}")


class SourceFile(msgspec.Struct, frozen=True):
    """One input file with its format settled."""

    path: str
    size: int
    version: str
    format: str
    compression: str = ""
    """Empty, or gz, zst, bz2 or xz."""
    splittable: bool = False
    """Whether documents can be found from any byte of the file, so that it can be cut anywhere."""
    text_field: str = ""
    """The field that holds the text, if a description names it; else that of the settings."""


class Span(msgspec.Struct, frozen=True):
    """A part of one file: documents that start in [start, stop).

    Counted in bytes for plain text and JSONL, in row groups for Parquet; 0 to 0 is the whole file.
    """

    file: int
    """Number in the list of files."""
    start: int
    stop: int


class Unit(msgspec.Struct, frozen=True):
    """A piece of work: parts of one or several files that follow each other."""

    index: int
    spans: tuple[Span, ...]
