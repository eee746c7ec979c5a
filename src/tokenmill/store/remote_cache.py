"""A bounded folder of pieces of remote files, shared by all processes of a node, or of several.

    ledger                              bytes that the pieces may take; locked while it is changed
    turns/01f                           locked while one process fetches a piece for all
    3f/3fa9…-0-4194304                  SHA-256 of the file, first byte and last of the piece
    3f/.9b…-4194304.partial             a piece on its way, and the bytes that it will take

A piece bears the hash of the file that it was cut from, so that stores share what they share and
another store at the same place never mixes with this one. It gets its name when it is complete, and
its room in the ledger before its first byte, so the folder never outgrows its bound. What was not
used for the longest time goes first. Any file may vanish at any time: then it is fetched again.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import xxhash

from tokenmill.config import environment_layer, resolve
from tokenmill.errors import ConfigError
from tokenmill.store.format import BLOCK_BYTES

_FOLDER_NAME: Final = re.compile(r"[0-9a-f]{2}")
_PIECE_NAME: Final = re.compile(r"[0-9a-f]{64}u?-[0-9]+-[0-9]+")
_PARTIAL_NAME: Final = re.compile(r"\.[0-9a-f]{32}-([0-9]+)\.partial")
_LEDGER: Final = "ledger"
_TURNS: Final = "turns"
_NUM_TURNS: Final = 1 << 10
_LEDGER_DIGITS: Final = 20
_LOCK_SECONDS: Final = 10.0
_TURN_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.005
_TOUCH_SECONDS: Final = 1.0
"""A piece that is read is marked as used at most this often."""
_STALE_SECONDS: Final = 600.0
"""After that, a piece on its way belongs to a process that was killed."""
_SPARED_BYTES: Final = 1 << 30
"""Left free on the disk for others, or a twentieth of a disk that is smaller than 20 GiB."""
_LOW_WATER: Final = 0.9
"""How full the cache is after it has made room: a little less than full, to do that less often."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheSettings:
    """Where pieces of remote stores are kept on this machine, and how much of them."""

    cache_dir: str | None = None
    """Folder of the cache; by default tokenmill/stores in the user's cache folder."""
    cache_mib: int = 10 * 1024
    """The most that the cache may take, in MiB; 0 keeps nothing on disk."""
    cache_chunk_kib: int = 4 * 1024
    """How much of a shard is fetched at a time, in KiB: a multiple of 64."""

    def __post_init__(self) -> None:
        if self.cache_mib < 0:
            raise ConfigError(f"cache_mib must be at least 0, got {self.cache_mib}")
        if self.cache_chunk_kib < 1 or (self.cache_chunk_kib << 10) % BLOCK_BYTES:
            raise ConfigError(
                f"cache_chunk_kib must be a multiple of 64, got {self.cache_chunk_kib}"
            )


def open_cache(settings: CacheSettings | None = None) -> RemoteCache:
    """Return the cache that settings, or else TOKENMILL_CACHE_* variables, speak of.

    Nothing is made on disk before the first piece is kept.
    """
    if settings is None:
        settings = resolve(CacheSettings, environment_layer(CacheSettings))
    folder = settings.cache_dir
    if folder is None:
        home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
        folder = f"{home}/tokenmill/stores"
    return RemoteCache(
        folder=str(Path(folder).expanduser().absolute()),
        max_bytes=settings.cache_mib << 20,
        chunk_bytes=settings.cache_chunk_kib << 10,
    )


