"""`metrics.jsonl`: what happened in a run, one JSON object a line, always written.

Every row has `step` (how many steps were done), `time` (seconds since 1970) and `kind`: start,
train, eval or end. Values that are not known are left out. A run that continues drops the rows
after the step that it continues from, so that every step is told once.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from tokenmill.errors import DamageError, StorageError
from tokenmill.files import atomic_write, storage_error

METRICS_NAME: Final = "metrics.jsonl"
Kind = Literal["start", "train", "eval", "end"]


class Metrics:
    """Appends rows to the `metrics.jsonl` of a run; rows after `step` are dropped first."""

    def __init__(self, out_dir: Path, *, step: int = 0) -> None:
        self.path = out_dir / METRICS_NAME
        if self.path.exists():
            _keep_until(self.path, step)

    def write(self, kind: Kind, step: int, **values: Any) -> dict[str, Any]:
        """Append a row and return it; values of None are left out."""
        row = {"step": step, "time": round(time.time(), 3), "kind": kind}
        row |= {name: value for name, value in values.items() if value is not None}
        try:
            with self.path.open("ab", buffering=0) as file:
                file.write(msgspec.json.encode(row) + b"\n")
        except OSError as error:
            raise storage_error(error, self.path) from error
        return row


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a `metrics.jsonl`, or of that in the folder of a run.

    A last line that a crash cut short is passed over; any other broken line is damage.
    """
    file = path / METRICS_NAME if path.is_dir() else path
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError as error:
        raise StorageError(
            f"{file}: no such file", hint="`tokenmill train DATA` writes one into its out_dir"
        ) from error
    except OSError as error:
        raise storage_error(error, file) from error
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            if line:
                rows.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.DecodeError as error:
            if number == len(lines):  # no line end: the write was cut
                break
            raise DamageError(
                f"{file}: line {number} is not JSON: {error}", hint="delete that line"
            ) from error
    return rows


def _keep_until(path: Path, step: int) -> None:
    """Rewrite the file without the rows after a step, or a line that was cut short."""
    kept = [row for row in read_metrics(path) if row.get("step", 0) <= step]
    # The row that closed an earlier part of the run is no longer the end.
    kept = [row for row in kept if row.get("kind") != "end"]
    with atomic_write(path) as file:
        file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in kept))
