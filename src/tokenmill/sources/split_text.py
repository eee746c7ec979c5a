"""Cut one text into `train` and `val`, exactly: by characters, lines or documents.

The two files put together are the original, byte for byte. The cut is found in one pass and made in
a second, both in bounded memory, whatever the size of the file and of its lines.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Literal

import numpy as np

from tokenmill.errors import BadDocumentError, ConfigError
from tokenmill.files import OutputFile, atomic_write
from tokenmill.sources.find import find_files
from tokenmill.sources.read import read_unit
from tokenmill.sources.settings import SourceFile, SourceSettings
from tokenmill.sources.streams import CutStreamError, open_stream
from tokenmill.sources.units import cut_units

By = Literal["characters", "lines", "documents"]

_READ_BYTES = 1 << 20
_NEWLINE, _FIRST_CONTINUATION, _AFTER_CONTINUATION = 10, 0x80, 0xC0
_KEPT_SUFFIXES = {".jsonl", ".ndjson"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitText:
    """Two parts of a text: where they are and how much is in each."""

    by: By
    train: Path
    val: Path
    num_train: int
    """Characters, lines or documents."""
    num_val: int
    train_bytes: int
    val_bytes: int
    was_complete: bool


def split_text(
    path: str | Path,
    folder: str | Path,
    *,
    ratio: float | str | Decimal,
    by: By = "characters",
    separator: str | None = None,
) -> SplitText:
    """Write the first `ratio` of a text to `train` and the rest to `val`.

    Of N characters, lines or documents the first floor(N * ratio) are `train`, where ratio is the
    decimal number that was written. Documents are what `tokenize` takes for documents: lines that
    are not blank, or the texts between separators. Text that is not UTF-8 is an error.
    """
    share = _share(ratio)
    file = _one_file(str(path), by=by, separator=separator)
    suffix = Path(path).suffix.lower()
    suffix = suffix if suffix in _KEPT_SUFFIXES else ".txt"
    train, val = Path(folder) / f"train{suffix}", Path(folder) / f"val{suffix}"
    if Path(path).resolve() in {train.resolve(), val.resolve()}:
        raise ConfigError(
            f"{path}: would be written over by its own parts", hint="choose another -o"
        )
    total, num_bytes = _count(file, by=by, separator=separator)
    num_train = int(total * share)
    cut = num_bytes
    if num_train < total:
        cut = _find(file, num_train, by=by, separator=separator)
    was_complete = _write_parts(file, (train, val), cut=cut)
    return SplitText(
        by=by,
        train=train,
        val=val,
        num_train=num_train,
        num_val=total - num_train,
        train_bytes=cut,
        val_bytes=num_bytes - cut,
        was_complete=was_complete,
    )


def _share(ratio: float | str | Decimal) -> Decimal:
    try:
        share = Decimal(str(ratio))  # 0.9 is nine tenths here, not the nearest binary number
    except InvalidOperation:
        share = Decimal(-1)
    if share.is_nan() or not 0 <= share <= 1:
        raise ConfigError(f"ratio must be from 0 to 1, got {ratio}")
    return share


def _one_file(path: str, *, by: By, separator: str | None) -> SourceFile:
    if by not in {"characters", "lines", "documents"}:
        raise ConfigError(f"by is {by!r}, expected characters, lines or documents")
    if separator is not None and by != "documents":
        raise ConfigError("a separator stands between documents", hint="use --by documents")
    suffix = Path(path).suffix.lower()
    known = "jsonl" if by == "documents" and suffix in _KEPT_SUFFIXES else "text"
    files = find_files(SourceSettings(places=(path,), format=known, separator=separator))
    if len(files) != 1 or Path(path).is_dir():
        raise ConfigError(f"{path}: expected one file, found {len(files)}")
    return files[0]


def _count(file: SourceFile, *, by: By, separator: str | None) -> tuple[int, int]:
    """Return how many of what is counted a file holds, and its bytes."""
    total, num_bytes, last = 0, 0, b"\n"
    for piece in _checked_pieces(file):
        if by != "documents":
            total += int(np.count_nonzero(_counted(piece, by=by)))
        num_bytes += len(piece)
        last = piece[-1:]
    if by == "lines" and last != b"\n":
        total += 1  # the last line needs no end
    if by == "documents":
        total = sum(1 for _ in _positions(file, separator=separator))
    return total, num_bytes


def _find(file: SourceFile, number: int, *, by: By, separator: str | None) -> int:
    """Return the byte at which character, line or document `number` begins."""
    if number == 0:
        return 0  # whatever comes before the first belongs to it
    if by == "documents":
        return next(
            p for index, p in enumerate(_positions(file, separator=separator)) if index == number
        )
    offset, left = 0, number
    for piece in _checked_pieces(file):
        marks = np.flatnonzero(_counted(piece, by=by))
        if by == "characters" and left < len(marks):
            return offset + int(marks[left])
        if by == "lines" and left <= len(marks):
            return offset + int(marks[left - 1]) + 1
        left -= len(marks)
        offset += len(piece)
    return offset


def _counted(piece: bytes, *, by: By) -> np.ndarray:
    """Mark the bytes at which characters begin, or at which lines end."""
    data = np.frombuffer(piece, dtype=np.uint8)
    if by == "lines":
        return data == _NEWLINE
    return (data < _FIRST_CONTINUATION) | (data >= _AFTER_CONTINUATION)


def _positions(file: SourceFile, *, separator: str | None) -> Iterator[int]:
    """Yield where documents begin, as `tokenize` sees them."""
    settings = SourceSettings(places=(file.path,), format=file.format, separator=separator)
    for unit in cut_units([file]):
        for batch in read_unit([file], unit, settings):
            for reject in batch.rejects:
                raise BadDocumentError(
                    f"{file.path}: byte {reject.position:,}: {reject.reason}: {reject.detail}",
                    hint="mend the file first",
                )
            yield from batch.positions.tolist()


def _checked_pieces(file: SourceFile) -> Iterator[bytes]:
    """Yield the bytes of a file, expanded if it is compressed; they must be UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = pending = 0
    with open_stream(file) as stream:
        try:
            while piece := stream.read(_READ_BYTES):
                pending = len(decoder.getstate()[0])
                decoder.decode(piece)
                yield piece
                offset += len(piece)
            pending = len(decoder.getstate()[0])
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            place = offset - pending + error.start
            raise BadDocumentError(
                f"{file.path}: byte {place:,}: not UTF-8: {error.reason}",
                hint="convert the file first, for example with iconv",
            ) from error
        except CutStreamError as error:
            raise BadDocumentError(f"{file.path}: {error}") from error


