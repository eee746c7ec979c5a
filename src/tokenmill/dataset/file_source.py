"""Tokens from plain files, for data that was not made by tokenmill."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.buffers import BufferPool
from tokenmill.dataset.token_files import TokenFiles
from tokenmill.dataset.token_source import Windows, choose_pad_id
from tokenmill.errors import ConfigError, DamageError

_TOKENS_AT_ONCE: Final = 1 << 22


class FileSource:
    """Plain files of ids, without a document table: documents end after each EOS.

    Windows are searched for EOS as they are read. What needs the numbers of documents (`best-fit`,
    `pad`, provenance) searches all files once, and keeps eight bytes a document.
    """

    def __init__(
        self, files: TokenFiles, *, eos_id: int | None, vocab_size: int | None = None
    ) -> None:
        if eos_id is not None and not 0 <= eos_id <= np.iinfo(files.dtype).max:
            raise ConfigError(f"EOS {eos_id} does not fit the ids, which are {files.dtype}")
        self.num_tokens = files.num_tokens
        self.num_files = len(files.paths)
        self.dtype = files.dtype
        self.eos_id = eos_id
        self.pad_id = choose_pad_id(None, eos_id)
        self.vocab_size = vocab_size
        self._files = files
        self._pool = BufferPool()

    @property
    def num_documents(self) -> int:
        """Documents; the first use searches all files for EOS."""
        return len(self._all_ends)

    def read_into(self, out: NDArray[Any], start: int) -> None:
        """Fill `out` with the ids from token `start` on."""
        self._files.read_into(out, start)
        self._check(out)

    def read_runs(self, out: NDArray[Any], runs: Iterable[tuple[int, int, int]]) -> None:
        """Fill places of `out` with runs of tokens."""
        for place, start, length in runs:
            self.read_into(out[place : place + length], start)

    def read_windows(self, starts: NDArray[np.int64], length: int) -> Windows:
        """Return the tokens from each of `starts` on, with the documents that begin in them."""
        (ids,) = self._pool.empty((len(starts), length), self.dtype)
        self._files.read_windows(ids, starts)
        self._check(ids)
        if self.eos_id is None:
            return Windows(ids, *np.empty((2, 0), dtype=np.int64))
        rows, columns = np.nonzero(ids[:, :-1] == self.eos_id)
        return Windows(ids, rows, columns + 1)

    def document_ends(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return where the documents `first` to `stop` end."""
        if not 0 <= first <= stop <= self.num_documents:
            raise IndexError(f"documents {first} to {stop} are outside [0, {self.num_documents}]")
        return self._all_ends[first:stop]

    def document_at(self, token: int) -> int:
        """Return the number of the document that a token belongs to."""
        if not 0 <= token < self.num_tokens:
            raise IndexError(f"token {token} is outside [0, {self.num_tokens})")
        return int(self._all_ends.searchsorted(token, side="right"))

    @cached_property
    def _all_ends(self) -> NDArray[np.int64]:
        parts = [np.empty(0, dtype=np.int64)]
        for start in range(0, self.num_tokens if self.eos_id is not None else 0, _TOKENS_AT_ONCE):
            ids = np.empty(min(_TOKENS_AT_ONCE, self.num_tokens - start), dtype=self.dtype)
            self.read_into(ids, start)
            parts.append(np.flatnonzero(ids == self.eos_id) + (start + 1))
        ends = np.concatenate(parts)
        if self.num_tokens and (not len(ends) or ends[-1] != self.num_tokens):
            ends = np.append(ends, self.num_tokens)  # the last document has no EOS
        return ends

    def _check(self, ids: NDArray[Any]) -> None:
        """Refuse ids outside the vocabulary: the dtype is then another than was said."""
        if self.vocab_size is None or not ids.size:
            return
        if ids.max() >= self.vocab_size or ids.min() < 0:
            raise DamageError(
                f"{self._files.paths[0]}: token id {ids.max()} in a vocabulary of "
                f"{self.vocab_size}, read as {self.dtype}",
                hint="check the dtype and the vocabulary size",
            )
