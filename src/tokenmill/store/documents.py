"""The document table of one shard: where documents end, and where they came from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokenmill.store.cached_file import TableFile
from tokenmill.store.format import (
    DOCS_DTYPE,
    DOCS_FOLDER,
    DOCS_HEADER_BYTES,
    npy_header,
    shard_name,
)
from tokenmill.store.metadata import ShardEntry
from tokenmill.store.stored_object import AnyFile, file_of_store

_GROUP_ROWS: Final = 256
_PIECE_ROWS: Final = 1 << 16


def docs_file(folder: str, split: str, *, index: int, entry: ShardEntry) -> AnyFile:
    """Return the file of the document table of a shard."""
    header = npy_header(DOCS_DTYPE, entry.num_documents)
    name = f"{DOCS_FOLDER}/{shard_name(split, index)}"
    return file_of_store(folder, name, num_bytes=entry.docs.bytes, header=header)


class DocumentTable:
    """Finds documents in the table of one shard without keeping it in memory.

    The first use reads the table once, compares its hash if one is given, checks that it makes
    sense, and keeps every 256th end. A look-up is then one search in those and one small read.
    """

    __slots__ = ("_file", "_group_ends", "_num_sources", "_sha256", "is_last", "num_rows", "tokens")

    def __init__(
        self,
        file: TableFile,
        num_rows: int,
        *,
        tokens: range,
        is_last: bool,
        num_sources: int,
        sha256: str | None,
    ) -> None:
        self.num_rows = num_rows
        self.tokens = tokens
        self.is_last = is_last
        self._file = file
        self._num_sources = num_sources
        self._sha256 = sha256
        self._group_ends: NDArray[np.uint64] | None = None

    def find(self, start: int, stop: int) -> tuple[int, NDArray[np.uint64]]:
        """Return the ends in (start, stop], and the number of the row of the first of them.

        That number is also how many documents of the table end at or before `start`.
        """
        low, high = np.uint64(start), np.uint64(stop)  # a plain int would make it a float search
        group_ends = self._proved()
        first = int(group_ends.searchsorted(low, side="right")) * _GROUP_ROWS
        last = (int(group_ends.searchsorted(high, side="right")) + 1) * _GROUP_ROWS
        ends = np.ascontiguousarray(self._read(first, min(last, self.num_rows))["end"])
        begin = int(ends.searchsorted(low, side="right"))
        return first + begin, ends[begin : int(ends.searchsorted(high, side="right"))]

    def rows(self, first: int, stop: int) -> NDArray[Any]:
        """Return rows of the table, as `DOCS_DTYPE`."""
        self._proved()
        return self._read(first, stop)

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Yield all rows in pieces, each valid until the next; nothing is proved by this."""
        for piece in self._file.pieces(None, piece_bytes=_PIECE_ROWS * DOCS_DTYPE.itemsize):
            yield np.frombuffer(piece, dtype=DOCS_DTYPE)

    def check(self) -> None:
        """Read the whole table and raise `DamageError` for whatever is wrong with it."""
        self._group_ends = None
        self._proved()

    def _read(self, first: int, stop: int) -> NDArray[Any]:
        size = DOCS_DTYPE.itemsize
        data = self._file.read(DOCS_HEADER_BYTES + first * size, DOCS_HEADER_BYTES + stop * size)
        return np.frombuffer(data, dtype=DOCS_DTYPE)

    def _proved(self) -> NDArray[np.uint64]:
        if self._group_ends is None:
            self._group_ends = self._load()
        return self._group_ends

    def _load(self) -> NDArray[np.uint64]:
        """Go through the table once and return the last end of each full group of rows."""
        groups: list[NDArray[np.uint64]] = []
        last = self.tokens.start + (1 if self.tokens.start else 0)
        for piece in self._file.pieces(self._sha256, piece_bytes=_PIECE_ROWS * DOCS_DTYPE.itemsize):
            rows = np.frombuffer(piece, dtype=DOCS_DTYPE)
            ends: NDArray[np.uint64] = np.ascontiguousarray(rows["end"])
            if ends[0] < last or np.any(ends[1:] < ends[:-1]) or ends[-1] > self.tokens.stop:
                raise self._file.damage(
                    "the ends of its documents are out of order or out of range"
                )
            if rows["source"].max() >= self._num_sources:
                raise self._file.damage("a document refers to a source that is not in the metadata")
            last = int(ends[-1])
            groups.append(ends[_GROUP_ROWS - 1 :: _GROUP_ROWS].copy())
        if self.is_last and self.num_rows and last != self.tokens.stop:
            raise self._file.damage(f"its last document ends at {last}, not at {self.tokens.stop}")
        return np.concatenate(groups) if groups else np.empty(0, dtype=np.uint64)
