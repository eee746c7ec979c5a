"""Prove that a store is what was written, at three levels of effort.

structure   metadata, names, exact sizes, .npy headers, the tokenizer's hash; reads almost nothing
sample      also the tables, some blocks of each shard with the documents that end in them, and some
            samples of the consolidated ids
full        SHA-256 of every byte, every block, every id, every end of a document

Shards are checked side by side in threads. Each is read once, in pieces that stay in the cache of a
core while they are hashed and looked at, so memory is a few MiB for each thread. A remote store is
read where it is, past the cache of the node.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from uuid import uuid4

import numpy as np

from tokenmill.errors import ConfigError, DamageError, NotAStoreError, TokenmillError
from tokenmill.store.consolidated_check import ConsolidatedCheck
from tokenmill.store.format import (
    BLOCKS_FOLDER,
    DOCS_FOLDER,
    METADATA_NAME,
    REJECTS_NAME,
    shard_name,
)
from tokenmill.store.metadata import Metadata, decode_metadata, read_metadata_bytes
from tokenmill.store.place import Place, find_place, is_remote_place, remote_sizes
from tokenmill.store.plain_check import check_record
from tokenmill.store.plain_shards import read_record
from tokenmill.store.reader import Split, Store, store_files
from tokenmill.store.remote_cache import RemoteCache
from tokenmill.store.shard_check import Findings, ShardCheck, check_hash
from tokenmill.store.stored_file import full_check_command
from tokenmill.store.stored_object import AnyFile, file_of_store

LEVELS: Final = ("structure", "sample", "full")

_REMOTE_WORKERS: Final = 8  # they mostly wait
_KEPT_TABLE_BYTES: Final = 1 << 24
_SAMPLE_BLOCKS: Final = 64
_SAMPLE_BLOCKS_OF_STORE: Final = 1 << 14
"""A GiB in all; a store of very many shards gets fewer blocks of each, but at least one."""

_EXTRA: Final = "not listed in the metadata"
_LEFT_OVER: Final = "left by a deletion of shards that did not finish"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written."""

    file: str
    """Name inside the store."""
    problem: str
    next_command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What a verification looked at and what it found."""

    path: str
    level: str
    problems: tuple[Problem, ...]
    num_files: int
    num_bytes: int
    """Bytes that were read."""
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.problems


def verify(
    path: str | Path,
    level: str = "structure",
    *,
    workers: int | None = None,
    seed: int = 0,
    on_bytes: Callable[[int], None] | None = None,
) -> VerifyReport:
    """Check the store at `path` and report every problem; damage is reported, not raised.

    Args:
        path: A folder, or s3://bucket/prefix.
        workers: Threads; by default one for each core, and more for a remote store.
        seed: Chooses the blocks of a sample; the same seed looks at the same blocks.
        on_bytes: Told, from any thread, how many more bytes have been read.
    """
    if level not in LEVELS:
        raise ConfigError(f"level is {level!r}, expected one of {', '.join(LEVELS)}")
    started = time.monotonic()
    place = find_place(path)
    try:
        data = read_metadata_bytes(place)
        metadata = decode_metadata(data, f"{place}/{METADATA_NAME}")
    except DamageError as error:
        found = Findings(num_files=1)
        found.add(METADATA_NAME, error)
    except NotAStoreError:
        record = None if isinstance(place, str) else read_record(place)
        if record is None or isinstance(place, str):
            raise
        found = check_record(place, record, level=level, seed=seed)
    else:
        found = check_store(
            place, metadata, level=level, workers=workers, seed=seed, on_bytes=on_bytes
        )
        found.merge(_check_names(place, metadata))
        found.num_bytes += len(data)
    return VerifyReport(
        path=str(place),
        level=level,
        problems=tuple(
            _problem(place, file, text=text, level=level)
            for file, text in dict.fromkeys(found.problems)
        ),
        num_files=found.num_files,
        num_bytes=found.num_bytes,
        seconds=time.monotonic() - started,
    )


def check_store(
    place: Place,
    metadata: Metadata,
    *,
    level: str,
    workers: int | None = None,
    seed: int = 0,
    on_bytes: Callable[[int], None] | None = None,
) -> Findings:
    """Check the files at `place` against `metadata`, whatever its `metadata.json` says."""
    found = Findings(num_files=1)
    is_remote = is_remote_place(place)
    if is_remote:
        found.merge(_check_sizes(place, metadata))  # of all at once; locally each is compared
    checks = _checks(place, metadata, level=level, seed=seed, on_bytes=on_bytes or _ignore)
    num_cores = len(os.sched_getaffinity(0))
    for part in _run(checks, workers=workers or max(num_cores, is_remote * _REMOTE_WORKERS)):
        found.merge(part)
    if level == "full" and not found.problems:
        _check_sources(found, metadata)
    return found


def _checks(
    place: Place,
    metadata: Metadata,
    *,
    level: str,
    seed: int,
    on_bytes: Callable[[int], None],
) -> Iterator[Callable[[], Findings]]:
    """Yield the checks of a level, each to be run in some thread."""
    root, tokenizer, rejects = str(place), metadata.tokenizer, metadata.rejects
    file = file_of_store(root, tokenizer.file, num_bytes=tokenizer.bytes)
    yield partial(check_hash, file, tokenizer.sha256)
    if rejects is not None:
        file = file_of_store(root, REJECTS_NAME, num_bytes=rejects.bytes)
        yield partial(check_hash, file, rejects.sha256) if level == "full" else partial(_open, file)
    # Tables are looked up again and again: those of a remote store are kept in memory, for this
    # check alone, so that no copy hides what has become of the original.
    cache = _memory_cache() if is_remote_place(place) else None
    store = Store(place, metadata, verify="blocks", cache=cache)
    num_shards = sum(split.num_shards for split in store.splits.values())
    max_blocks = max(1, min(_SAMPLE_BLOCKS, _SAMPLE_BLOCKS_OF_STORE // max(num_shards, 1)))
    for name, split in store.splits.items():
        yield from _consolidated_checks(root, split, level=level, seed=seed)
        for index in range(split.num_shards):
            check = ShardCheck(root, split, index=index, metadata=metadata, on_bytes=on_bytes)
            if level == "structure":
                yield check.structure
            elif level == "sample":
                rng = np.random.default_rng([seed, index, *name.encode()])
                yield partial(check.sample, rng, max_blocks=max_blocks)
            else:
                yield check.full


def _consolidated_checks(
    folder: str, split: Split, *, level: str, seed: int
) -> Iterator[Callable[[], Findings]]:
    """Yield the checks of the tokens file and the sample ids of a split, if it has them."""
    entry = split.consolidated
    if entry is None:
        return
    check = ConsolidatedCheck(folder, split.name, entry=entry, dtype=split.dtype)
    if level == "structure":
        yield check.structure
    elif level == "sample":
        yield partial(check.sample, np.random.default_rng([seed, *split.name.encode()]))
    else:
        yield check.full_sample_ids
        if not entry.shards_deleted:  # else the hashes of the shards in it cover every byte
            yield check.full_tokens


def _run(checks: Iterable[Callable[[], Findings]], *, workers: int) -> Iterator[Findings]:
    """Run checks in threads and yield what they found, in their order."""
    with ThreadPoolExecutor(workers) as pool:
        try:
            for future in [pool.submit(check) for check in checks]:
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # an interrupt waits for no other shard


def _check_sizes(place: Place, metadata: Metadata) -> Findings:
    """Compare the sizes in a listing of a remote store."""
    found, sizes = Findings(), remote_sizes(place)
    for file in store_files(place, metadata):
        try:
            file.check_size(sizes)
        except DamageError as error:
            found.add(file.name, error)
    return found


def _check_names(place: Place, metadata: Metadata) -> Findings:
    """Look for shards and tables that the metadata does not list: something else wrote here."""
    found = Findings()
    listed = {file.name for file in store_files(place, metadata)}
    deleted = {
        shard_name(name, index)
        for name, split in metadata.splits.items()
        if split.shards_deleted
        for index in range(len(split.shards))
    }
    for name in _names(place):
        folder, _, file = name.rpartition("/")
        is_table = file.endswith(".npy") and not file.startswith(".")
        if folder in {"", DOCS_FOLDER, BLOCKS_FOLDER} and is_table and name not in listed:
            found.add(name, _LEFT_OVER if name in deleted else _EXTRA)
        elif name == REJECTS_NAME and metadata.rejects is None:
            found.add(name, _EXTRA)
    return found


def _names(place: Place) -> list[str]:
    """Return the names of the files of a store, in order."""
    if isinstance(place, str):
        return sorted(url.removeprefix(f"{place}/") for url in remote_sizes(place) or ())
    names: list[str] = []
    for folder in ("", DOCS_FOLDER, BLOCKS_FOLDER):
        prefix = f"{folder}/" if folder else ""
        with suppress(OSError):  # a missing folder: its missing files are reported one by one
            found = os.listdir(place / folder)  # noqa: PTH208  (names, many of them)
            names += sorted(f"{prefix}{name}" for name in found)
    return names


def _open(file: AnyFile) -> Findings:
    found = Findings(num_files=1)
    try:
        file.open()
    except TokenmillError as error:
        found.add(file.name, error)
    finally:
        file.forget()
    return found


def _check_sources(found: Findings, metadata: Metadata) -> None:
    """Compare the documents of each source in the tables with the counts in the metadata."""
    for number, source in enumerate(metadata.sources):
        counted = found.documents_by_source[number]
        if counted != source.num_documents:
            text = (
                f"source {number} has {source.num_documents} documents, the tables list {counted}"
            )
            found.add(METADATA_NAME, text)


def _problem(place: Place, file: str, *, text: str, level: str) -> Problem:
    if text == _LEFT_OVER:
        command = f"the same `tokenmill consolidate {shlex.quote(str(place))}` command again"
    elif text == _EXTRA:
        command = f"mv {shlex.quote(f'{place}/{file}')} to another folder"
    elif level != "full":
        command = full_check_command(str(place))
    else:
        command = "restore the file from a copy, or tokenize again into a new folder"
    return Problem(file=file, problem=text, next_command=command)


def _memory_cache() -> RemoteCache:
    return RemoteCache(f"check {uuid4().hex}", max_bytes=0, chunk_bytes=_KEPT_TABLE_BYTES)


def _ignore(num_bytes: int) -> None:
    """Tell nobody."""
