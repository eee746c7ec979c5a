"""An object as a file: read in ranges, ahead of the reader where it reads in order."""

from __future__ import annotations

import io
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from tokenmill.remote.client import missing
from tokenmill.remote.objects import object_info, read_range
from tokenmill.remote.urls import FileInfo

PIECE_BYTES = 4 << 20
FIRST_PIECE_BYTES = 1 << 20  # the reader waits for this one
AHEAD_BYTES = 12 << 20
_SMALL_READ_BYTES = 1 << 16
_READERS = 3


def open_object(
    url: str, *, info: FileInfo | None = None, span: tuple[int, int] | None = None
) -> BinaryIO:
    """Open an object to read bytes from, seekable, for one thread at a time.

    `info` saves the question for the size, and makes an object that was replaced since an error.
    Reads that follow each other are fetched ahead in the background, up to `AHEAD_BYTES`; with
    `span`, from its start on and not beyond its end, until the reader goes there.
    """
    if info is None:
        info = object_info(url)
        if info is None:
            raise missing(url)
    return cast("BinaryIO", RemoteFile(info, span=span))


@dataclass(frozen=True, slots=True)
class _Piece:
    start: int
    stop: int
    data: Future[bytes]


class RemoteFile(io.RawIOBase):
    """The bytes of an object. A read returns all that was asked for, or what there is."""

    def __init__(self, info: FileInfo, *, span: tuple[int, int] | None = None) -> None:
        super().__init__()
        self._info = info
        self._position = 0
        self._follows = -1 if span is None else span[0]
        """Where a read goes on from what was read, or was announced: there it pays to be ahead."""
        self._ahead_stop = info.size if span is None else min(span[1], info.size)
        self._pieces: deque[_Piece] = deque()  # one after the other, without gaps
        self._pool: ThreadPoolExecutor | None = None

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place in the object."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._info.size}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next `size` bytes, fewer only at the end."""
        left = max(self._info.size - self._position, 0)
        size = left if size is None or size < 0 else min(size, left)
        data = self._read(self._position, self._position + size) if size else b""
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        """Return everything up to the end."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the object goes, and return how many bytes that are."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Forget what was read ahead."""
        self._pieces.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        super().close()

    def _read(self, start: int, stop: int) -> bytes:
        while self._pieces and self._pieces[0].stop <= start:
            self._pieces.popleft()
        if self._pieces and not self._pieces[0].start <= start < self._pieces[-1].stop:
            self._pieces.clear()
        is_in_order = start == self._follows
        self._follows = stop
        wanted = stop
        if is_in_order and start < self._ahead_stop:
            wanted = max(stop, min(stop + AHEAD_BYTES, self._ahead_stop))
        elif stop - start < _SMALL_READ_BYTES:
            wanted = min(start + _SMALL_READ_BYTES, self._info.size)
        self._fetch(start, wanted, at_least=stop)
        found = [
            piece.data.result()[max(start - piece.start, 0) : stop - piece.start]
            for piece in self._pieces
            if piece.start < stop
        ]
        return found[0] if len(found) == 1 else b"".join(found)

    def _fetch(self, start: int, wanted: int, *, at_least: int) -> None:
        """Have the pieces reach from `start` to `wanted`, those behind `at_least` in full size."""
        at = self._pieces[-1].stop if self._pieces else start
        if at >= at_least and wanted - at < min(PIECE_BYTES, self._ahead_stop - at):
            return  # small pieces would be many requests
        while at < wanted:
            size = FIRST_PIECE_BYTES if not self._pieces and wanted > at_least else PIECE_BYTES
            end = min(at + size, max(wanted, at_least))
            self._pieces.append(_Piece(at, end, self._submit(at, end)))
            at = end

    def _submit(self, start: int, stop: int) -> Future[bytes]:
        url, version = self._info.path, self._info.version
        if not self._pieces and stop - start <= _SMALL_READ_BYTES:  # it is waited for: no thread
            future: Future[bytes] = Future()
            future.set_result(read_range(url, start, stop, version=version))
            return future
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="read-ahead")
        return self._pool.submit(read_range, url, start, stop, version=version)
