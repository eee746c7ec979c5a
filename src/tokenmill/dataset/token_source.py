"""Where packings read tokens from: one numbering of tokens and of documents, whatever the files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.buffers import BufferPool
from tokenmill.dataset.document_ends import DocumentEnds
from tokenmill.store import Split, Store


class Windows(NamedTuple):
    """Runs of consecutive tokens, one a row, and where documents begin in them.

    The places are in order of rows, then columns. The first column is not among them.
    """

    ids: NDArray[Any]  # (B, length), in the dtype of the source
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]


class TokenSource(Protocol):
    """Tokens from 0 to `num_tokens` and documents from 0 to `num_documents`.

    Documents follow each other without gaps. Sources can be pickled, and shared by threads and
    forked processes.
    """

    num_tokens: int
    dtype: np.dtype[Any]
    eos_id: int | None
    """The id that closes documents; None when none does."""
    pad_id: int
    """The id of padding: the tokenizer's own, else EOS, else 0."""
    vocab_size: int | None
    """Size of the id space; None when nothing tells it."""
    num_files: int
    """Files that hold the token ids."""

    @property
    def num_documents(self) -> int:
        """Documents, also those without tokens; may have to be counted first."""
        ...

    def read_into(self, out: NDArray[Any], start: int) -> None:
        """Fill `out`, a contiguous array of `dtype`, with the ids from token `start` on."""
        ...

    def read_runs(self, out: NDArray[Any], runs: Iterable[tuple[int, int, int]]) -> None:
        """Fill places of `out`, a contiguous array of `dtype` with one dimension.

        A run is a place in `out`, the first token and the number of tokens.
        """
        ...

    def read_windows(self, starts: NDArray[np.int64], length: int) -> Windows:
        """Return the tokens from each of `starts` on, with the documents that begin in them."""
        ...

    def document_ends(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return where the documents `first` to `stop` end: after their last token."""
        ...

    def document_at(self, token: int) -> int:
        """Return the number of the document that a token belongs to."""
        ...


class StoreSource:
    """A split of a store. The document table, never a scan for EOS, says where documents begin."""

    def __init__(self, store: Store, split: str = "train") -> None:
        self.split: Split = store.split(split)
        entry, shard_tokens = store.metadata.splits[split], store.metadata.shard_tokens
        self.num_tokens = entry.num_tokens
        self.num_documents = entry.num_documents
        self.num_files = 1 if entry.shards_deleted else len(entry.shards)
        self.dtype = store.dtype
        self.eos_id = store.metadata.eos_id
        self.pad_id = choose_pad_id(store.metadata.tokenizer.pad_id, self.eos_id)
        self.vocab_size: int | None = store.metadata.tokenizer.num_ids
        counts = [shard.num_documents for shard in entry.shards]
        self._first_documents = np.cumsum([0, *counts], dtype=np.int64)
        self._ends = DocumentEnds(self.split, shard_tokens)
        self._pool = BufferPool()

    def read_into(self, out: NDArray[Any], start: int) -> None:
        """Fill `out` with the ids from token `start` on."""
        self.split.read_into(out, start)

    def read_runs(self, out: NDArray[Any], runs: Iterable[tuple[int, int, int]]) -> None:
        """Fill places of `out` with runs of tokens."""
        self.split.read_runs(out, runs)

    def read_windows(self, starts: NDArray[np.int64], length: int) -> Windows:
        """Return the tokens from each of `starts` on, with the documents that begin in them."""
        (ids,) = self._pool.empty((len(starts), length), self.dtype)
        self.split.read_windows(ids, starts)
        return Windows(ids, *self._ends.breaks(starts, length))

    def document_ends(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return where the documents `first` to `stop` end."""
        if not 0 <= first <= stop <= self.num_documents:
            raise IndexError(f"documents {first} to {stop} are outside [0, {self.num_documents}]")
        parts = [np.empty(0, dtype=np.int64)]
        while first < stop:
            shard = int(self._first_documents.searchsorted(first, side="right")) - 1
            shard_first, shard_stop = self._first_documents[shard : shard + 2].tolist()
            rows = self.split.table(shard).rows(
                first - shard_first, min(stop, shard_stop) - shard_first
            )
            parts.append(rows["end"].astype(np.int64))
            first = min(stop, shard_stop)
        return np.concatenate(parts)

    def document_at(self, token: int) -> int:
        """Return the number of the document that a token belongs to."""
        return self.split.document_at(token)


def choose_pad_id(pad_id: int | None, eos_id: int | None) -> int:
    """Return the id that fills rows up; any would do, since padding is masked."""
    if pad_id is not None:
        return pad_id
    return 0 if eos_id is None else eos_id