def _write_parts(file: SourceFile, paths: tuple[Path, Path], *, cut: int) -> bool:
    """Write both parts, or find that they are there; what is there with other content stays."""
    existing = [path for path in paths if path.exists()]
    if existing:
        digests = _digests(file, cut)
        for path, digest in zip(paths, digests, strict=True):
            if path.exists() and _file_digest(path) != digest:
                raise ConfigError(
                    f"{path}: is there with other content", hint="choose another folder"
                )
        if len(existing) == len(paths):
            return True
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(paths[0]) as train, atomic_write(paths[1]) as val:
        for is_train, piece in _parts(file, cut):
            target: OutputFile = train if is_train else val
            target.write(piece)
    return False


def _parts(file: SourceFile, cut: int) -> Iterator[tuple[bool, memoryview]]:
    """Yield the pieces of both parts in order, each with whether it belongs to the first."""
    offset = 0
    for piece in _checked_pieces(file):
        view = memoryview(piece)
        border = min(max(cut - offset, 0), len(piece))
        if border:
            yield True, view[:border]
        if border < len(piece):
            yield False, view[border:]
        offset += len(piece)


def _digests(file: SourceFile, cut: int) -> tuple[str, str]:
    train, val = hashlib.sha256(), hashlib.sha256()
    for is_train, piece in _parts(file, cut):
        (train if is_train else val).update(piece)
    return train.hexdigest(), val.hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
