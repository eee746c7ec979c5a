"""Checkpoints: tensors as safetensors, the rest as JSON, whole or not there at all.

    checkpoints/step-00000400/
      checkpoint.json        written last: step, settings, data state, and the SHA-256 of each file
      model.safetensors      parameters by name, whole whatever the number of ranks
      optimizer.safetensors  what the optimizers remember of each parameter
      ema.safetensors        the averaged parameters, if the run keeps them

A checkpoint is written into a hidden folder, synced, and renamed. So a kill at any moment leaves
those before it untouched, and nothing half written under a name that is looked for. Loading
compares every byte with its hash first.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal
from uuid import uuid4

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tokenmill.errors import ConfigError, DamageError, StorageError
from tokenmill.files import atomic_write, storage_error, sync_folder

FOLDER: Final = "checkpoints"
RECORD_NAME: Final = "checkpoint.json"
FORMAT_VERSION: Final = 1
_NAME: Final = re.compile(r"step-(\d{8,})")
_ASIDE: Final = "set-aside"

Tensors = dict[str, Tensor]
Which = Literal["best", "last"] | int


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of a checkpoint: its exact size and hash."""

    bytes: int
    sha256: str


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of `checkpoint.json`. `checksum`, `created` and `files` are filled in on writing."""

    format: int = FORMAT_VERSION
    checksum: str = ""
    """SHA-256 of the record with this field empty."""
    step: int
    """Steps that are done; training continues with the step of this number."""
    settings: dict[str, Any]
    """The settings of the run, those of the model included."""
    data: dict[str, Any]
    """Which plan, and its next step: what the loader needs to continue."""
    num_tokens: int
    """Tokens trained on."""
    seconds: float = 0.0
    """Time that training took so far, over all parts of the run."""
    val_loss: float | None = None
    """Nats per token of the validation split at this step, if it was measured there."""
    val_bits_per_byte: float | None = None
    best_loss: float | None = None
    """The lowest validation loss so far."""
    pending: list[float] = []
    """Losses of the steps since the last row of the metrics: the next row is their mean."""
    world_size: int = 1
    versions: dict[str, str] = {}
    created: str = ""
    files: dict[str, FileEntry] = {}


class Checkpoint:
    """One checkpoint on disk. Making it reads and checks the record, not the tensors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = _read_record(folder)

    @property
    def step(self) -> int:
        """Steps that are done."""
        return self.record.step

    def has(self, name: str) -> bool:
        """Tell whether there are tensors of this name: model, optimizer, ema."""
        return f"{name}.safetensors" in self.record.files

    def tensors(self, name: str) -> Tensors:
        """Return the tensors of a file, on the host, after comparing its hash."""
        file = f"{name}.safetensors"
        self._check(file)
        try:
            return load_file(self.folder / file)
        except (SafetensorError, OSError) as error:
            raise _damage(self.folder / file, str(error)) from error

    def verify(self) -> None:
        """Compare every file with its size and hash."""
        for name in self.record.files:
            self._check(name)

    def _check(self, name: str) -> None:
        path, entry = self.folder / name, self.record.files[name]
        try:
            size = path.stat().st_size
            if size != entry.bytes:
                raise _damage(path, f"{size:,} bytes, its record says {entry.bytes:,}")
            found = _sha256(path)
        except FileNotFoundError as error:
            raise _damage(path, "missing") from error
        except OSError as error:
            raise storage_error(error, path) from error
        if found != entry.sha256:
            raise _damage(path, f"sha256 is {found[:12]}, its record says {entry.sha256[:12]}")


