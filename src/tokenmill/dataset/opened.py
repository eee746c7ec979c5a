"""The sources of a plan, opened when they are first needed, each once."""

from __future__ import annotations

import hashlib
import threading
from typing import Any, Final

import numpy as np

from tokenmill.dataset.held_out import FirstRows
from tokenmill.dataset.open_source import open_source
from tokenmill.dataset.packing import Packing, open_rows
from tokenmill.dataset.plan_settings import Source
from tokenmill.dataset.rows import Rows
from tokenmill.dataset.token_source import StoreSource, TokenSource
from tokenmill.errors import ConfigError, DamageError

_NUM_SAMPLES: Final = 64
_SAMPLE_TOKENS: Final = 4096


class OpenSources:
    """Opened sources and their rows. Threads may share it; a pickled one opens them again."""

    def __init__(self, packing: Packing, mask_boundaries: bool, pad_last: bool) -> None:
        self._settings: tuple[Packing, bool, bool] = (packing, mask_boundaries, pad_last)
        self._lock = threading.RLock()
        self._tokens: dict[Source, TokenSource] = {}
        self._rows: dict[tuple[Source, int], Rows] = {}
        self._digests: dict[Source, str] = {}

    def tokens(self, source: Source) -> TokenSource:
        """Return the tokens of a source."""
        with self._lock:
            if source not in self._tokens:
                self._tokens[source] = _open(source)
            return self._tokens[source]

    def rows(self, source: Source, seq_len: int) -> Rows:
        """Return the rows of a source."""
        rows = self._rows.get((source, seq_len))
        if rows is None:
            with self._lock:
                rows = self._rows.get((source, seq_len)) or self._open_rows(source, seq_len)
                self._rows[source, seq_len] = rows
        return rows

    def digest(self, source: Source) -> str:
        """Return the name of the content of a source."""
        tokens = self.tokens(source)
        with self._lock:
            if source not in self._digests:
                self._digests[source] = _digest(tokens)
            return self._digests[source]

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenSources, self._settings

    def _open_rows(self, source: Source, seq_len: int) -> Rows:
        packing, mask_boundaries, pad_last = self._settings
        try:
            rows = open_rows(
                self.tokens(source),
                seq_len=seq_len,
                packing=packing,
                mask_boundaries=mask_boundaries,
                pad_last=pad_last,
            )
            if not source.hold_out:
                return rows
            if packing in {"pad", "sliding"}:  # their rows are single documents, or overlap
                raise ConfigError(f"packing {packing} cannot hold rows out")
            return FirstRows(rows, source.hold_out)
        except ConfigError as error:
            raise ConfigError(f"{source.path}: {error.message}", hint=error.hint) from error


def _open(source: Source) -> TokenSource:
    tokens = open_source(source.path, source.split, dtype=source.dtype, eos_id=source.eos_id)
    if source.digest is not None and _digest(tokens) != source.digest:
        raise DamageError(
            f"{source.path}: its content is {_digest(tokens)[:19]}, the plan was saved for "
            f"{source.digest[:19]}",
            hint="give the plan the store that it was made for, or remove the digest from the plan",
        )
    return tokens


def _digest(tokens: TokenSource) -> str:
    """Return the digest of a store; of plain files, one over their size and samples of the ids."""
    if isinstance(tokens, StoreSource):
        return tokens.split.digest
    size = min(_SAMPLE_TOKENS, tokens.num_tokens)
    text = f"{tokens.num_tokens} tokens of {tokens.dtype.str}, eos {tokens.eos_id}"
    content = hashlib.sha256(text.encode())
    for start in np.linspace(0, tokens.num_tokens - size, _NUM_SAMPLES).astype(np.int64).tolist():
        ids = np.empty(size, dtype=tokens.dtype)
        tokens.read_into(ids, start)
        content.update(ids.tobytes())
    return f"sampled:{content.hexdigest()}"
