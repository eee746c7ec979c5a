"""Write one shard with its two tables, streaming, so that it appears whole or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenmill.files import OutputFile, atomic_write, partial_path, storage_error, sync_folder
from tokenmill.store.format import (
    BLOCK_BYTES,
    BLOCKS_DTYPE,
    DOCS_DTYPE,
    TOKEN_DTYPES,
    blocks_path,
    docs_path,
    is_tokenizer_name,
    npy_header,
    shard_path,
)
from tokenmill.store.metadata import FileEntry, ShardEntry

# Whole blocks, and large enough for hashlib to release the interpreter lock.
_BUFFER_BYTES: Final = 16 * BLOCK_BYTES


class ShardWriter:
    """Writes the ids of one shard, then its tables, and gives the files their names.

    `num_tokens` is known beforehand, since every shard but the last has the same length; exactly so
    many ids must be written. Nothing has its final name before `finish`; `close`, or leaving a
    `with` block before it, removes what was written. The shard's own name appears last: where it
    is, its tables are. Memory is one buffer of 1 MiB, whatever the size of the shard.
    """

    def __init__(
        self, folder: Path, split: str, *, index: int, dtype: np.dtype[Any], num_tokens: int
    ) -> None:
        if dtype not in TOKEN_DTYPES.values():
            raise TypeError(f"dtype is {dtype}, expected one of {', '.join(TOKEN_DTYPES)}")
        self.path = shard_path(folder, split, index=index)
        self.dtype = dtype
        self.num_tokens = num_tokens
        self._docs_path = docs_path(folder, split, index=index)
        self._blocks_path = blocks_path(folder, split, index=index)
        self._num_written = 0
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0  # the buffer starts at a block border of the file
        self._sha256 = hashlib.sha256()
        self._blocks: list[int] = []
        self._partial = partial_path(self.path)
        with _storage_faults(self.path):
            self._docs_path.parent.mkdir(parents=True, exist_ok=True)
            self._blocks_path.parent.mkdir(parents=True, exist_ok=True)
            self._file = OutputFile(self._partial)
        self._append(memoryview(npy_header(dtype, num_tokens)))

    def write(self, ids: NDArray[Any]) -> None:
        """Append ids; they must have the dtype of the shard, since a cast could change them."""
        if ids.dtype != self.dtype or ids.ndim != 1:
            raise TypeError(
                f"ids are {ids.dtype} {ids.shape}, expected one dimension of {self.dtype}"
            )
        self._num_written += len(ids)
        if self._num_written > self.num_tokens:
            raise ValueError(
                f"{self.path}: {self._num_written} ids for a shard of {self.num_tokens}"
            )
        self._append(np.ascontiguousarray(ids).data.cast("B"))

    def finish(self, docs: NDArray[Any], *, sync: bool = True) -> ShardEntry:
        """Write the tables, publish the three files and return their entry.

        `docs` are the documents that end in this shard, as `DOCS_DTYPE`. Files of an earlier
        attempt are replaced: the same shard has the same bytes.
        """
        if self._num_written != self.num_tokens:
            raise ValueError(
                f"{self.path}: {self._num_written} ids for a shard of {self.num_tokens}"
            )
        _check_docs(docs, self.num_tokens)
        with _storage_faults(self.path):
            self._flush()
            self._file.finish(sync=sync)
            blocks = np.array(self._blocks, dtype=BLOCKS_DTYPE)
            docs_entry = _write_table(self._docs_path, docs, sync=sync)
            blocks_entry = _write_table(self._blocks_path, blocks, sync=sync)
            self._partial.replace(self.path)
            if sync:
                sync_folder(self.path.parent)
        return ShardEntry(
            num_tokens=self.num_tokens,
            num_documents=len(docs),
            shard=FileEntry(bytes=self._file.num_bytes, sha256=self._sha256.hexdigest()),
            docs=docs_entry,
            blocks=blocks_entry,
        )

    def close(self) -> None:
        """Remove what was written unless `finish` published it."""
        self._file.close()
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, data: memoryview) -> None:
        view = memoryview(self._buffer)
        while data.nbytes:
            taken = min(data.nbytes, _BUFFER_BYTES - self._filled)
            view[self._filled : self._filled + taken] = data[:taken]
            self._filled += taken
            data = data[taken:]
            if self._filled == _BUFFER_BYTES:
                self._flush()

    def _flush(self) -> None:
        view = memoryview(self._buffer)[: self._filled]
        self._sha256.update(view)
        for start in range(0, self._filled, BLOCK_BYTES):
            self._blocks.append(xxhash.xxh3_64_intdigest(view[start : start + BLOCK_BYTES]))
        with _storage_faults(self.path):
            self._file.write(view)
        self._filled = 0


def write_tokenizer(folder: Path, name: str, *, data: bytes) -> FileEntry:
    """Write the tokenizer's definition beside the shards and return its size and hash."""
    if not is_tokenizer_name(name):
        raise ValueError(f"{name!r}: expected `tokenizer.` and a suffix")
    with _storage_faults(folder / name), atomic_write(folder / name) as file:
        file.write(data)
    return FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def hash_file(path: Path) -> FileEntry:
    """Return the size and SHA-256 of a file, read in pieces."""
    digest, num_bytes = hashlib.sha256(), 0
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with _storage_faults(path), path.open("rb", buffering=0) as file:
        while length := file.readinto(buffer):
            digest.update(buffer[:length])
            num_bytes += length
    return FileEntry(bytes=num_bytes, sha256=digest.hexdigest())


def _write_table(path: Path, table: NDArray[Any], *, sync: bool) -> FileEntry:
    """Write a whole table as .npy, atomically."""
    header = npy_header(table.dtype, len(table))
    body = np.ascontiguousarray(table).view(np.uint8).data
    digest = hashlib.sha256(header)
    digest.update(body)
    with atomic_write(path, sync=sync) as file:
        file.write(header)
        file.write(body)
        num_bytes = file.num_bytes
    return FileEntry(bytes=num_bytes, sha256=digest.hexdigest())


def _check_docs(docs: NDArray[Any], num_tokens: int) -> None:
    if docs.dtype != DOCS_DTYPE or docs.ndim != 1:
        raise TypeError(
            f"documents are {docs.dtype} {docs.shape}, expected one dimension of {DOCS_DTYPE}"
        )
    ends = docs["end"]
    if np.any(ends[1:] < ends[:-1]):
        raise ValueError("the ends of documents go backwards")
    if len(ends) and int(ends[-1]) - int(ends[0]) > num_tokens:
        raise ValueError(
            f"documents end {int(ends[-1]) - int(ends[0])} tokens apart in a shard of {num_tokens}"
        )


@contextmanager
def _storage_faults(path: Path) -> Generator[None]:
    """Turn what the operating system reports into a `StorageError` that names the file."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, os.fspath(error.filename or path)) from error
