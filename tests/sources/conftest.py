"""Reads whole sources, so that tests can compare what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tokenmill.sources import BATCH_DOCUMENTS, SourceSettings, cut_units, find_files, read_unit


@dataclass
class Reading:
    """All that reading a source gave."""

    documents: list[tuple[int, int, str]] = field(default_factory=list)
    """File, position and text of each."""
    rejects: list[tuple[int, int, str]] = field(default_factory=list)
    """File, position and reason of each."""
    details: list[str] = field(default_factory=list)
    num_blank: int = 0
    num_units: int = 0

    @property
    def texts(self) -> list[str]:
        return [text for _, _, text in self.documents]

    @property
    def positions(self) -> list[int]:
        return [position for _, position, _ in self.documents]


ReadAll = Callable[..., Reading]


@pytest.fixture(scope="session")
def read_all() -> ReadAll:
    """Return a function that reads places with settings, cut at `unit_bytes`."""

    def read(*places: Path | str, unit_bytes: int = 64 << 20, **settings: Any) -> Reading:
        source = SourceSettings(places=tuple(map(str, places)), **settings)
        files = find_files(source)
        units = cut_units(files, unit_bytes=unit_bytes)
        assert [unit.index for unit in units] == list(range(len(units)))
        reading = Reading(num_units=len(units))
        for unit in units:
            for batch in read_unit(files, unit, source):
                assert len(batch.texts) == len(batch.positions) <= BATCH_DOCUMENTS
                assert batch.num_bytes == sum(len(text.encode()) for text in batch.texts)
                assert batch.texts or batch.rejects or batch.num_blank
                positions = batch.positions.tolist()
                assert positions == sorted(set(positions))
                for position, text in zip(positions, batch.texts, strict=True):
                    reading.documents.append((batch.file, position, text))
                for reject in batch.rejects:
                    assert reject.file == batch.file
                    assert reject.detail
                    reading.rejects.append((reject.file, reject.position, reject.reason))
                    reading.details.append(reject.detail)
                reading.num_blank += batch.num_blank
        return reading

    return read
