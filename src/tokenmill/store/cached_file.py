"""Files of a remote store as readers see them: through the cache of the node, proved at its door.

A shard is cut into chunks of some MiB, each proved by the checksums of its blocks when it arrives;
a table or tokenizer is kept whole, proved by its SHA-256. So what a process finds in the cache was
right when it was put there, whoever put it. Each process still proves what it reads for the first
time, as it does with a local store; what turns out to be spoiled is fetched again, once.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenmill.errors import DamageError, TokenmillError
from tokenmill.store.format import BLOCK_BYTES, num_blocks
from tokenmill.store.remote_cache import RemoteCache
from tokenmill.store.stored_object import AnyFile, StoredObject
from tokenmill.store.tokens_file import IdsFile, ShardInTokens

_KEPT_BYTES: Final = 1 << 26
_KEPT_PIECES: Final = 256
_PIECE_BYTES: Final = 1 << 20
R = TypeVar("R")


class CachedShard:
    """The ids of a remote shard, fetched by chunks. Threads and forked processes may share it.

    Without locks, as `StoredFile`. Reading on from one chunk to the next fetches the one after it
    in a thread.
    """

    __slots__ = ("_ahead", "_cache", "_last", "_origin", "_prefix", "_sums", "name", "num_bytes")

    def __init__(
        self,
        origin: StoredObject | ShardInTokens,
        sha256: str,
        *,
        cache: RemoteCache,
        sums: Callable[[], NDArray[np.uint64]] | None,
    ) -> None:
        self.name = origin.name
        self.num_bytes = origin.num_bytes
        self._origin = origin
        self._cache = cache
        self._sums = sums
        self._prefix = _prefix(sha256, is_proved=sums is not None)
        self._last = self._ahead = -2  # chunks

    def read_into(self, out: memoryview, offset: int) -> None:
        """Fill `out` with the bytes of the shard file from `offset` on."""
        chunk_bytes, done = self._cache.chunk_bytes, 0
        while done < len(out):
            chunk, inside = divmod(offset + done, chunk_bytes)
            piece = out[done : done + chunk_bytes - inside]
            self._read_chunk(piece, chunk, inside)
            done += len(piece)

    def read(self, start: int, stop: int) -> bytearray:
        """Return the bytes from `start` to `stop`."""
        data = bytearray(stop - start)
        self.read_into(memoryview(data), start)
        return data

    def read_again(self, start: int, stop: int) -> bytearray:
        """Return bytes from where the store is, in place of what the cache held of them."""
        chunk_bytes = self._cache.chunk_bytes
        for chunk in range(start // chunk_bytes, -(-stop // chunk_bytes)):
            name, _ = self._piece(chunk)
            self._cache.discard(name)
            _kept.pop((self._cache.folder, name), None)
        return self.read(start, stop)

    def damage(self, problem: str) -> DamageError:
        """Return an error that names the shard where it is stored."""
        return self._origin.damage(problem)

    def _read_chunk(self, out: memoryview, chunk: int, inside: int) -> None:
        name, span = self._piece(chunk)
        if not self._cache.read_into(name, out, offset=inside, size=len(span)):
            data = _recall(self._cache, name) or self._fetch(chunk)
            out[:] = data[inside : inside + len(out)]
        last, self._last = self._last, chunk
        if chunk == last + 1 and self._ahead != chunk + 1:
            self._fetch_ahead(chunk + 1)

    def _piece(self, chunk: int) -> tuple[str, range]:
        start = chunk * self._cache.chunk_bytes
        stop = min(start + self._cache.chunk_bytes, self.num_bytes)
        return f"{self._prefix}-{start}-{stop}", range(start, stop)

    def _fetch(self, chunk: int) -> bytes:
        """Bring a chunk into the cache, or into memory where that cannot be, and return it."""
        name, span = self._piece(chunk)
        sums = None if self._sums is None else self._sums()  # before the turn: it takes one itself
        with self._cache.turn(name):
            data = bytearray(len(span))
            if self._cache.read_into(name, memoryview(data), offset=0, size=len(span)):
                return bytes(data)
            fetched = _twice(lambda: self._proved(span, sums))
            if not self._cache.put(name, len(span), [fetched], sync=sums is None):
                _keep(self._cache, name, fetched)
        return fetched

    def _proved(self, span: range, sums: NDArray[np.uint64] | None) -> bytes:
        data = self._origin.fetch(span.start, span.stop)
        if sums is None:
            return data
        view, first = memoryview(data), span.start // BLOCK_BYTES
        for number, expected in enumerate(sums[first : num_blocks(span.stop)].tolist()):
            start = number * BLOCK_BYTES
            if xxhash.xxh3_64_intdigest(view[start : start + BLOCK_BYTES]) != expected:
                begin = span.start + start
                stop = min(begin + BLOCK_BYTES, self.num_bytes)
                place = f"block {first + number} (bytes {begin} to {stop})"
                raise self.damage(f"{place} does not match its checksum")
        return data

    def _fetch_ahead(self, chunk: int) -> None:
        self._ahead = chunk
        name, span = self._piece(chunk)
        if not span or (self._cache.folder, name) in _kept or self._cache.has(name, len(span)):
            return
        thread = threading.Thread(target=self._try_to_fetch, args=(chunk,), name="fetch-ahead")
        with suppress(RuntimeError):  # no more threads, or the process ends: then it is met later
            thread.start()

    def _try_to_fetch(self, chunk: int) -> None:
        with suppress(TokenmillError):  # the reader meets it too, if it ever gets there
            self._fetch(chunk)


class CachedTable:
    """A table or tokenizer of a remote store, fetched whole. Safe to share, as `CachedShard`."""

    note = ""

    __slots__ = ("_cache", "_is_direct", "_origin", "_piece", "_sha256", "name", "num_bytes")

    def __init__(
        self, origin: StoredObject, sha256: str, *, cache: RemoteCache, is_proved: bool
    ) -> None:
        self.name = origin.name
        self.num_bytes = origin.num_bytes
        self._origin = origin
        self._cache = cache
        self._sha256 = sha256 if is_proved else None
        self._is_direct = False  # True: it neither fits the cache nor should be kept in memory
        self._piece = f"{_prefix(sha256, is_proved=is_proved)}-0-{self.num_bytes}"

    def read_into(self, out: memoryview, offset: int) -> None:
        """Fill `out` with the bytes of the file from `offset` on."""
        if not self._read_copy(out, offset):
            data = None if self._is_direct else self._fetch()
            if data is not None:
                out[:] = data[offset : offset + len(out)]
            elif self._is_direct or not self._read_copy(out, offset):
                self._origin.read_into(out, offset)

    def read(self, start: int, stop: int) -> bytearray:
        """Return the bytes from `start` to `stop`."""
        data = bytearray(stop - start)
        self.read_into(memoryview(data), start)
        return data

    def pieces(
        self, sha256: str | None, *, piece_bytes: int = _PIECE_BYTES
    ) -> Iterator[memoryview]:
        """Yield what follows the header in pieces, each valid until the next, proved before."""
        first = len(self._origin.header)
        if sha256 is not None:
            self._prove(sha256)
        buffer = memoryview(bytearray(min(piece_bytes, self.num_bytes - first)))
        for start in range(first, self.num_bytes, piece_bytes):
            piece = buffer[: min(piece_bytes, self.num_bytes - start)]
            self.read_into(piece, start)
            yield piece

    def read_all(self, sha256: str | None) -> bytes:
        """Return all that follows the header, after comparing the hash if one is given."""
        return b"".join(bytes(piece) for piece in self.pieces(sha256))

    def forget(self) -> None:
        """Let go of what was fetched ahead."""
        self._origin.forget()

    def damage(self, problem: str) -> DamageError:
        """Return an error that names the file where it is stored."""
        return self._origin.damage(problem)

    def _read_copy(self, out: memoryview, offset: int) -> bool:
        if self._cache.read_into(self._piece, out, offset=offset, size=self.num_bytes):
            return True
        kept = _recall(self._cache, self._piece)
        if kept is None:
            return False
        out[:] = kept[offset : offset + len(out)]
        return True

    def _prove(self, sha256: str) -> None:
        """Compare the hash of the copy; if there is none or it is spoiled, fetch one."""
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(min(_PIECE_BYTES, self.num_bytes)))
        for start in range(0, self.num_bytes, _PIECE_BYTES):
            piece = buffer[: min(_PIECE_BYTES, self.num_bytes - start)]
            if not self._read_copy(piece, start):
                break
            digest.update(piece)
        if digest.hexdigest() != sha256:
            self._cache.discard(self._piece)
            _kept.pop((self._cache.folder, self._piece), None)
            self._fetch()

    def _fetch(self) -> bytes | None:
        """Bring the file into the cache, proved; return its bytes if it is small."""
        with self._cache.turn(self._piece):
            if self._cache.has(self._piece, self.num_bytes):
                return None
            if self.num_bytes <= self._cache.chunk_bytes:
                data = _twice(lambda: b"".join(map(bytes, self._from_origin())))
                if not self._put([data]):
                    _keep(self._cache, self._piece, data)
                return data
            if not _twice(lambda: self._put(self._from_origin())):
                self._is_direct = True
                for _ in self._from_origin():  # proved all the same
                    continue
        return None

    def _put(self, data: Iterable[bytes | memoryview]) -> bool:
        sync = self._sha256 is None
        return self._cache.put(self._piece, self.num_bytes, data, sync=sync)

    def _from_origin(self) -> Iterator[bytes | memoryview]:
        yield self._origin.header
        yield from self._origin.pieces(self._sha256)


TableFile = AnyFile | CachedTable


def cached_shard(
    file: IdsFile,
    sha256: str,
    *,
    cache: RemoteCache | None,
    sums: Callable[[], NDArray[np.uint64]] | None,
) -> IdsFile | CachedShard:
    """Return the ids of a shard through `cache`; of a local store, for which it is None, as is.

    `sums` gives the checksums of its blocks; without them nothing is proved.
    """
    if cache is None or not isinstance(file, StoredObject | ShardInTokens):
        return file
    return CachedShard(file, sha256, cache=cache, sums=sums)


def cached_table(
    file: AnyFile, sha256: str, *, cache: RemoteCache | None, is_proved: bool
) -> TableFile:
    """Return a table or tokenizer through `cache`; of a local store, for which it is None, as is.

    `is_proved` says whether its hash is to be compared when it arrives.
    """
    if cache is None or not isinstance(file, StoredObject):
        return file
    return CachedTable(file, sha256, cache=cache, is_proved=is_proved)


def _prefix(sha256: str, *, is_proved: bool) -> str:
    """Return how the names of pieces begin: what nobody proved is not for those who prove."""
    return sha256 if is_proved else f"{sha256}u"


def _twice(fetch: Callable[[], R]) -> R:
    """Fetch again what was damaged on its way; what is damaged where it is stored stays so."""
    try:
        return fetch()
    except DamageError:
        return fetch()


# What the disk did not take, the least recently used first. Each operation is one step of the
# interpreter, so that no lock is needed.
_kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()


def _recall(cache: RemoteCache, name: str) -> bytes | None:
    with suppress(KeyError):
        _kept.move_to_end((cache.folder, name))
    return _kept.get((cache.folder, name))


def _keep(cache: RemoteCache, name: str, data: bytes) -> None:
    _kept[cache.folder, name] = data
    while len(_kept) > 1 and (
        len(_kept) > _KEPT_PIECES or sum(map(len, list(_kept.values()))) > _KEPT_BYTES
    ):
        with suppress(KeyError):
            _kept.popitem(last=False)
