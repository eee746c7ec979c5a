"""Where metrics go besides the file: adapters to the trackers that people use."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from tokenmill.errors import ConfigError, MissingDependencyError

TRACKERS = ("wandb", "trackio", "tensorboard")
_NOT_NUMBERS = ("step", "time", "kind")


class Tracker(Protocol):
    """Takes the rows of `metrics.jsonl` one by one."""

    def log(self, row: Mapping[str, Any]) -> None:
        """Send the numbers of a row under the names `kind/key`, at its step."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


def open_trackers(
    names: Sequence[str], *, run_name: str, settings: Mapping[str, Any], out_dir: Path
) -> list[Tracker]:
    """Open trackers by name; an unknown one or a missing library is an error before training."""
    opened: list[Tracker] = []
    for name in names:
        if name == "tensorboard":
            opened.append(_TensorBoard(out_dir))
        elif name in TRACKERS:
            opened.append(_WandbLike(name, run_name=run_name, settings=settings, out_dir=out_dir))
        else:
            raise ConfigError(
                f"unknown tracker {name!r}", hint=f"choose among {', '.join(TRACKERS)}"
            )
    return opened


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row, named by its kind.

    >>> numbers({"kind": "eval", "step": 3, "loss": 1.5, "note": "best"})
    {'eval/loss': 1.5}
    """
    return {
        f"{row.get('kind', 'train')}/{key}": float(value)
        for key, value in row.items()
        if key not in _NOT_NUMBERS and isinstance(value, int | float)
    }


class _WandbLike:
    """wandb, or trackio, which has the same interface; a resumed run continues its curve."""

    def __init__(
        self, module: str, *, run_name: str, settings: Mapping[str, Any], out_dir: Path
    ) -> None:
        library = _load(module)
        options: dict[str, Any] = {"project": "tokenmill", "name": run_name}
        if module == "wandb":
            options |= {"id": run_name, "resume": "allow", "dir": str(out_dir)}
        else:
            options |= {"resume": "allow"}
        self._library = library
        with redirect_stdout(sys.stderr):  # stdout is for results: they chat there
            library.init(config=dict(settings), **options)

    def log(self, row: Mapping[str, Any]) -> None:
        self._library.log(numbers(row), step=row.get("step"))

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self._library.finish()


class _TensorBoard:
    """Event files in the folder of the run; `tensorboard --logdir` shows them."""

    def __init__(self, out_dir: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise _missing("tensorboard") from error
        self._writer = SummaryWriter(str(out_dir / "tensorboard"))

    def log(self, row: Mapping[str, Any]) -> None:
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, row.get("step"))

    def close(self) -> None:
        self._writer.close()


def _load(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise _missing(name) from error


def _missing(name: str) -> MissingDependencyError:
    return MissingDependencyError(name, extra=name, purpose=f"metrics in {name}")
