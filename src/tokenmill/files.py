"""Files: find them, wherever they are, and write local ones so that they appear whole or not.

Everything that tokenmill publishes goes through `OutputFile`, which counts what it wrote and
compares that with what the file system says before the file gets its final name.
"""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import glob
import os
import re
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from tokenmill import remote
from tokenmill.errors import BusyError, ConfigError, StorageError
from tokenmill.remote import FileInfo, is_remote, split_url

_AGAIN = "then run the same command again: it continues"
_HINTS = {
    errno.ENOSPC: f"free some space or choose another disk, {_AGAIN}",
    errno.EDQUOT: f"the disk quota is used up: free some space, {_AGAIN}",
    errno.EACCES: "check who owns the path and its permissions",
    errno.EPERM: "check who owns the path and its permissions",
    errno.EROFS: "the file system is read-only: choose another output",
    errno.EIO: f"the device reports a fault: check the disk, {_AGAIN}",
    errno.ESTALE: f"the file server lost track of the file: check the mount, {_AGAIN}",
    errno.EFBIG: "the file system does not take files this large: choose another disk",
    errno.EMFILE: "raise the limit on open files with `ulimit -n`",
}
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_LOCK_TRIES = 5
_LOCK_PAUSE_SECONDS = 0.02


def storage_error(error: OSError, path: str | Path | None = None) -> StorageError:
    """Turn an operating-system error into one that names the path and says what to do."""
    name = error.filename if path is None else path
    reason = error.strerror or str(error)
    where = f"{name}: " if name is not None else ""
    return StorageError(f"{where}{reason}", hint=_HINTS.get(error.errno or 0))


def list_files(place: str) -> list[FileInfo]:
    """Return the files that a path, a folder or a glob stands for, in sorted order.

    A folder is searched recursively, through links too, each folder in it once; hidden files and
    folders are passed over. A glob takes what it matches, folders excepted; `**` stands for any
    number of folders. What cannot be looked into, or read twice, is an error: nothing is skipped.
    In an object store (`s3://bucket/prefix`) the slashes of the keys make the folders.
    """
    if is_remote(place):
        return _list_remote(place)
    if os.path.isdir(place):  # noqa: PTH112  (places stay strings, as the user wrote them)
        paths, problem = sorted(_walk(place)), "the folder holds no files, hidden ones excepted"
    elif os.path.lexists(place):
        paths, problem = [place], ""
    elif glob.has_magic(place):
        paths, problem = sorted(_match(place)), "no file matches"
    else:
        paths, problem = [], "no such file or folder"
    if not paths:
        hint = "check the spelling; quote globs for the shell"
        raise ConfigError(f"{place}: {problem}", hint=hint)
    return [_file_info(path) for path in paths]


def open_input(path: str) -> BinaryIO:
    """Open a file to read bytes from, unbuffered; missing or forbidden is `StorageError`."""
    try:
        if is_remote(path):
            return remote.open_object(path)
        return open(path, "rb", buffering=0)  # noqa: PTH123  (a place, not always a path)
    except OSError as error:
        raise storage_error(error, path) from error


def is_folder(place: str) -> bool:
    """Tell whether a place is a folder, or a prefix of objects that is none itself."""
    if not is_remote(place):
        return os.path.isdir(place)  # noqa: PTH112  (a place, not always a path)
    if place.endswith("/"):
        return True
    return (
        not glob.has_magic(place)
        and remote.object_info(place) is None
        and remote.has_objects(place)
    )


def _list_remote(place: str) -> list[FileInfo]:
    """Return the objects that a URL stands for: one, those below it, or those that fit a glob."""
    if not place.endswith("/") and split_url(place)[1]:
        info = remote.object_info(place)
        if info is not None:
            return [info]
    parts = place.split("/")
    num_plain = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    root = "/".join(parts[:num_plain]).rstrip("/")
    pattern = parts[num_plain:] or ["**"]
    found = [info for info in remote.list_objects(root) if _fits_visibly(info.path, root, pattern)]
    if not found:
        problem = "no object matches" if num_plain < len(parts) else "no such object or folder"
        raise ConfigError(f"{place}: {problem}", hint="check the spelling; quote globs")
    return found


