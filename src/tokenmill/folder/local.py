"""A folder on a disk, local or shared between machines."""

from __future__ import annotations

import os
import stat
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tokenmill.files import (
    OutputFile,
    atomic_write,
    exclusive_lock,
    is_locked,
    partial_path,
    publish_new,
    storage_error,
    sync_folder,
)
from tokenmill.folder.draft import Draft


@dataclass(frozen=True, slots=True)
class LocalReader:
    """Reads a file by ranges; the system reads ahead by itself."""

    path: Path

    def read(self, start: int, num_bytes: int) -> bytes:
        """Return a range of the file; no file stays open, so there can be many readers."""
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            return file.read(num_bytes)

    def expect(self, start: int, stop: int, *, keep: bool = False) -> None:
        """Do nothing: see the class."""


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A folder whose files are published by renaming them; see `Folder`."""

    root: Path

    @property
    def place(self) -> str:
        """The path of the folder."""
        return str(self.root)

    @property
    def keeps_whole(self) -> bool:
        """No: a name can reach the disk before the bytes."""
        return False

    @property
    def num_readers(self) -> int:
        """One: the system has them at hand, or the disk is busy."""
        return 1

    def where(self, name: str) -> str:
        """Return the path of a file."""
        return str(self.root / name)

    def make(self, *names: str) -> None:
        """Make folders and what is above them."""
        for name in names:
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def holds(self, name: str) -> bool:
        """Tell whether a folder is there, or whether there is anything in this one."""
        if name:
            return (self.root / name).is_dir()
        try:
            with os.scandir(self.root) as entries:
                return any(True for _ in entries)
        except FileNotFoundError:
            return False

    def size(self, name: str) -> int | None:
        """Return the size of a regular file."""
        try:
            status = (self.root / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def sizes(self, name: str) -> dict[str, int]:
        """Return the files in a folder; one that vanishes meanwhile is left out."""
        found: dict[str, int] = {}
        with suppress(FileNotFoundError), os.scandir(self.root / name) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        return dict(sorted(found.items()))

    def read(self, name: str) -> bytes:
        """Return a whole file."""
        return (self.root / name).read_bytes()

    def open(self, name: str) -> BinaryIO:
        """Open a file, buffered."""
        return (self.root / name).open("rb")

    def reader(self, name: str) -> LocalReader:
        """Return what reads a file by ranges."""
        return LocalReader(self.root / name)

    def write(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Write beside the file and rename."""
        with atomic_write(self.root / name, sync=sync) as file:
            file.write(data)

    def write_new(self, name: str, data: bytes) -> bool:
        """Write beside the file and link, which fails if the name is taken."""
        path = partial_path(self.root / name)
        file = OutputFile(path)
        try:
            file.write(data)
            file.finish(sync=False)
            return publish_new(path, self.root / name)
        finally:
            file.close()
            path.unlink(missing_ok=True)

    def create(self, name: str) -> Draft:
        """Begin a file under a hidden name beside its own."""
        path = self.root / name
        return Draft(OutputFile(partial_path(path)), partial(_rename, path))

    def append(self, name: str, line: bytes) -> None:
        """Append in one write."""
        path = self.root / name
        try:
            with path.open("ab", buffering=0) as file:
                file.write(line)
        except OSError as error:
            raise storage_error(error, path) from error

    def remove(self, *names: str) -> None:
        """Unlink files."""
        for name in names:
            (self.root / name).unlink(missing_ok=True)

    def remove_folder(self, name: str) -> None:
        """Unlink the files of a folder and the folder."""
        folder = self.root / name
        if folder.is_dir():
            for path in folder.iterdir():
                path.unlink(missing_ok=True)
            folder.rmdir()

    def sweep(self, *names: str) -> None:
        """Remove hidden files that never got their names."""
        for name in names:
            for path in (self.root / name).glob(".*.partial"):
                path.unlink(missing_ok=True)

    def lock(self, name: str) -> AbstractContextManager[None]:
        """Lock a file; the lock goes with the process."""
        return exclusive_lock(self.root / name)

    def check_lock(self, name: str) -> None:
        """Do nothing: nobody can take a lock from the process that holds it."""

    def holder(self, name: str) -> str | None:
        """Return what the process that holds the lock wrote into it."""
        path = self.root / name
        return path.read_text(errors="replace") if is_locked(path) else None


def _rename(path: Path, file: OutputFile, sync: bool) -> None:
    file.finish(sync=sync)
    try:
        file.path.replace(path)
    except OSError as error:
        raise storage_error(error, path) from error
    if sync:
        sync_folder(path.parent)
