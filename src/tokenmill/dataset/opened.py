"""The sources of a plan, opened when they are first needed, each once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tokenmill.dataset.packing import Packing, open_rows
from tokenmill.dataset.plan_settings import Source
from tokenmill.dataset.rows import Rows
from tokenmill.dataset.token_source import StoreSource, TokenSource
from tokenmill.errors import ConfigError
from tokenmill.store import Store, open_store


class OpenSources:
    """Opened sources and their rows. Threads may share it; a pickled one opens them again."""

    def __init__(self, *, packing: Packing, mask_boundaries: bool) -> None:
        self.packing: Packing = packing
        self.mask_boundaries = mask_boundaries
        self._lock = threading.RLock()
        self._tokens: dict[Source, TokenSource] = {}
        self._rows: dict[tuple[Source, int], Rows] = {}
        self._digests: dict[Source, str] = {}

    def tokens(self, source: Source) -> TokenSource:
        """Return the tokens of a source."""
        with self._lock:
            if source not in self._tokens:
                self._open(source)
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
        self.tokens(source)
        return self._digests[source]

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.packing, self.mask_boundaries)

    def _open(self, source: Source) -> None:
        store: Store = open_store(Path(source.path))
        self._tokens[source] = StoreSource(store, source.split)
        self._digests[source] = store.digest

    def _open_rows(self, source: Source, seq_len: int) -> Rows:
        tokens = self.tokens(source)
        try:
            return open_rows(
                tokens,
                seq_len=seq_len,
                packing=self.packing,
                mask_boundaries=self.mask_boundaries,
            )
        except ConfigError as error:
            raise ConfigError(f"{source.path}: {error.message}", hint=error.hint) from error


def _reopen(packing: Packing, mask_boundaries: bool) -> OpenSources:
    return OpenSources(packing=packing, mask_boundaries=mask_boundaries)