def _fits_visibly(url: str, root: str, pattern: list[str]) -> bool:
    names = url[len(root) + 1 :].split("/")
    if not any(name.startswith(".") for name in names):
        return _fits(names, pattern)
    # As on a disk, a hidden name is found only by a pattern that begins with a dot, too.
    return (
        "**" not in pattern
        and len(names) == len(pattern)
        and all(
            fnmatch.fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
            for name, part in zip(names, pattern, strict=True)
        )
    )


def _walk(folder: str) -> Iterator[str]:
    """Yield the files below a folder; of links that lead to one folder, or in a circle, one."""
    seen = {_identity(folder)}
    for root, folders, names in os.walk(folder, followlinks=True, onerror=_fail):
        visible = [name for name in folders if not name.startswith(".")]
        folders.clear()
        for _, name in sorted((os.path.islink(_join(root, name)), name) for name in visible):  # noqa: PTH114
            identity = _identity(_join(root, name))
            if identity not in seen:
                seen.add(identity)
                folders.append(name)
        yield from (_join(root, name) for name in names if not name.startswith("."))


def _match(pattern: str) -> Iterator[str]:
    """Yield the files that a glob matches."""
    parts = pattern.split("/")
    if "**" not in parts:
        matches = glob.glob(pattern)  # noqa: PTH207
        yield from (path for path in matches if not os.path.isdir(path))  # noqa: PTH112
        return
    # The library's own `**` follows links in circles, and passes over folders that it cannot read.
    num_plain = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    root = "/".join(parts[:num_plain]) + ("/" if num_plain else "")
    if root and not os.path.isdir(root):  # noqa: PTH112
        return
    for path in _walk(root or "."):
        below = path[len(root or "./") :]
        if _fits(below.split("/"), parts[num_plain:]):
            yield root + below


def _fits(names: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_fits(names[start:], pattern[1:]) for start in range(len(names) + 1))
    return (
        bool(names) and fnmatch.fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])
    )


def _join(folder: str, name: str) -> str:
    return os.path.join(folder, name)  # noqa: PTH118  (for every file: strings are much faster)


def _identity(folder: str) -> tuple[int, int]:
    status = _status(folder)
    return status.st_dev, status.st_ino


def _fail(error: OSError) -> None:
    raise storage_error(error) from error


def _file_info(path: str) -> FileInfo:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"{os.fsencode(path)!r}: the name is not UTF-8, so metadata could not hold it",
            hint="rename the file or folder",
        ) from None
    status = _status(path)
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(
            f"{path}: not a regular file",
            hint="write its content to a file: a run that continues reads its input again",
        )
    return FileInfo(path=path, size=status.st_size, version=str(status.st_mtime_ns))


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)  # noqa: PTH116
    except OSError as error:
        if error.errno == errno.ENOENT and os.path.islink(path):  # noqa: PTH114
            target = os.readlink(path)  # noqa: PTH115
            raise StorageError(f"{path}: a link to {target}, which is not there") from error
        raise storage_error(error, path) from error


