"""One file from here to there: looked at, copied, and proved to be what it was."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from tokenmill.errors import DamageError, StorageError
from tokenmill.files import FileInfo, atomic_write, open_input, storage_error
from tokenmill.remote import UploadTag, is_remote, join, object_info, open_object, upload_file

if TYPE_CHECKING:
    from threading import Event

_BLOCK_BYTES = 1 << 20


class StoppedError(Exception):
    """The work was given up because the user, or a fault elsewhere, asked for it."""


@dataclass(frozen=True, slots=True)
class Item:
    """A file to copy, by its name below the root."""

    name: str
    info: FileInfo
    """Where it is in the source."""
    sha256: str | None
    """What it must hash to; None if nothing says so."""


class Copier:
    """Copies files below one root to another; threads may share it."""

    def __init__(self, target: str, *, stopped: Event, on_bytes: Callable[[int], None]) -> None:
        self._target, self._stopped, self._on_bytes = target, stopped, on_bytes

    def is_there(self, item: Item, found: FileInfo | None) -> bool:
        """Tell whether the target holds a file already, proved by its content."""
        if found is None or found.size != item.info.size:
            return False
        if is_remote(found.path):
            return self._is_uploaded(item, found)
        if item.sha256 is not None:
            return self._hash(found) == item.sha256
        if not is_remote(item.info.path):
            return self._hash(found) == self._hash(item.info)
        tag = UploadTag(found.size, like=item.info.version)
        return tag.can_tell and self._tag(found, tag) == item.info.version

    def copy(self, item: Item) -> None:
        """Copy a file; what arrives is proved before it counts."""
        target = locate(self._target, item.name)
        if not is_remote(target):
            self._download(item, Path(target))
        elif is_remote(item.info.path):
            with tempfile.TemporaryDirectory(prefix="tokenmill-") as folder:
                local = Path(folder, "copy")
                self._download(item, local, sync=False)
                self._upload(local, item, target)
        else:
            self._upload(Path(item.info.path), item, target)

    def _is_uploaded(self, item: Item, found: FileInfo) -> bool:
        if is_remote(item.info.path):
            if found.version == item.info.version:
                return True  # the same tag, made of the same bytes
            return self._hash(found) == (item.sha256 or self._hash(item.info))
        tag = UploadTag(found.size, like=found.version)
        own = hashlib.sha256()
        for block in self._read(item.info):
            own.update(block)
            if tag.can_tell:
                tag.update(block)
        self._check(item, own.hexdigest())
        return tag.tag() == found.version if tag.can_tell else self._hash(found) == own.hexdigest()

    def _download(self, item: Item, target: Path, *, sync: bool = True) -> None:
        """Write a local file, which gets its name only when its hash is right."""
        found = hashlib.sha256()
        with suppress(FileExistsError):  # two threads may need it at once
            target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target, sync=sync) as file:
            for block in self._read(item.info, is_counted=True):
                found.update(block)
                file.write(block)
            self._check(item, found.hexdigest())

    def _upload(self, local: Path, item: Item, url: str) -> None:
        tag, found = UploadTag(item.info.size), hashlib.sha256()
        info = FileInfo(str(local), item.info.size, "")
        for block in self._read(info):
            found.update(block)
            tag.update(block)
        self._check(item, found.hexdigest())
        upload_file(local, url, on_bytes=None if is_remote(item.info.path) else self._on_bytes)
        there = object_info(url)
        if there is None or there.size != item.info.size:
            size = 0 if there is None else there.size
            raise StorageError(
                f"{url}: {item.info.size} bytes were sent, and {size} are there",
                hint="was it replaced by someone else? run the same command again",
            )
        # Each part was compared by the server as it came; this sees that no other file arrived.
        if UploadTag(there.size, like=there.version).can_tell and there.version != tag.tag():
            raise DamageError(
                f"{url}: not what was sent: its tag is {there.version}, expected {tag.tag()}",
                hint="run the same command again: it sends the file again",
            )

    def _check(self, item: Item, found: str) -> None:
        if item.sha256 is not None and found != item.sha256:
            raise DamageError(
                f"{item.info.path}: sha256 is {found[:12]}, the metadata says {item.sha256[:12]}",
                hint=f"the source is damaged: `tokenmill verify --level full` of "
                f"{item.info.path.removesuffix(item.name).rstrip('/')} shows how much",
            )

    def _hash(self, info: FileInfo) -> str:
        found = hashlib.sha256()
        for block in self._read(info):
            found.update(block)
        return found.hexdigest()

    def _tag(self, info: FileInfo, tag: UploadTag) -> str:
        for block in self._read(info):
            tag.update(block)
        return tag.tag()

    def _read(self, info: FileInfo, *, is_counted: bool = False) -> Iterator[bytes]:
        """Yield a file block by block; one that has changed since it was listed is an error."""
        num_bytes = 0
        with _open(info) as file:
            while block := self._next(file.read, info):
                num_bytes += len(block)
                if is_counted:
                    self._on_bytes(len(block))
                yield block
        if num_bytes != info.size:
            raise StorageError(
                f"{info.path}: had {info.size} bytes when it was listed and now has {num_bytes}",
                hint="wait until nobody writes to it, then run the same command again",
            )

    def _next(self, read: Callable[[int], bytes], info: FileInfo) -> bytes:
        if self._stopped.is_set():
            raise StoppedError
        try:
            return read(_BLOCK_BYTES)
        except OSError as error:
            raise storage_error(error, info.path) from error


def locate(root: str, name: str) -> str:
    """Return the place of a file below a root."""
    return join(root, name) if is_remote(root) else f"{root}/{name}"


def _open(info: FileInfo) -> BinaryIO:
    if is_remote(info.path):
        return open_object(info.path, info=info, span=(0, info.size))
    return open_input(info.path)
