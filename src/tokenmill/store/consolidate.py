"""`tokens.bin` and `sample_ids.bin`: all ids of a split in one file, and an id for each sample.

Works on a store, whose metadata then lists both files, and on a folder of plain .npy shards, which
gets a `consolidated.json`. Nothing is listed before it is on disk under its final name, and no
shard is deleted before what remains has been proved to hold all of it. The files of a remote store
are made in a scratch folder of this machine, where an interrupted run continues, and then sent.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenmill.errors import ConfigError, DamageError, SettingsChangedError
from tokenmill.files import exclusive_lock, storage_error
from tokenmill.folder import open_folder
from tokenmill.progress import Report, silent
from tokenmill.store.consolidation import LOCK_NAME, WORK_FOLDER, Consolidation
from tokenmill.store.consolidation_target import StoreTarget, Target, open_target
from tokenmill.store.format import MAX_SEQ_LEN, METADATA_NAME, sample_ids_name, tokens_name
from tokenmill.store.metadata import ConsolidatedEntry
from tokenmill.store.place import Place, find_place, is_remote_place
from tokenmill.store.plain_shards import RECORD_NAME
from tokenmill.store.remote_cache import open_cache
from tokenmill.store.tokens_file import files_of_entry

MAX_WORKERS: Final = 8
"""Threads that one interpreter can keep busy with hashing, and what their memory allows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsolidateSettings:
    """How to consolidate."""

    seq_len: int
    """Tokens in a sample."""
    splits: tuple[str, ...] = ()
    """Splits to consolidate; by default all."""
    skip_validation: bool = False
    """Do not read the written files back from the disk."""
    delete_shards: bool = False
    """Delete the shards afterwards, once all that remains has been verified."""
    replace: bool = False
    """Make the files anew if they are there with another sequence length."""
    workers: int | None = None
    """Threads that hash samples; by default one for each core, at most 8."""
    scratch: str | None = None
    """Folder for the files of a remote store until they are sent; by default one in the cache."""

    def __post_init__(self) -> None:
        if not 1 <= self.seq_len <= MAX_SEQ_LEN:
            raise ConfigError(f"seq_len must be from 1 to {MAX_SEQ_LEN:,}, got {self.seq_len:,}")

    @property
    def num_threads(self) -> int:
        """Threads that hash samples."""
        return max(min(self.workers or len(os.sched_getaffinity(0)), MAX_WORKERS), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidatedSplit:
    """What became of one split."""

    split: str
    seq_len: int
    num_tokens: int
    num_samples: int
    num_tail_tokens: int
    """Tokens after the last whole sample: in the tokens file, without a sample id."""
    num_bytes: int
    tokens_sha256: str
    sample_ids_sha256: str
    was_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidateReport:
    """What was made, and what was deleted."""

    path: str
    is_store: bool
    splits: tuple[ConsolidatedSplit, ...]
    num_deleted_shards: int
    seconds: float


def consolidate(
    path: str | Path, settings: ConsolidateSettings, *, report: Report = silent
) -> ConsolidateReport:
    """Write the tokens file and the sample ids of a store, or of a folder of .npy shards.

    The same call again continues what was interrupted, mends a file that is missing, or finds that
    nothing is left to do.
    """
    started = time.monotonic()
    place = find_place(path)
    target = open_target(place)
    folder = place if isinstance(place, Path) else _scratch_folder(place, settings.scratch)
    try:
        (folder / WORK_FOLDER).mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder / LOCK_NAME), target.lock():
            _remove_partials(folder)
            target.reload()
            done = [
                _one_split(target, name, folder=folder, settings=settings, report=report)
                for name in _chosen(target, settings)
            ]
            names = [split.split for split in done]
            num_deleted = target.delete_shards(names) if settings.delete_shards else 0
    except OSError as error:
        raise storage_error(error) from error
    return ConsolidateReport(
        path=str(place),
        is_store=isinstance(target, StoreTarget),
        splits=tuple(done),
        num_deleted_shards=num_deleted,
        seconds=time.monotonic() - started,
    )


