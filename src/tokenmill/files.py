"""Local files: find them, write them so that they appear whole or not at all.

Everything that tokenmill publishes goes through `OutputFile`, which counts what it wrote and compares
that with what the file system says before the file gets its final name.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from tokenmill.errors import BusyError, ConfigError, StorageError

_HINTS = {
    errno.ENOSPC: "free some space or choose another disk, then run the same command again: it continues",
    errno.EDQUOT: "the disk quota is used up: free some space, then run the same command again",
    errno.EACCES: "check who owns the path and its permissions",
    errno.EPERM: "check who owns the path and its permissions",
    errno.EROFS: "the file system is read-only: choose another output",
    errno.EIO: "the device reports a fault: check the disk, then run the same command again",
}


def storage_error(error: OSError, path: str | Path | None = None) -> StorageError:
    """Turn an operating-system error into one that names the path and says what to do."""
    name = error.filename if path is None else path
    reason = error.strerror or str(error)
    where = f"{name}: " if name is not None else ""
    return StorageError(f"{where}{reason}", hint=_HINTS.get(error.errno or 0))


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One input file: where it is, how long it is, and a mark that changes when its content does."""

    path: str
    size: int
    version: str


def list_files(place: str) -> list[FileInfo]:
    """Return the files that a path, a folder or a glob stands for, in sorted order.

    A folder is searched recursively; hidden files and folders in it are passed over. A glob takes
    what it matches, folders excepted; `**` matches any number of folders.
    """
    if os.path.isdir(place):
        paths = sorted(_walk(place))
    elif os.path.lexists(place):
        paths = [place]
    elif glob.has_magic(place):
        paths = sorted(p for p in glob.glob(place, recursive=True) if not os.path.isdir(p))
    else:
        paths = []
    if not paths:
        raise ConfigError(
            f"{place}: no such file, or nothing in it",
            hint="check the spelling; quote globs for the shell",
        )
    return [_file_info(path) for path in paths]


def open_input(path: str) -> BinaryIO:
    """Open a file to read bytes from, with `seek`; missing or forbidden files are `StorageError`."""
    try:
        return open(path, "rb", buffering=0)  # noqa: PTH123  (a place, not always a path)
    except OSError as error:
        raise storage_error(error, path) from error


def _walk(folder: str) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(root, name) for name in names if not name.startswith("."))


def _file_info(path: str) -> FileInfo:
    try:
        status = os.stat(path)
    except OSError as error:
        raise storage_error(error, path) from error
    return FileInfo(path=path, size=status.st_size, version=str(status.st_mtime_ns))


class OutputFile:
    """A new file that counts its bytes; `finish` proves that they all arrived.

    Writes are unbuffered: hand over large pieces.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes = 0
        self._raw = path.open("xb", buffering=0)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`, however many system calls that takes."""
        view = memoryview(data).cast("B")
        while view.nbytes:
            written = self._raw.write(view)
            if not written:
                raise StorageError(f"{self.path}: the system accepted none of {view.nbytes} bytes")
            view = view[written:]
            self.num_bytes += written

    def finish(self, *, sync: bool = True) -> None:
        """Check the size that the file system reports, flush to disk if asked, and close."""
        found = os.fstat(self._raw.fileno()).st_size
        if found != self.num_bytes:
            raise StorageError(
                f"{self.path}: {self.num_bytes} bytes were written but the file holds {found}",
                hint="the file system lost a write: check the disk, then run the same command again",
            )
        if sync:
            os.fsync(self._raw.fileno())
        self._raw.close()

    def close(self) -> None:
        """Close without any check; for files that are thrown away."""
        self._raw.close()


def partial_path(path: Path) -> Path:
    """Return a hidden name beside `path` that no other attempt uses."""
    return path.with_name(f".{path.name}.{uuid4().hex[:12]}.partial")


@contextmanager
def atomic_write(path: Path, *, sync: bool = True) -> Generator[OutputFile]:
    """Open a file that appears at `path`, replacing what was there, only if the block succeeds."""
    partial = partial_path(path)
    file = OutputFile(partial)
    try:
        yield file
        file.finish(sync=sync)
        partial.replace(path)
        if sync:
            sync_folder(path.parent)
    finally:
        file.close()
        partial.unlink(missing_ok=True)


def publish_new(partial: Path, path: Path) -> bool:
    """Give a finished file its name unless the name is taken; return whether this attempt won.

    The partial file is gone afterwards in either case. Two attempts of one task cannot both win.
    """
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink(missing_ok=True)
    return True


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def exclusive_lock(path: Path) -> Generator[None]:
    """Hold `path` as a lock for the block; raise `BusyError` if another process has it.

    The lock belongs to the process and goes with it, so a crash leaves nothing to clean up.
    """
    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(200).decode(errors="replace").strip() or "unknown"
            raise BusyError(
                f"{path.parent}: in use by another run ({holder})",
                hint="wait for it to end, or stop it; `tokenmill status` shows how far it is",
            ) from None
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {os.uname().nodename}".encode())
        file.flush()
        yield


def is_locked(path: Path) -> bool:
    """Tell whether a process holds the lock at `path`."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False
