"""A folder under a prefix of an object store.

Objects appear whole, so nothing has to be renamed. What is written piece by piece goes to a file on
this machine's disk first and is uploaded when it is finished.
"""

from __future__ import annotations

import io
import logging
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO

from tokenmill.errors import DamageError, StorageError
from tokenmill.files import OutputFile
from tokenmill.folder.draft import Draft
from tokenmill.folder.lease import Lease, hold_lease, lease_holder
from tokenmill.folder.local import LocalReader
from tokenmill.folder.scratch import scratch_path
from tokenmill.remote import (
    abort_uploads,
    delete_objects,
    has_objects,
    join,
    list_objects,
    object_info,
    open_object,
    put_object,
    read_object,
    read_range,
    split_url,
    upload_file,
)

logger = logging.getLogger(__name__)

AHEAD_BYTES = 8 << 20
"""What is asked for at a time: large enough for the answer to take longer than the question."""
LOG_BYTES = 64 << 10
"""How much of a log is kept: an object cannot grow, so all of it is written for each line."""


class RemoteReader:
    """Reads an object by ranges, and ahead where it is told what comes next."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._expected = 0
        self._start, self._buffer = 0, b""
        self._kept: tuple[int, int, LocalReader] | None = None

    def read(self, start: int, num_bytes: int) -> bytes:
        """Return a range of the object."""
        stop = start + num_bytes
        if self._kept is not None and self._kept[0] <= start and stop <= self._kept[1]:
            return self._kept[2].read(start - self._kept[0], num_bytes)
        if not self._start <= start <= stop <= self._start + len(self._buffer):
            ahead = min(self._expected, start + AHEAD_BYTES)
            if ahead <= stop:  # not part of what was announced
                return read_range(self._url, start, stop)
            self._fetch(start, ahead)
        return self._buffer[start - self._start : stop - self._start]

    def expect(self, start: int, stop: int, *, keep: bool = False) -> None:
        """Read ahead up to `stop`; with `keep`, bring the range to this machine's disk now."""
        self._expected = stop
        if keep and start < stop:
            file = OutputFile(scratch_path("range"))
            weakref.finalize(self, file.path.unlink, missing_ok=True)
            try:
                for first in range(start, stop, AHEAD_BYTES):
                    file.write(read_range(self._url, first, min(first + AHEAD_BYTES, stop)))
                file.finish(sync=False)
            finally:
                file.close()
            self._kept = start, stop, LocalReader(file.path)

    def _fetch(self, start: int, stop: int) -> None:
        """Fill the buffer with [start, stop), of which it may have the beginning."""
        have = self._start + len(self._buffer)
        head = self._buffer[start - self._start :] if self._start <= start < have < stop else b""
        self._buffer = head + read_range(self._url, start + len(head), stop)
        self._start = start


class RemoteFolder:
    """The objects below a URL; see `Folder`."""

    def __init__(self, url: str) -> None:
        split_url(url)  # one that cannot be meant is refused before anything is read or written
        self._url = url.rstrip("/")
        self._logs: dict[str, bytes] = {}
        self._lease: Lease | None = None

    @property
    def place(self) -> str:
        """The URL without a slash at its end."""
        return self._url

    @property
    def keeps_whole(self) -> bool:
        """Yes: what an object store has confirmed is there, and all of it."""
        return True

    @property
    def num_readers(self) -> int:
        """Several: an answer takes its time, however short it is."""
        return 8

    def where(self, name: str) -> str:
        """Return the URL of an object."""
        return join(self._url, name)

    def make(self, *names: str) -> None:
        """Do nothing: a folder is no more than the beginning of names."""

    def holds(self, name: str) -> bool:
        """Tell whether there are objects below a name."""
        return has_objects(self.where(name) if name else self._url)

    def size(self, name: str) -> int | None:
        """Return the size of an object."""
        info = object_info(self.where(name))
        return None if info is None else info.size

    def sizes(self, name: str) -> dict[str, int]:
        """Return the objects right below a name."""
        folder = self.where(name) if name else self._url
        found = ((info.path[len(folder) + 1 :], info.size) for info in list_objects(folder))
        return {below: size for below, size in found if "/" not in below}

    def read(self, name: str) -> bytes:
        """Return a whole object."""
        return read_object(self.where(name))

    def open(self, name: str) -> BinaryIO:
        """Open an object, buffered."""
        return io.BufferedReader(open_object(self.where(name)))  # pyright: ignore[reportArgumentType]

    def reader(self, name: str) -> RemoteReader:
        """Return what reads an object by ranges."""
        return RemoteReader(self.where(name))

    def write(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Put an object; what the store confirms is safe, so `sync` changes nothing."""
        del sync
        put_object(self.where(name), data)

    def write_new(self, name: str, data: bytes) -> bool:
        """Put an object on the condition that there is none."""
        return put_object(self.where(name), data, new=True)

    def create(self, name: str) -> Draft:
        """Begin a file on this machine's disk, to be uploaded."""
        return Draft(OutputFile(scratch_path(name)), partial(_upload, self.where(name)))

    def append(self, name: str, line: bytes) -> None:
        """Write the log again with one more line, without its oldest if it gets long."""
        if name not in self._logs:
            try:
                self._logs[name] = self.read(name)
            except FileNotFoundError:
                self._logs[name] = b""
        log = self._logs[name] + line
        if len(log) > LOG_BYTES:
            log = log[-LOG_BYTES // 2 :].partition(b"\n")[2]
        self._logs[name] = log
        self.write(name, log)

    def remove(self, *names: str) -> None:
        """Delete objects."""
        if names:
            delete_objects([self.where(name) for name in names])

    def remove_folder(self, name: str) -> None:
        """Delete the objects below a name."""
        self.remove(*(f"{name}/{below}" for below in self.sizes(name)))

    def sweep(self, *names: str) -> None:
        """Abort the uploads that crashed writers began, anywhere in this folder, if that may be."""
        del names
        try:
            abort_uploads(self._url, older_than_seconds=0)
        except StorageError as error:  # a right of its own, and nothing depends on it
            logger.warning("parts of cut uploads were not looked for: %s", error.message)

    @contextmanager
    def lock(self, name: str) -> Generator[None]:
        """Hold a lease, which is renewed while the block lasts."""
        with hold_lease(self._lock_url(name)) as self._lease:
            try:
                yield
            except (DamageError, FileNotFoundError):
                self._lease.check(now=True)  # another run may have removed what this one needs
                raise

    def check_lock(self, name: str) -> None:
        """Raise `BusyError` if another run took over, as after a long time without a network."""
        del name
        if self._lease is not None:
            self._lease.check()

    def holder(self, name: str) -> str | None:
        """Return who renews the lease."""
        return lease_holder(self._lock_url(name))

    def _lock_url(self, name: str) -> str:
        """Return where the objects of a lock are: not where a disk has its file."""
        return f"{self.where(name)}s"


def _upload(url: str, file: OutputFile, sync: bool) -> None:
    """Upload a finished file and remove it here; the disk need not be synced for that."""
    del sync
    file.finish(sync=False)
    upload_file(file.path, url)
    info = object_info(url)
    if info is None or info.size != file.num_bytes:
        found = "nothing" if info is None else f"{info.size:,} bytes"
        raise StorageError(
            f"{url}: {file.num_bytes:,} bytes were uploaded, but {found} can be found",
            hint="another run may write to the same place; run the same command again",
        )
    file.path.unlink()