@dataclass(frozen=True, slots=True)
class RemoteCache:
    """Pieces of remote files by name, in one folder.

    It has no state of its own: threads, forked processes and others share it by the folder alone.
    What the disk refuses is said once, as a warning, and the cache does without.
    """

    folder: str
    max_bytes: int
    chunk_bytes: int = 1 << 22

    def __post_init__(self) -> None:
        assert self.chunk_bytes % BLOCK_BYTES == 0

    def has(self, name: str, size: int) -> bool:
        """Tell whether a piece is there in its full length."""
        try:
            return os.stat(self._path(name)).st_size == size  # noqa: PTH116
        except OSError:
            return False

    def read_into(self, name: str, out: memoryview, *, offset: int, size: int) -> bool:
        """Fill `out` from a piece of `size` bytes; return False if it is not there whole."""
        if not self.max_bytes:
            return False
        try:
            descriptor = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._warn(error)
            return False
        try:
            status = os.fstat(descriptor)
            if status.st_size != size:
                return False
            if time.time() - status.st_mtime > _TOUCH_SECONDS:
                with suppress(OSError):  # somebody else's file: then it grows old
                    os.utime(descriptor)
            return _fill(descriptor, out, offset)
        except OSError as error:
            self._warn(error)
            return False
        finally:
            os.close(descriptor)

    def put(
        self, name: str, size: int, data: Iterable[bytes | bytearray | memoryview], *, sync: bool
    ) -> bool:
        """Keep a piece of `size` bytes; return False where that is not possible.

        What `data` raises comes through, and then nothing is kept. Without `sync`, a power loss can
        leave other bytes under the name: for pieces that are proved whenever they are read.
        """
        if size > self.max_bytes:
            return False
        try:
            partial = self._reserve(name, size)
        except OSError as error:
            self._warn(error)
            return False
        if partial is None:
            return False
        try:
            _write(partial, data, size=size, sync=sync)
            descriptor = self._lock(_LEDGER, seconds=_LOCK_SECONDS)  # who counts must not miss it
            try:
                os.rename(partial, self._path(name))  # noqa: PTH104
            finally:
                _unlock(descriptor)
        except OSError as error:
            self._warn(error)
            return False
        finally:
            with suppress(OSError):
                os.unlink(partial)  # noqa: PTH108
        return True

    def discard(self, name: str) -> None:
        """Remove a piece, if it is there."""
        with suppress(OSError):
            os.unlink(self._path(name))  # noqa: PTH108

    @contextmanager
    def turn(self, name: str) -> Generator[None]:
        """Let one at a time fetch a piece: who comes second finds it there.

        A courtesy, not a promise: who waited too long, or cannot lock, fetches as well.
        """
        if not self.max_bytes:
            yield
            return
        number = xxhash.xxh3_64_intdigest(name.encode()) % _NUM_TURNS
        try:
            descriptor = self._lock(f"{_TURNS}/{number:03x}", seconds=_TURN_SECONDS)
        except OSError:
            yield
            return
        try:
            yield
        finally:
            _unlock(descriptor)

    def used_bytes(self) -> int:
        """Count what the pieces take now, those on their way included."""
        return sum(piece.size for piece in self._scan())

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name[:2]}/{name}"

    def _reserve(self, name: str, size: int) -> str | None:
        """Make room for a piece and return the name to write it under; None if there is none."""
        descriptor = self._lock(_LEDGER, seconds=_LOCK_SECONDS)
        try:
            used = _read_ledger(descriptor)
            spare = self._spare_bytes()
            if used is None or used + size > self.max_bytes or size > spare:
                used = self._make_room(size, spare=spare)
                if used is None:
                    return None
            _write_ledger(descriptor, used + size)
            folder = f"{self.folder}/{name[:2]}"
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
            partial = f"{folder}/.{uuid4().hex}-{size}.partial"
            os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            return partial
        finally:
            _unlock(descriptor)

    def _make_room(self, size: int, *, spare: int) -> int | None:
        """Evict what was not used for long; return what is left, None if it cannot be enough."""
        pieces = sorted(self._scan())
        used = sum(piece.size for piece in pieces)
        bound = min(self.max_bytes, used + spare)
        if size > bound:
            return None
        goal = min(int(bound * _LOW_WATER), bound - size)
        for piece in pieces:
            if used <= goal:
                break
            if piece.is_partial:
                continue
            with suppress(FileNotFoundError):
                os.unlink(piece.path)  # noqa: PTH108
            used -= piece.size
        return used if used + size <= bound else None  # else others have too much on its way

    def _spare_bytes(self) -> int:
        """Return what the disk can take without becoming full; below zero, it is too full."""
        disk = os.statvfs(self.folder)
        spared = min(_SPARED_BYTES, disk.f_blocks * disk.f_frsize // 20)
        return disk.f_bavail * disk.f_frsize - spared

    def _scan(self) -> list[_Piece]:
        """List the pieces, and remove what killed processes left on its way; nothing else."""
        found: list[_Piece] = []
        for folder in _entries(self.folder):
            if _FOLDER_NAME.fullmatch(folder.name) is None:
                continue
            for entry in _entries(folder.path):
                partial = _PARTIAL_NAME.fullmatch(entry.name)
                if partial is None and _PIECE_NAME.fullmatch(entry.name) is None:
                    continue
                try:
                    status = entry.stat()
                    if partial is None:
                        found.append(_Piece(status.st_mtime, status.st_size, entry.path))
                    elif time.time() - status.st_mtime > _STALE_SECONDS:
                        os.unlink(entry.path)  # noqa: PTH108
                    else:
                        size = int(partial[1])
                        found.append(_Piece(status.st_mtime, size, entry.path, is_partial=True))
                except FileNotFoundError:
                    continue
        return found

    def _lock(self, name: str, *, seconds: float) -> int:
        """Return an open file that is locked, or raise `OSError`."""
        path = f"{self.folder}/{name}"
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o644)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
            descriptor = os.open(path, flags, 0o644)
        # Polled: a lock that a forked child of a killed process still holds must stop nobody.
        stop = time.monotonic() + seconds
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return descriptor
                except BlockingIOError:
                    if time.monotonic() > stop:
                        reason = "is locked by another process for too long"
                        raise TimeoutError(errno.ETIMEDOUT, reason, path) from None
                time.sleep(_PAUSE_SECONDS)
        except BaseException:
            os.close(descriptor)
            raise

    def _warn(self, error: OSError) -> None:
        if (self.folder, error.errno) not in _said:
            _said.add((self.folder, error.errno))
            text = "%s: the cache of remote stores cannot be used: %s; reading without it"
            _log.warning(text, self.folder, error.strerror or error)


_said: set[tuple[str, int | None]] = set()


@dataclass(frozen=True, slots=True, order=True)
class _Piece:
    """A piece on disk; in order, the one that was not used for the longest time comes first."""

    used: float
    size: int
    path: str
    is_partial: bool = False


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _fill(descriptor: int, out: memoryview, offset: int) -> bool:
    done = 0
    while done < len(out):
        got = os.preadv(descriptor, (out[done:],), offset + done)
        if not got:
            return False
        done += got
    return True


def _write(
    path: str, data: Iterable[bytes | bytearray | memoryview], *, size: int, sync: bool
) -> None:
    """Write a file of exactly `size` bytes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        written = 0
        for piece in data:
            view = memoryview(piece).cast("B")
            while view:
                done = os.write(descriptor, view)
                written += done
                view = view[done:]
        assert written == size, f"{written} bytes for a piece of {size}"
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_ledger(descriptor: int) -> int | None:
    text = os.pread(descriptor, _LEDGER_DIGITS + 1, 0)
    return int(text) if len(text) == _LEDGER_DIGITS and text.isdigit() else None


def _write_ledger(descriptor: int, used: int) -> None:
    os.pwrite(descriptor, b"%0*d" % (_LEDGER_DIGITS, used), 0)


def _unlock(descriptor: int) -> None:
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing would not do if a forked child has it open
    os.close(descriptor)
