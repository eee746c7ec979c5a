"""Copy a store, or any folder, from one place to another: in parallel, again and again, proved.

What is there already with the right content is passed over, so the same call continues after an
interruption. `metadata.json` comes last: until then a store that is being copied is not a store.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec import UNSET

from tokenmill.errors import (
    ConfigError,
    DamageError,
    NotAStoreError,
    SettingsChangedError,
    StorageError,
)
from tokenmill.files import FileInfo, list_files, open_input, storage_error
from tokenmill.progress import Event, Report, silent
from tokenmill.remote import abort_uploads, delete_objects, is_remote, join, list_objects
from tokenmill.store import format as layout
from tokenmill.store.format import METADATA_NAME
from tokenmill.store.metadata import FileEntry, Metadata, decode_metadata
from tokenmill.store.place import find_place
from tokenmill.store.sync_files import Copier, Item, locate

SYNC_WORKERS = 4
_PAUSE_SECONDS = 0.2
_ORPHAN_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What was copied, what was there, and what was removed (or would be)."""

    source: str
    target: str
    is_store: bool
    num_files: int
    num_bytes: int
    copied: tuple[str, ...]
    copied_bytes: int
    deleted: tuple[str, ...]
    """Files of the target that the source does not have; empty unless asked for."""
    dry_run: bool
    seconds: float


def sync(
    source: str | Path,
    target: str | Path,
    *,
    delete: bool = False,
    dry_run: bool = False,
    workers: int = SYNC_WORKERS,
    report: Report = silent,
) -> SyncReport:
    """Make `target` hold what `source` holds: folders, or places in object stores.

    Every file of a store is compared with the SHA-256 in its metadata, at both ends. Hidden files
    and `_run/` are passed over. A target that holds another store is refused.

    Args:
        delete: Remove the files of the target that the source does not have.
        dry_run: Look, and copy and remove nothing.
        workers: Files at a time.
    """
    if workers < 1:
        raise ConfigError(f"workers must be at least 1, got {workers}")
    started = time.monotonic()
    job = _Job(_root(source), _root(target))
    last = [item for item in job.items if item.name == METADATA_NAME]
    others = [item for item in job.items if item.name != METADATA_NAME]
    copied = _run(job, others, workers=workers, dry_run=dry_run, report=report)
    copied += _run(job, last, workers=1, dry_run=dry_run, report=silent)
    names = {item.name for item in job.items}
    extra = sorted(job.present.keys() - names) if delete else []
    if not dry_run:
        _delete(job, extra)
        _clean(job.target)
    sizes = {item.name: item.info.size for item in job.items}
    return SyncReport(
        source=job.source,
        target=job.target,
        is_store=job.metadata is not None,
        num_files=len(job.items),
        num_bytes=sum(sizes.values()),
        copied=tuple(sorted(copied)),
        copied_bytes=sum(sizes[name] for name in copied),
        deleted=tuple(extra),
        dry_run=dry_run,
        seconds=time.monotonic() - started,
    )


class _Job:
    """What is to be copied, and what is there."""

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = source, target
        _check_apart(source, target)
        found = _list(source)
        if not found:
            raise ConfigError(f"{source}: no such folder, or nothing in it to copy")
        data = _metadata_bytes(found.get(METADATA_NAME))
        self.metadata = _decode(data, locate(source, METADATA_NAME))
        self.present = _list(target)
        self._check_target()
        expected = {} if self.metadata is None else dict(listed_files(self.metadata))
        missing = sorted(expected.keys() - found.keys())
        if missing:
            raise DamageError(
                f"{source}: {len(missing)} files of the store are missing, the first is "
                f"{missing[0]}",
                hint="restore them from a copy, or run the same `tokenmill tokenize` again",
            )
        hashes = {name: entry.sha256 for name, entry in expected.items()}
        if data is not None:
            hashes[METADATA_NAME] = hashlib.sha256(data).hexdigest()
        self.items = [Item(name, info, hashes.get(name)) for name, info in found.items()]

    def _check_target(self) -> None:
        """Refuse to make a mixture of two stores."""
        data = _metadata_bytes(self.present.get(METADATA_NAME))
        there = _decode(data, locate(self.target, METADATA_NAME))
        digest = None if self.metadata is None else self.metadata.digest
        if there is not None and there.digest != digest:
            raise SettingsChangedError(
                f"{self.target}: holds another store, {there.digest[:19]}…"
                + (f", not {digest[:19]}…" if digest else ""),
                hint="choose another target, or remove that store first",
            )


