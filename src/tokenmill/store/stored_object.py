"""Files of a store in an object store, read by ranges; and the choice between them and local ones.

Nothing is kept on disk here: what `verify` reads comes from where the store is. Readers of tokens
put a cache in front, see `cached_file.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final

from tokenmill.errors import DamageError, StorageError
from tokenmill.remote import is_remote, object_info, read_range
from tokenmill.store.stored_file import StoredFile, full_check_command

_WINDOW_BYTES: Final = 1 << 22
_PIECE_BYTES: Final = 1 << 20


class StoredObject:
    """One object of a store. Safe to use from several threads and after a fork, without locks.

    A read that follows the one before it fetches some MiB ahead, and the next ones find them there.
    """

    note = ""
    """What comes before a problem with the file; not empty for a part of a larger file."""

    __slots__ = ("_window", "folder", "header", "name", "num_bytes", "remedy")

    def __init__(
        self, folder: str, name: str, *, num_bytes: int, header: bytes = b"", remedy: str
    ) -> None:
        self.folder = folder
        self.name = name
        self.num_bytes = num_bytes
        self.header = header
        self.remedy = remedy
        self._window: tuple[int, bytes] | None = None  # replaced whole: threads see one or another

    @property
    def path(self) -> str:
        """The URL of the file."""
        return f"{self.folder}/{self.name}"

    def fetch(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop` and keep nothing of them."""
        if start == stop:
            return b""
        try:
            return read_range(self.path, start, stop)
        except FileNotFoundError:
            raise self.damage("is missing") from None
        except (StorageError, DamageError):
            self.check_size()  # a cut object is damage, whatever the server calls it
            raise

    def read_into(self, out: memoryview, offset: int) -> None:
        """Fill `out` with the bytes of the file from `offset` on."""
        first, data = self._window or (-1, b"")
        inside = offset - first
        if not 0 <= inside <= len(data) - len(out):
            # Reading from the start or on from the last read is a sign of more to come.
            follows = offset == 0 or (first >= 0 and 0 <= inside <= len(data))
            length = max(len(out), _WINDOW_BYTES) if follows else len(out)
            data = self.fetch(offset, min(offset + length, self.num_bytes))
            self._window, inside = (offset, data), 0
        if len(data) - inside < len(out):
            raise self.damage(f"ends at byte {offset + len(data)}, expected {self.num_bytes}")
        out[:] = data[inside : inside + len(out)]

    def read(self, start: int, stop: int) -> bytearray:
        """Return the bytes from `start` to `stop`."""
        data = bytearray(stop - start)
        if data:
            self.read_into(memoryview(data), start)
        return data

    def pieces(
        self, sha256: str | None, *, piece_bytes: int = _PIECE_BYTES
    ) -> Iterator[memoryview]:
        """Yield what follows the header in pieces, each valid until the next.

        The hash, if given, is compared after the last piece: do not act on them before the end.
        """
        first = len(self.header)
        if not self.num_bytes:
            self.check_size()
        digest = hashlib.sha256(self._checked(bytes(self.read(0, first))))
        buffer = memoryview(bytearray(min(piece_bytes, self.num_bytes - first)))
        try:
            for start in range(first, self.num_bytes, piece_bytes):
                piece = buffer[: min(piece_bytes, self.num_bytes - start)]
                self.read_into(piece, start)
                digest.update(piece)
                yield piece
        finally:
            self.forget()
        if sha256 is not None and digest.hexdigest() != sha256:
            raise self.damage("its SHA-256 is not the one in the metadata")

    def read_all(self, sha256: str | None) -> bytes:
        """Return all that follows the header, after comparing the hash if one is given."""
        return b"".join(bytes(piece) for piece in self.pieces(sha256))

    def check_size(self, sizes: Mapping[str, int] | None = None) -> None:
        """Compare the size in a listing by URL or, without one, that which the server reports."""
        if sizes is None:
            info = object_info(self.path)
            found = None if info is None else info.size
        else:
            found = sizes.get(self.path)
        if found is None:
            raise self.damage("is missing")
        if found != self.num_bytes:
            raise self.damage(f"is {found} bytes long, expected {self.num_bytes}")

    def open(self) -> None:
        """Compare the header or, of a file without one, the size."""
        if self.header:
            self._checked(self.fetch(0, len(self.header)))
        else:
            self.check_size()

    def forget(self) -> None:
        """Let go of what was fetched ahead."""
        self._window = None

    def damage(self, problem: str) -> DamageError:
        """Return an error that names the file and the next command."""
        command = full_check_command(self.folder)
        hint = f"`{command}` lists all damage; {self.remedy}"
        return DamageError(f"{self.path}: {problem}", hint=hint)

    def _checked(self, header: bytes) -> bytes:
        if header != self.header:
            raise self.damage("does not begin with the .npy header of its type and length")
        return header


AnyFile = StoredFile | StoredObject


def file_of_store(
    folder: str,
    name: str,
    *,
    num_bytes: int,
    header: bytes = b"",
    remedy: str = "then tokenize again",
) -> AnyFile:
    """Return the file `name` of the store at `folder`, a path or a URL; nothing is opened yet."""
    kind = StoredObject if is_remote(folder) else StoredFile
    return kind(folder, name, num_bytes=num_bytes, header=header, remedy=remedy)
