"""Write one shard with its two tables, streaming, so that it appears whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenmill.files import storage_error
from tokenmill.folder import Folder, open_folder
from tokenmill.store.format import (
    BLOCK_BYTES,
    BLOCKS_DTYPE,
    BLOCKS_FOLDER,
    DOCS_DTYPE,
    DOCS_FOLDER,
    TOKEN_DTYPES,
    blocks_name,
    docs_name,
    is_tokenizer_name,
    npy_header,
    shard_name,
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
        self,
        folder: Path | Folder,
        split: str,
        *,
        index: int,
        dtype: np.dtype[Any],
        num_tokens: int,
    ) -> None:
        if dtype not in TOKEN_DTYPES.values():
            raise TypeError(f"dtype is {dtype}, expected one of {', '.join(TOKEN_DTYPES)}")
        self._folder = open_folder(folder)
        self._docs_name, self._blocks_name = docs_name(split, index), blocks_name(split, index)
        self.path = self._folder.where(shard_name(split, index))
        self.dtype = dtype
        self.num_tokens = num_tokens
        self._num_written = 0
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0  # the buffer starts at a block border of the file
        self._sha256 = hashlib.sha256()
        self._blocks: list[int] = []
        with _storage_faults(self.path):
            self._folder.make(DOCS_FOLDER, BLOCKS_FOLDER)
            self._file = self._folder.create(shard_name(split, index))
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
            blocks = np.array(self._blocks, dtype=BLOCKS_DTYPE)
            docs_entry = self._write_table(self._docs_name, docs, sync=sync)
            blocks_entry = self._write_table(self._blocks_name, blocks, sync=sync)
            self._file.publish(sync=sync)
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

    def _write_table(self, name: str, table: NDArray[Any], *, sync: bool) -> FileEntry:
        """Write a whole table as .npy, atomically."""
        header = npy_header(table.dtype, len(table))
        body = np.ascontiguousarray(table).view(np.uint8).data
        digest = hashlib.sha256(header)
        digest.update(body)
        with self._folder.create(name) as file:
            file.write(header)
            file.write(body)
            file.publish(sync=sync)
            num_bytes = file.num_bytes
        return FileEntry(bytes=num_bytes, sha256=digest.hexdigest())


def write_tokenizer(folder: Path | Folder, name: str, *, data: bytes) -> FileEntry:
    """Write the tokenizer's definition beside the shards and return its size and hash."""
    if not is_tokenizer_name(name):
        raise ValueError(f"{name!r}: expected `tokenizer.` and a suffix")
    target = open_folder(folder)
    with _storage_faults(target.where(name)):
        target.write(name, data)
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
def _storage_faults(path: str | Path) -> Generator[None]:
    """Turn what the operating system reports into a `StorageError` that names the file."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, error.filename or path) from error