def listed_files(metadata: Metadata) -> Iterator[tuple[str, FileEntry]]:
    """Yield name, size and hash of every file that the metadata lists."""
    tokenizer = metadata.tokenizer
    yield tokenizer.file, FileEntry(bytes=tokenizer.bytes, sha256=tokenizer.sha256)
    if metadata.rejects is not None:
        yield layout.REJECTS_NAME, metadata.rejects
    for name, split in metadata.splits.items():
        if split.consolidated is not UNSET:
            yield layout.tokens_name(name), split.consolidated.tokens
            yield layout.sample_ids_name(name), split.consolidated.sample_ids
        for index, entry in enumerate(split.shards):
            if not split.shards_deleted:
                yield layout.shard_name(name, index), entry.shard
            yield layout.docs_name(name, index), entry.docs
            yield layout.blocks_name(name, index), entry.blocks


def _run(job: _Job, items: list[Item], *, workers: int, dry_run: bool, report: Report) -> list[str]:
    """Copy what is not there yet; return the names."""
    stopped = threading.Event()
    meter = _Meter(items, report)
    copier = Copier(job.target, stopped=stopped, on_bytes=meter.add)

    def one(item: Item) -> str | None:
        is_there = copier.is_there(item, job.present.get(item.name))
        if not is_there and not dry_run:
            copier.copy(item)
        meter.finish(item)
        return None if is_there else item.name

    pool = ThreadPoolExecutor(workers, thread_name_prefix="sync")
    waiting: set[Future[str | None]] = {pool.submit(one, item) for item in items}
    copied: list[str] = []
    try:
        while waiting:
            done, waiting = wait(waiting, _PAUSE_SECONDS, FIRST_EXCEPTION)
            copied += [name for future in done if (name := future.result()) is not None]
            meter.show()
    finally:
        stopped.set()
        pool.shutdown(wait=True, cancel_futures=True)
    return copied


class _Meter:
    """How far it is; told from any thread, shown from one."""

    def __init__(self, items: list[Item], report: Report) -> None:
        self._total = sum(item.info.size for item in items)
        self._num_files, self._num_finished = len(items), 0
        self._done = self._running = 0
        self._report = report
        self._lock = threading.Lock()

    def add(self, num_bytes: int) -> None:
        """Count bytes of a file that is on its way."""
        with self._lock:
            self._running += num_bytes

    def finish(self, item: Item) -> None:
        """Count a file as done, whether it was copied or there."""
        with self._lock:
            self._done += item.info.size
            self._running = max(self._running - item.info.size, 0)
            self._num_finished += 1

    def show(self) -> None:
        """Report where it is."""
        done = min(self._done + self._running, self._total)
        note = f"{self._num_finished:,} of {self._num_files:,} files"
        self._report(Event(stage="sync", done=done, total=self._total, note=note))


def _root(place: str | Path) -> str:
    return str(find_place(place))


def _check_apart(source: str, target: str) -> None:
    one, other = f"{source}/", f"{target}/"
    if one.startswith(other) or other.startswith(one):
        raise ConfigError(f"{source} and {target} lie in each other: choose places apart")
    if not is_remote(source) and not os.path.isdir(source):  # noqa: PTH112
        what = "a file" if os.path.isfile(source) else "no such folder"  # noqa: PTH113
        raise ConfigError(f"{source}: {what}", hint="name a folder, or the folder of the file")


def _list(root: str) -> dict[str, FileInfo]:
    """Return the files below a root by their names, without hidden ones and those of runs."""
    if is_remote(root):
        infos = list_objects(root)
    else:
        try:
            infos = list_files(root)
        except ConfigError:
            if os.path.isfile(root):  # noqa: PTH113
                raise
            infos = []  # nothing there, or nothing in it
    by_name = {info.path[len(root) + 1 :]: info for info in infos}
    return {name: info for name, info in by_name.items() if _is_content(name)}


def _is_content(name: str) -> bool:
    parts = name.split("/")
    return parts[0] != layout.RUN_FOLDER and not any(part.startswith(".") for part in parts)


def _metadata_bytes(info: FileInfo | None) -> bytes | None:
    if info is None:
        return None
    with open_input(info.path) as file:
        return file.read()


def _decode(data: bytes | None, path: str) -> Metadata | None:
    """Return the metadata of a store; that of anything else is a file like any other."""
    if data is None:
        return None
    try:
        return decode_metadata(data, path)
    except NotAStoreError:
        return None


def _clean(target: str) -> None:
    """Remove what copies that were killed long ago have left: invisible, but it takes space."""
    if is_remote(target):
        with suppress(StorageError):  # not everyone may, and no copy depends on it
            abort_uploads(target, older_than_seconds=_ORPHAN_SECONDS)


def _delete(job: _Job, names: list[str]) -> None:
    if is_remote(job.target):
        delete_objects(join(job.target, name) for name in names)
        return
    for name in names:
        path = Path(job.target, name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise storage_error(error, path) from error
