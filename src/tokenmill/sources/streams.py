"""Byte streams: a file as it is, or what its compressed form expands to.

Reads are bounded whatever the file holds: a few kilobytes can expand to gigabytes. A compressed
file is read to its very end (all gzip members, zstd frames and xz streams); a stream that stops
early, does not expand, or is followed by something else raises `CutStreamError` at that point.
"""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from typing import Protocol, Self

from tokenmill.errors import StorageError
from tokenmill.files import storage_error
from tokenmill.sources.open_file import open_file
from tokenmill.sources.settings import SourceFile

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_INPUT_BYTES = 128 * 1024
_XZ_MEMORY_BYTES = 512 * 1024 * 1024  # `xz -9` needs 65 MiB; a header may ask for 4 GiB
_DAMAGE = (zlib.error, zstd.ZstdError, lzma.LZMAError, OSError, EOFError)


class CutStreamError(Exception):
    """A compressed stream is cut or damaged; everything before was delivered."""


class ByteStream(Protocol):
    """Bytes in order."""

    def read(self, size: int, /) -> bytes:
        """Return the next `size` bytes, fewer only before the end, none at the end."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


def open_stream(file: SourceFile, start: int = 0, *, stop: int | None = None) -> ByteStream:
    """Open a file, expanded if it is compressed; `start` is for plain files.

    Reading can go on beyond `stop`, but does not have to be quick there.
    """
    plain = PlainStream(file, start, stop=stop)
    return ExpandedStream(plain, file.compression) if file.compression else plain


def size_changed(file: SourceFile, found: int) -> StorageError:
    """Return the error for a file that is not as long as it was; `found` may be a lower bound."""
    more = "at least " if found > file.size else ""
    return StorageError(
        f"{file.path}: had {file.size} bytes when it was listed and now has {more}{found}",
        hint="the input changes while it is read: wait until it is complete, then run again",
    )


class PlainStream:
    """The bytes of a file from `start`; they must be as many as when the file was listed."""

    def __init__(self, file: SourceFile, start: int = 0, *, stop: int | None = None) -> None:
        self._file, self._position = file, start
        self._raw = open_file(file, span=(start, file.size if stop is None else stop))
        if start:
            self._raw.seek(start)

    def read(self, size: int, /) -> bytes:
        """Return the next `size` bytes, fewer only before the end, none at the end."""
        left = self._file.size - self._position
        try:
            data = self._raw.read(min(size, left + 1))  # memory is taken for all that is asked for
        except OSError as error:
            raise storage_error(error, self._file.path) from error
        self._position += len(data)
        if self._position > self._file.size or (not data and left > 0):
            raise size_changed(self._file, self._position)
        return data

    def close(self) -> None:
        """Let go of the file."""
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class ExpandedStream:
    """What a compressed file expands to."""

    def __init__(self, plain: PlainStream, compression: str) -> None:
        self._plain, self._compression = plain, compression
        self._member = _open_member(compression)
        self._input = b""
        self._fault: CutStreamError | None = None

    def read(self, size: int, /) -> bytes:
        """Return the next `size` bytes, fewer only before the end, none at the end."""
        pieces: list[bytes] = []
        while size and not self._fault:
            try:
                piece = self._next_piece(size)
            except CutStreamError as error:
                self._fault = error
                break
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
        if self._fault and not pieces:
            raise self._fault
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _next_piece(self, size: int) -> bytes:
        """Return up to `size` bytes; none means the clean end of the file."""
        while True:
            if self._member.eof:
                if not self._skip_to_member():
                    return b""
                self._member = _open_member(self._compression)
            if self._member.needs_input and not self._input:
                self._input = self._plain.read(_INPUT_BYTES)
                if not self._input:
                    raise CutStreamError(f"the {self._compression} stream ends too early")
            piece = self._expand(size)
            if piece:
                return piece

    def _expand(self, size: int) -> bytes:
        given, self._input = self._input, b""
        try:
            return self._member.decompress(given, size)
        except _DAMAGE as error:
            raise CutStreamError(f"the {self._compression} stream is damaged: {error}") from error

    def _skip_to_member(self) -> bool:
        """Have the input begin at the next member; tell whether there is one."""
        self._input = self._member.unused_data
        while True:
            if self._compression in {"gz", "xz"}:  # these may be padded with zeros
                self._input = self._input.lstrip(b"\0")
            if self._input:
                return True
            self._input = self._plain.read(_INPUT_BYTES)
            if not self._input:
                return False

    def close(self) -> None:
        """Let go of the file."""
        self._plain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Member(Protocol):
    """One gzip member, zstd frame, bzip2 or xz stream."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


def _open_member(compression: str) -> _Member:
    match compression:
        case "gz":
            return _GzipMember()
        case "zst":
            return zstd.ZstdDecompressor()
        case "bz2":
            return bz2.BZ2Decompressor()
        case _:
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)


class _GzipMember:
    """zlib with the manners of the other three."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._zlib.decompress(self._zlib.unconsumed_tail or data, max_length)
        self.needs_input = not self._zlib.unconsumed_tail and len(piece) < max_length
        return piece