def _scratch_folder(url: str, scratch: str | None) -> Path:
    """Return where the files of a remote store are made: the same folder for the same store."""
    root = Path(open_cache().folder) / "consolidate" if scratch is None else Path(scratch)
    return root.expanduser().absolute() / hashlib.sha256(url.encode()).hexdigest()[:16]


def _remove_partials(folder: Path) -> None:
    """Remove what killed attempts left; while the lock is held, no other run writes these."""
    for place, pattern in (
        (folder / WORK_FOLDER, ".*.partial"),
        (folder, f".{METADATA_NAME}.*.partial"),
        (folder, f".{RECORD_NAME}.*.partial"),
    ):
        for path in place.glob(pattern):
            path.unlink(missing_ok=True)


def _one_split(
    target: Target, name: str, *, folder: Path, settings: ConsolidateSettings, report: Report
) -> ConsolidatedSplit:
    reader, entry = target.reader(name), target.entry(name)
    was_complete = entry is not None and _is_complete(target, name, entry, settings=settings)
    if not was_complete:
        entry = _consolidate_split(target, name, folder=folder, settings=settings, report=report)
    assert entry is not None
    return ConsolidatedSplit(
        split=name,
        seq_len=entry.seq_len,
        num_tokens=reader.num_tokens,
        num_samples=entry.num_samples,
        num_tail_tokens=reader.num_tokens % entry.seq_len,
        num_bytes=entry.tokens.bytes,
        tokens_sha256=entry.tokens.sha256,
        sample_ids_sha256=entry.sample_ids.sha256,
        was_complete=was_complete,
    )


def _is_complete(
    target: Target, name: str, entry: ConsolidatedEntry, *, settings: ConsolidateSettings
) -> bool:
    """Tell whether a split has what is asked for; if it has something else, refuse."""
    if entry.seq_len != settings.seq_len:
        if settings.replace and not entry.shards_deleted:
            target.set_entry(name, None)  # first, so that it never lists what is not there
            return False
        raise SettingsChangedError(
            f"{target.place}/{tokens_name(name)}: made with other settings:\n"
            f"  seq_len: {entry.seq_len} then, {settings.seq_len} now",
            hint="its shards were deleted: it stays as it is"
            if entry.shards_deleted
            else "give the same --seq-len, or --replace to make the files anew",
        )
    if entry.shards_deleted:
        return True
    try:
        for file in files_of_entry(str(target.place), name, entry=entry):
            file.check_size()
    except DamageError:
        return False
    return True


def _consolidate_split(
    target: Target, name: str, *, folder: Path, settings: ConsolidateSettings, report: Report
) -> ConsolidatedEntry:
    job = Consolidation(
        folder,
        name,
        reader=target.reader(name),
        seq_len=settings.seq_len,
        identity=target.identity(name),
    )
    listed = target.entry(name) is not None
    if not listed and not job.has_begun() and not settings.replace:
        _refuse_foreign(target.place, (tokens_name(name), sample_ids_name(name)))
    job.write(workers=settings.num_threads, report=report)
    is_remote = is_remote_place(target.place)
    if not settings.skip_validation and not is_remote:
        job.validate()
    entry = job.entry()
    job.publish()
    target.send(name, folder, entry=entry, validate=not settings.skip_validation)
    target.set_entry(name, entry)
    job.forget(files_too=is_remote)
    return entry


def _refuse_foreign(place: Place, names: Iterable[str]) -> None:
    folder = open_folder(place)
    for name in names:
        if folder.size(name) is not None:
            raise ConfigError(
                f"{place}/{name}: is there, and tokenmill knows nothing of it",
                hint="move it away, or use --replace to write over it",
            )


def _chosen(target: Target, settings: ConsolidateSettings) -> list[str]:
    known = target.names()
    unknown = set(settings.splits) - set(known)
    if unknown:
        raise ConfigError(
            f"{target.place}: no split {min(unknown)!r}; there is {', '.join(known) or 'none'}"
        )
    return [name for name in known if not settings.splits or name in settings.splits]
