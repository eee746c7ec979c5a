"""Read ranges of the immutable files of a local store; only here does the reader touch them.

Files are read with `pread`, not mapped: a fault of the disk or a file cut by someone else is then
an error and not a signal that ends the process, other threads run while the disk works, a small
random read does not drag its neighbourhood into memory, and forked processes share descriptors.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final

from tokenmill.errors import DamageError
from tokenmill.files import storage_error

MAX_OPEN_FILES: Final = 256
"""Files of stores that one process keeps open, whatever the number of stores and shards."""

_PIECE_BYTES: Final = 1 << 20


class StoredFile:
    """One file of a store: opened and its size and header compared when it is first read.

    Safe to use from several threads and after a fork. Without locks on purpose: a lock that another
    thread holds during a fork would stay held in the child for ever.
    """

    note = ""
    """What comes before a problem with the file; not empty for a part of a larger file."""

    __slots__ = ("__weakref__", "_descriptor", "folder", "header", "name", "num_bytes", "remedy")

    def __init__(
        self,
        folder: str,
        name: str,
        *,
        num_bytes: int,
        header: bytes = b"",
        remedy: str = "then tokenize again",
    ) -> None:
        self.folder = folder
        self.name = name
        self.num_bytes = num_bytes
        self.header = header
        self.remedy = remedy
        self._descriptor: _Descriptor | None = None

    @property
    def path(self) -> str:
        """Where the file is."""
        return f"{self.folder}/{self.name}"

    def read_into(self, out: memoryview, offset: int) -> None:
        """Fill `out` with the bytes of the file from `offset` on."""
        # The local name keeps the descriptor open should another thread evict it meanwhile.
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = self._open()
        else:
            _mark_recent(self)
        try:
            done = os.preadv(descriptor.number, (out,), offset)
            while done < len(out):
                got = os.preadv(descriptor.number, (out[done:],), offset + done)
                if not got:
                    raise self.damage(f"ends at byte {offset + done}, expected {self.num_bytes}")
                done += got
        except OSError as error:
            raise storage_error(error, self.path) from error

    def read(self, start: int, stop: int) -> bytearray:
        """Return the bytes from `start` to `stop`."""
        data = bytearray(stop - start)
        self.read_into(memoryview(data), start)
        return data

    def pieces(
        self, sha256: str | None, *, piece_bytes: int = _PIECE_BYTES
    ) -> Iterator[memoryview]:
        """Yield what follows the header in pieces, each valid until the next.

        The hash, if given, is compared after the last piece: do not act on them before the end.
        """
        self.open()  # also when nothing follows the header
        first = len(self.header)
        buffer = memoryview(bytearray(min(piece_bytes, self.num_bytes - first)))
        digest = hashlib.sha256(self.header)
        for start in range(first, self.num_bytes, piece_bytes):
            piece = buffer[: min(piece_bytes, self.num_bytes - start)]
            self.read_into(piece, start)
            if sha256 is not None:
                digest.update(piece)
            yield piece
        if sha256 is not None and digest.hexdigest() != sha256:
            raise self.damage("its SHA-256 is not the one in the metadata")

    def read_all(self, sha256: str | None) -> bytes:
        """Return all that follows the header, after comparing the hash if one is given."""
        return b"".join(bytes(piece) for piece in self.pieces(sha256))

    def check_size(self, sizes: Mapping[str, int] | None = None) -> None:
        """Compare the size that the file system reports, without opening the file."""
        del sizes  # a listing is for remote stores
        try:
            found = os.stat(self.path).st_size  # noqa: PTH116  (thousands of these at every open)
        except OSError as error:
            raise self._fault(error) from error
        if found != self.num_bytes:
            raise self.damage(f"is {found} bytes long, expected {self.num_bytes}")

    def damage(self, problem: str) -> DamageError:
        """Return an error that names the file and the next command."""
        command = full_check_command(self.folder)
        hint = f"`{command}` lists all damage; {self.remedy}"
        return DamageError(f"{self.path}: {problem}", hint=hint)

    def open(self) -> None:
        """Open the file now, comparing its size and header; reads do that by themselves."""
        if self._descriptor is None:
            self._open()

    def _open(self) -> _Descriptor:
        try:
            descriptor = _Descriptor(self.path)
            found = os.fstat(descriptor.number).st_size
            header = os.pread(descriptor.number, len(self.header), 0)
        except OSError as error:
            raise self._fault(error) from error
        if found != self.num_bytes:
            raise self.damage(f"is {found} bytes long, expected {self.num_bytes}")
        if header != self.header:
            raise self.damage("does not begin with the .npy header of its type and length")
        self._descriptor = descriptor
        _mark_open(self)
        return descriptor

    def _fault(self, error: OSError) -> Exception:
        if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
            return self.damage("is missing")
        return storage_error(error, self.path)

    def forget(self) -> None:
        """Close the file, once no read is using it; the next read opens it again."""
        self._descriptor = None
        _recent.pop(id(self), None)


def full_check_command(folder: str) -> str:
    """Return the command that looks at every byte of a store."""
    return f"tokenmill verify {shlex.quote(folder)} --level full"


class _Descriptor:
    """An open file, closed when the last reader lets go of it."""

    __slots__ = ("number",)

    def __init__(self, path: str) -> None:
        self.number = -1
        try:
            self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            _forget_all()  # other parts of the process have many files open: make room
            self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


# The least recently used file comes first. Each operation on it is one step of the interpreter.
_recent: OrderedDict[int, weakref.ref[StoredFile]] = OrderedDict()


def _mark_recent(file: StoredFile) -> None:
    try:
        _recent.move_to_end(id(file))
    except KeyError:  # evicted by another thread since: its next read opens it again
        return


def _mark_open(file: StoredFile) -> None:
    _recent[id(file)] = weakref.ref(file)
    _mark_recent(file)
    while len(_recent) > MAX_OPEN_FILES:
        _forget_oldest()


def _forget_all() -> None:
    while _recent:
        _forget_oldest()


def _forget_oldest() -> None:
    try:
        _, reference = _recent.popitem(last=False)
    except KeyError:  # another thread took the last one
        return
    file = reference()
    if file is not None:
        file.forget()