class OutputFile:
    """A new file that counts its bytes; `finish` proves that they all arrived.

    Writes are unbuffered: hand over large pieces. What the system refuses is a `StorageError`.
    With `keep_bytes` the file of an earlier attempt is continued behind so many bytes.
    """

    def __init__(self, path: Path, *, keep_bytes: int = 0) -> None:
        self.path = path
        self.num_bytes = keep_bytes
        with self._faults():
            self._raw = path.open("r+b" if keep_bytes else "xb", buffering=0)
            if keep_bytes:
                self._raw.truncate(keep_bytes)
                self._raw.seek(keep_bytes)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`, however many system calls that takes."""
        view = memoryview(data).cast("B")
        while view.nbytes:
            with self._faults():
                written = self._raw.write(view)
            if not written:
                raise StorageError(
                    f"{_final_path(self.path)}: the system accepted none of {view.nbytes} bytes"
                )
            view = view[written:]
            self.num_bytes += written

    def sync(self) -> None:
        """Make what was written so far survive a power loss."""
        with self._faults():
            os.fsync(self._raw.fileno())

    def finish(self, *, sync: bool = True) -> None:
        """Check the size that the file system reports, flush to disk if asked, and close."""
        with self._faults():
            found = os.fstat(self._raw.fileno()).st_size
            if found != self.num_bytes:
                raise StorageError(
                    f"{_final_path(self.path)}: {self.num_bytes} bytes were written, "
                    f"but the file holds {found}",
                    hint=f"the file system lost a write: check the disk, {_AGAIN}",
                )
            if sync:
                os.fsync(self._raw.fileno())
            self._raw.close()  # some file systems report a failed write only here

    def close(self) -> None:
        """Close without any check; for files that are thrown away."""
        with suppress(OSError):
            self._raw.close()

    @contextmanager
    def _faults(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise storage_error(error, _final_path(self.path)) from error


def partial_path(path: Path) -> Path:
    """Return a hidden name beside `path` that no other attempt uses."""
    return path.with_name(f".{path.name}.{uuid4().hex[:12]}.partial")


def _final_path(partial: Path) -> Path:
    """Return the name that a partial file is meant to get: the one that users know."""
    match = re.fullmatch(r"\.(.+)\.[0-9a-f]{12}\.partial", partial.name, re.DOTALL)
    return partial.with_name(match[1]) if match else partial


@contextmanager
def atomic_write(path: Path, *, sync: bool = True) -> Generator[OutputFile]:
    """Open a file that appears at `path`, replacing what was there, only if the block succeeds."""
    partial = partial_path(path)
    try:
        file = OutputFile(partial)
        try:
            yield file
            file.finish(sync=sync)
        finally:
            file.close()
        try:
            partial.replace(path)
        except OSError as error:
            raise storage_error(error, path) from error
        if sync:
            sync_folder(path.parent)
    finally:
        _discard(partial)


def publish_new(partial: Path, path: Path) -> bool:
    """Give a finished file its name unless the name is taken; return whether this attempt won.

    The partial file is gone afterwards in either case. Two attempts of one task cannot both win.
    """
    try:
        return _link_new(partial, path)
    except OSError as error:
        raise storage_error(error, path) from error
    finally:
        _discard(partial)


def _link_new(partial: Path, path: Path) -> bool:
    try:
        os.link(partial, path)
    except FileExistsError:
        return partial.samefile(path)  # NFS may repeat a request, and find its own success
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        return _rename_new(partial, path)
    return True


def _rename_new(partial: Path, path: Path) -> bool:
    """Rename unless the name is taken; a lock on the folder keeps other attempts out meanwhile."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if os.path.lexists(path):
            return False
        partial.rename(path)
        return True
    finally:
        os.close(folder)


def _discard(partial: Path) -> None:
    with suppress(OSError):  # what went wrong before is the news
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power loss, where the file system can promise that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise storage_error(error, folder) from error


@contextmanager
def exclusive_lock(path: Path) -> Generator[None]:
    """Hold `path` as a lock for the block; raise `BusyError` if another process has it.

    The lock goes with the process, so a crash leaves nothing to clean up. On NFS it holds between
    machines, unless the mount says `local_lock`; a file system without locks is a `StorageError`.
    """
    try:
        file = path.open("a+b", buffering=0)
    except OSError as error:
        raise storage_error(error, path) from error
    with file:
        _take_lock(file, path)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # closing would not do if a forked child has it open


def _take_lock(file: BinaryIO, path: Path) -> None:
    for attempt in range(1, _LOCK_TRIES + 1):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if attempt == _LOCK_TRIES:
                raise _busy(file, path) from None
            time.sleep(_LOCK_PAUSE_SECONDS)  # it may only be `is_locked`, looking
        except OSError as error:
            raise _no_locks(error, path) from error
    try:
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {os.uname().nodename}".encode())
    except OSError as error:
        raise storage_error(error, path) from error


def _busy(file: BinaryIO, path: Path) -> BusyError:
    file.seek(0)
    holder = file.read(200).decode(errors="replace").strip() or "unknown"
    return BusyError(
        f"{path.parent}: in use by another run ({holder})",
        hint="wait for it to end, or stop it; `tokenmill status` shows how far it is",
    )


def _no_locks(error: OSError, path: Path) -> StorageError:
    return StorageError(
        f"{path}: cannot be locked: {error.strerror}",
        hint="write to another disk, or mount this one with locks (Lustre: the option flock)",
    )


def is_locked(path: Path) -> bool:
    """Tell whether a process holds the lock at `path`."""
    try:
        with path.open("rb", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise storage_error(error, path) from error
    return False
