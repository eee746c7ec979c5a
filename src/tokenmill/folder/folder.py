"""What a run asks of the place that it writes to; names are relative, with `/` between folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from tokenmill.errors import ConfigError
from tokenmill.folder.draft import Draft
from tokenmill.folder.local import LocalFolder
from tokenmill.folder.remote import RemoteFolder
from tokenmill.remote import is_remote

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


class Reader(Protocol):
    """Reads one file by ranges."""

    def read(self, start: int, num_bytes: int) -> bytes:
        """Return `num_bytes` from `start` on, fewer where the file ends; not one file open."""
        ...

    def expect(self, start: int, stop: int, *, keep: bool = False) -> None:
        """Tell that bytes of [start, stop) will be read next, in order; with `keep`, in any."""
        ...


class Folder(Protocol):
    """A place for files that appear whole or not at all. A missing one is `FileNotFoundError`."""

    @property
    def place(self) -> str:
        """Where it is: a path, or a URL."""
        ...

    @property
    def keeps_whole(self) -> bool:
        """Whether a file that was published without `sync` is sure to be whole after a crash."""
        ...

    @property
    def num_readers(self) -> int:
        """How many small files are worth reading at a time."""
        ...

    def where(self, name: str) -> str:
        """Return the path or URL of a file, for people."""
        ...

    def make(self, *names: str) -> None:
        """Make folders in it, where folders have to be made."""
        ...

    def holds(self, name: str) -> bool:
        """Tell whether the folder `name` is there; with the empty name, whether anything is."""
        ...

    def size(self, name: str) -> int | None:
        """Return how long a file is, or None if it is not there."""
        ...

    def sizes(self, name: str) -> dict[str, int]:
        """Return the files right in the folder `name`, sorted, and how long they are."""
        ...

    def read(self, name: str) -> bytes:
        """Return a whole file."""
        ...

    def open(self, name: str) -> BinaryIO:
        """Open a file to read it from its beginning."""
        ...

    def reader(self, name: str) -> Reader:
        """Return what reads a file by ranges."""
        ...

    def write(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Put a whole file in place of what was there."""
        ...

    def write_new(self, name: str, data: bytes) -> bool:
        """Put a whole file there unless the name is taken; return whether this call won."""
        ...

    def create(self, name: str) -> Draft:
        """Begin a file that is written piece by piece."""
        ...

    def append(self, name: str, line: bytes) -> None:
        """Add a line to a log; only one process does so at a time."""
        ...

    def remove(self, *names: str) -> None:
        """Remove files; those that are not there are fine."""
        ...

    def remove_folder(self, name: str) -> None:
        """Remove a folder with the files in it."""
        ...

    def sweep(self, *names: str) -> None:
        """Remove what crashed writers left of files without a name in these folders."""
        ...

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Hold the lock `name` for the block; raise `BusyError` if another process has it."""
        ...

    def check_lock(self, name: str) -> None:
        """Raise `BusyError` if the lock that this process holds was taken over by another."""
        ...

    def holder(self, name: str) -> str | None:
        """Return who holds the lock `name`, if anyone does."""
        ...


def open_folder(place: str | Path | Folder) -> Folder:
    """Return the folder at a path or s3:// URL; one that is open already stays as it is."""
    if not isinstance(place, str | Path):
        return place
    if is_remote(str(place)):
        return RemoteFolder(str(place))
    if "://" in str(place) or str(place).startswith("s3:/"):  # what pathlib makes of s3://
        raise ConfigError(
            f"{place}: not a place to write to, expected a folder or s3://bucket/prefix",
            hint="give a URL as a string",
        )
    return LocalFolder(Path(place))