class Checkpoints:
    """The checkpoints of a run: writes new ones, finds old ones, and keeps the last and the best.

    Only one process may write, while it holds the lock of the run.
    """

    def __init__(self, out_dir: Path, *, keep_last: int = 2) -> None:
        self.folder = out_dir / FOLDER
        self.keep_last = keep_last

    def steps(self) -> list[int]:
        """Return the steps of which there is a checkpoint, whole or damaged, in order."""
        if not self.folder.is_dir():
            return []
        found = (_NAME.fullmatch(path.name) for path in sorted(self.folder.iterdir()))
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> Path:
        """Return the folder of a checkpoint."""
        return self.folder / f"step-{step:08d}"

    def find(self, which: Which = "last") -> Checkpoint:
        """Open the newest, the best, or the checkpoint of a step.

        The best is the one with the lowest validation loss; without any, the newest.
        """
        steps = self.steps()
        if not steps:
            raise ConfigError(f"{self.folder}: no checkpoint", hint="`tokenmill train` writes them")
        if which == "best":
            return min((Checkpoint(self.path(step)) for step in steps), key=_badness)
        if which == "last":
            return Checkpoint(self.path(steps[-1]))
        if which not in steps:
            raise ConfigError(
                f"{self.folder}: no checkpoint of step {which:,}",
                hint=f"there are those of {', '.join(f'{step:,}' for step in steps)}",
            )
        return Checkpoint(self.path(which))

    def resume(self, which: Which = "last") -> Checkpoint:
        """Open a checkpoint to continue from, every byte of it verified.

        If it is damaged, the error names the newest one before it that is not.
        """
        try:
            checkpoint = self.find(which)
            checkpoint.verify()
        except DamageError as error:
            broken = self.steps()[-1] if which == "last" else which
            older = self._newest_whole(broken if isinstance(broken, int) else 1 << 62)
            hint = (
                f"--resume {older} continues from step {older:,}"
                if older is not None
                else ("no checkpoint is whole: train again in another --out-dir")
            )
            raise DamageError(error.message, hint=hint) from error
        return checkpoint

    def save(self, record: Record, tensors: Mapping[str, Tensors]) -> Path:
        """Write a checkpoint, then delete those that need not be kept."""
        final = self.path(record.step)
        partial = self.folder / f".{final.name}.{uuid4().hex[:12]}.partial"
        try:
            partial.mkdir(parents=True)
            for name, values in tensors.items():
                _write_tensors(partial / f"{name}.safetensors", values)
            files = {path.name: _entry(path) for path in sorted(partial.iterdir())}
            created = datetime.now(UTC).isoformat(timespec="seconds")
            _write_record(partial, msgspec.structs.replace(record, files=files, created=created))
            sync_folder(partial)
            if final.exists():  # of a run that went back to an earlier step
                self._remove(final)
            partial.rename(final)
            sync_folder(self.folder)
            self._prune()
        except OSError as error:
            raise storage_error(error) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return final

    def clean(self) -> None:
        """Remove what an earlier process left behind half written or half deleted."""
        if self.folder.is_dir():
            for path in sorted(self.folder.glob(".step-*")):
                shutil.rmtree(path, ignore_errors=True)

    def set_aside(self, step: int) -> None:
        """Move the checkpoints after a step away: the run goes on from there in another way."""
        for later in (number for number in self.steps() if number > step):
            target = self.folder / _ASIDE / f"{self.path(later).name}-{uuid4().hex[:8]}"
            target.parent.mkdir(exist_ok=True)
            self.path(later).rename(target)

    def _newest_whole(self, before: int) -> int | None:
        for step in reversed([step for step in self.steps() if step < before]):
            try:
                Checkpoint(self.path(step)).verify()
            except DamageError:
                continue
            return step
        return None

    def _prune(self) -> None:
        steps = self.steps()
        kept = set(steps[-self.keep_last :])
        readable = (_readable(self.path(step)) for step in steps)
        found = [c for c in readable if c is not None and c.record.val_loss is not None]
        if found:
            kept.add(min(found, key=_badness).step)
        for step in steps:
            if step not in kept:
                self._remove(self.path(step))

    def _remove(self, folder: Path) -> None:
        """Delete a checkpoint; a kill in between leaves no half of one under its name."""
        hidden = folder.with_name(f".{folder.name}.{uuid4().hex[:12]}.old")
        folder.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)


def whole_tensors(named: Mapping[str, Tensor], gather: Callable[[Tensor], Tensor]) -> Tensors:
    """Return tensors as they are saved: on the host, whole, contiguous, none of them shared."""
    found: Tensors = {}
    for name, tensor in named.items():
        value = gather(tensor.detach())
        found[name] = value.to("cpu", copy=True).contiguous()
    return found


def versions() -> dict[str, str]:
    """Return the versions that decide how numbers come out."""
    return {"torch": str(torch.__version__)}


def _badness(checkpoint: Checkpoint) -> tuple[float, int]:
    """Order checkpoints by validation loss; without one, newer ones first."""
    loss = checkpoint.record.val_loss
    return (float("inf") if loss is None else loss, -checkpoint.step)


def _readable(folder: Path) -> Checkpoint | None:
    try:
        return Checkpoint(folder)
    except DamageError:
        return None  # it is reported when somebody wants it


def _write_tensors(path: Path, tensors: Tensors) -> None:
    try:
        save_file(tensors, path)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    except SafetensorError as error:
        raise StorageError(
            f"{path.parent.parent}: a checkpoint cannot be written: {error}",
            hint="free some space, then run the same command again: it continues",
        ) from error


def _write_record(folder: Path, record: Record) -> None:
    checked = msgspec.structs.replace(record, checksum=_checksum(record))
    data = msgspec.json.format(msgspec.json.encode(checked), indent=1)
    with atomic_write(folder / RECORD_NAME) as file:
        file.write(data + b"\n")


def _read_record(folder: Path) -> Record:
    path = folder / RECORD_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise _damage(path, "missing") from error
    except OSError as error:
        raise storage_error(error, path) from error
    try:
        record = msgspec.json.decode(data, type=Record)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise _damage(path, str(error)) from error
    if _checksum(record) != record.checksum:
        raise _damage(path, "its checksum does not match its content")
    return record


def _checksum(record: Record) -> str:
    data = msgspec.json.encode(msgspec.structs.replace(record, checksum=""), order="deterministic")
    return hashlib.sha256(data).hexdigest()


def _entry(path: Path) -> FileEntry:
    return FileEntry(bytes=path.stat().st_size, sha256=_sha256(path))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damage(path: Path, problem: str) -> DamageError:
    return DamageError(f"{path}: damaged: {problem}")
