"""What a process needs to work on a run, read from the run's folder once."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenmill.config import resolve
from tokenmill.folder import Folder, map_ahead, open_folder
from tokenmill.pipeline.journal import Journal
from tokenmill.pipeline.parts import Part, Receipt, read_receipt
from tokenmill.pipeline.settings import TokenizeSettings
from tokenmill.sources import SourceFile
from tokenmill.tokenizer import Tokenizer, load_definition

_open: dict[str, RunContext] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A run as its tasks see it."""

    folder: Folder
    settings: TokenizeSettings
    files: list[SourceFile]
    tokenizer: Tokenizer
    dtype: np.dtype[Any]
    bos_id: int | None
    eos_id: int | None

    def receipt(self, unit: int) -> Receipt:
        """Read the receipt of a unit."""
        return read_receipt(self.folder, unit)

    def part(self, unit: int) -> Part:
        """Open the part of a unit."""
        return Part(self.folder, self.receipt(unit), dtype=self.dtype)

    def parts(self, units: Iterable[int]) -> Iterator[Part]:
        """Open the parts of some units, one after the other."""
        return map_ahead(self.part, units, num_threads=self.folder.num_readers)


def enter_run(context: RunContext) -> None:
    """Let tasks in this process use a context that is already there, tokenizer and all."""
    with _lock:
        _open[context.folder.place] = context


def leave_run(output: str) -> None:
    """Forget a run, and with it the memory of its tokenizer."""
    with _lock:
        _open.pop(output, None)


def open_run(output: str) -> RunContext:
    """Return the context of the run that writes to `output`, loading it in a worker process."""
    with _lock:
        if output not in _open:
            _open[output] = _load(open_folder(output))
        return _open[output]


def _load(folder: Folder) -> RunContext:
    record = Journal(folder).read_record()
    assert record is not None, "tasks are given out after the record is written"
    return RunContext(
        folder=folder,
        settings=resolve(TokenizeSettings, record.settings),
        files=record.files,
        tokenizer=load_definition(folder.read(record.tokenizer_file), record.tokenizer_file),
        dtype=np.dtype(record.dtype),
        bos_id=record.bos_id,
        eos_id=record.eos_id,
    )
