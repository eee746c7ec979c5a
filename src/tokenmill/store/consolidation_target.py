"""What can be consolidated: a store, or a folder of plain shards; where each keeps its entries."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET

from tokenmill.errors import ConfigError, DamageError, NotAStoreError
from tokenmill.files import sync_folder
from tokenmill.folder import open_folder
from tokenmill.remote import delete_objects, join, upload_file
from tokenmill.store.consolidated_check import ConsolidatedCheck
from tokenmill.store.consolidation import LOCK_NAME
from tokenmill.store.format import RUN_FOLDER, sample_ids_name, shard_name, tokens_name
from tokenmill.store.metadata import ConsolidatedEntry, Metadata, read_metadata, write_metadata
from tokenmill.store.place import Place, is_remote_place, remote_sizes
from tokenmill.store.plain_check import check_record
from tokenmill.store.plain_shards import (
    PlainRecord,
    PlainShards,
    PlainSplit,
    find_plain_shards,
    read_record,
    write_record,
)
from tokenmill.store.reader import Split, Store
from tokenmill.store.remote_cache import RemoteCache
from tokenmill.store.shard_check import check_hash
from tokenmill.store.stored_object import file_of_store
from tokenmill.store.verify import check_store

_SHOWN_PROBLEMS: Final = 5


class StoreTarget:
    """A store: entries are in its metadata, and its checksums prove what is read.

    The files of a remote store are made in a folder on this machine and sent when they are whole.
    """

    def __init__(self, place: Place, metadata: Metadata) -> None:
        self.place = place
        self._folder = open_folder(place)
        self._metadata = metadata

    def lock(self) -> AbstractContextManager[None]:
        """Keep runs on other machines away from a remote store."""
        return self._folder.lock(LOCK_NAME) if is_remote_place(self.place) else nullcontext()

    def reload(self) -> None:
        """Read the metadata again, now that no other run can change it."""
        self._metadata = read_metadata(self.place)

    def names(self) -> list[str]:
        """Return the splits."""
        return list(self._metadata.splits)

    def reader(self, name: str) -> Split:
        """Return what reads the ids of a split and proves them."""
        # What is read once, from end to end, would only push other things out of a cache.
        cache = RemoteCache("", max_bytes=0) if is_remote_place(self.place) else None
        return Store(self.place, self._metadata, verify="blocks", cache=cache).splits[name]

    def identity(self, name: str) -> str:
        """Return a name for the content of a split."""
        return f"{self._metadata.digest}/{name}"

    def entry(self, name: str) -> ConsolidatedEntry | None:
        """Return what is recorded of the consolidated files of a split."""
        return self._metadata.splits[name].consolidated or None

    def set_entry(self, name: str, entry: ConsolidatedEntry | None) -> None:
        """Record the consolidated files of a split, or that there are none."""
        self._metadata = self._write(self._with_entries({name: entry}))

    def send(self, name: str, folder: Path, *, entry: ConsolidatedEntry, validate: bool) -> None:
        """Bring both files of a split from `folder` to the store, if it is a remote one."""
        if not isinstance(self.place, str):
            return
        for file in (tokens_name(name), sample_ids_name(name)):
            upload_file(folder / file, join(self.place, file))
        if validate:
            dtype = self._metadata.token_dtype
            check = ConsolidatedCheck(self.place, name, entry=entry, dtype=dtype)
            found = check.full_tokens()
            found.merge(check.full_sample_ids())
            for file, text in found.problems:
                raise DamageError(
                    f"{self.place}/{file}: {text}: what arrived is not what was sent",
                    hint="run the same command again",
                )

    def delete_shards(self, names: list[str]) -> int:
        """Delete shards after a full verification of the store as it will be without them."""
        entries: dict[str, ConsolidatedEntry | None] = {}
        for name in names:
            entry = self.entry(name)
            assert entry is not None
            entries[name] = msgspec.structs.replace(entry, shards_deleted=True)
        shards = {
            shard_name(name, index): shard.shard
            for name in names
            for index, shard in enumerate(self._metadata.splits[name].shards)
        }
        if all(self._metadata.splits[name].shards_deleted for name in names):
            for file in _existing(self.place, shards):  # left by an attempt that did not finish?
                size, sha256 = shards[file].bytes, shards[file].sha256
                shard = file_of_store(str(self.place), file, num_bytes=size)
                if check_hash(shard, sha256).problems:
                    raise _not_ours(f"{self.place}/{file}")
        else:
            future = self._with_entries(entries)
            _refuse_damage(self.place, check_store(self.place, future, level="full").problems)
            self._metadata = self._write(future)
        return _delete(self.place, shards)

    def _write(self, metadata: Metadata) -> Metadata:
        self._folder.check_lock(LOCK_NAME)
        return write_metadata(self._folder, metadata)

    def _with_entries(self, entries: dict[str, ConsolidatedEntry | None]) -> Metadata:
        splits = dict(self._metadata.splits)
        for name, entry in entries.items():
            value = UNSET if entry is None else entry
            splits[name] = msgspec.structs.replace(splits[name], consolidated=value)
        return msgspec.structs.replace(self._metadata, splits=splits)


class PlainTarget:
    """A folder of .npy shards: entries are in `consolidated.json`."""

    def __init__(self, folder: Path, shards: dict[str, PlainShards]) -> None:
        self.place = folder
        self._shards = shards
        self._record = PlainRecord(splits={})

    def lock(self) -> AbstractContextManager[None]:
        """Do nothing: the lock of the folder is enough."""
        return nullcontext()

    def reload(self) -> None:
        """Look again, now that no other run can change the record."""
        self._record = read_record(self.place) or self._record
        self._shards = _plain_splits(self.place)

    def names(self) -> list[str]:
        """Return the splits."""
        return list(self._shards)

    def reader(self, name: str) -> PlainShards:
        """Return what reads the ids of a split."""
        return self._shards[name]

    def identity(self, name: str) -> str:
        """Return a name for the content of a split."""
        return self._shards[name].identity

    def entry(self, name: str) -> ConsolidatedEntry | None:
        """Return what is recorded of the consolidated files of a split."""
        known = self._record.splits.get(name)
        if known is None:
            return None
        if not known.consolidated.shards_deleted and known.shards != self._shards[name].shards:
            return None  # the shards have changed since
        return known.consolidated

    def set_entry(self, name: str, entry: ConsolidatedEntry | None) -> None:
        """Record the consolidated files of a split, or that there are none."""
        splits = dict(self._record.splits)
        splits.pop(name, None)
        if entry is not None:
            found = self._shards[name]
            splits[name] = PlainSplit(
                dtype=found.dtype.name, shards=found.shards, consolidated=entry
            )
        self._record = msgspec.structs.replace(self._record, splits=splits)
        write_record(self.place, self._record)

    def send(self, name: str, folder: Path, *, entry: ConsolidatedEntry, validate: bool) -> None:
        """Do nothing: the files were made where they belong."""

    def delete_shards(self, names: list[str]) -> int:
        """Delete shards after comparing every byte of them with the tokens file."""
        for name in names:
            known = self._record.splits[name]
            if known.consolidated.shards_deleted:
                continue
            _refuse_damage(
                self.place, check_record(self.place, self._record, level="full").problems
            )
            entry = msgspec.structs.replace(known.consolidated, shards_deleted=True)
            self.set_entry(name, entry)
        shards = [shard for name in names for shard in self._record.splits[name].shards]
        for shard in shards:
            path = self.place / shard.name
            if path.exists() and str(path.stat().st_mtime_ns) != shard.version:
                raise _not_ours(path)
        return _delete(self.place, [shard.name for shard in shards])


Target = StoreTarget | PlainTarget


def open_target(place: Place) -> Target:
    """Return the store or the plain shards at a place; with neither, raise `NotAStoreError`."""
    try:
        return StoreTarget(place, read_metadata(place))
    except NotAStoreError:
        if isinstance(place, str):
            raise
        folder = place
        if not folder.is_dir() or (folder / RUN_FOLDER).is_dir():
            raise
        shards = _plain_splits(folder)
        if not shards:
            raise
        return PlainTarget(folder, shards)


def _plain_splits(folder: Path) -> dict[str, PlainShards]:
    """Return the splits of a plain folder, also those whose shards were deleted."""
    record = read_record(folder)
    deleted = {
        name: split
        for name, split in (record.splits if record else {}).items()
        if split.consolidated.shards_deleted
    }
    shards = find_plain_shards(folder, without=deleted)
    for name, split in deleted.items():
        shards[name] = PlainShards(folder, name, shards=split.shards, dtype=split.dtype)
    return shards


def _refuse_damage(place: Place, problems: list[tuple[str, str]]) -> None:
    if problems:
        shown = "".join(f"\n  {file}: {text}" for file, text in problems[:_SHOWN_PROBLEMS])
        raise DamageError(
            f"{place}: no shard was deleted, since the verification found damage:{shown}",
            hint="mend what is damaged first; the shards are still there",
        )


def _not_ours(path: str | Path) -> ConfigError:
    return ConfigError(
        f"{path}: is not the shard that was consolidated; it was not deleted",
        hint="something wrote it since: move it to another folder",
    )


def _existing(place: Place, names: Iterable[str]) -> list[str]:
    """Return which files of a store are there; an earlier attempt may have deleted some."""
    if isinstance(place, str):
        there = remote_sizes(place) or {}
        return [name for name in names if f"{place}/{name}" in there]
    return [name for name in names if (place / name).exists()]


def _delete(place: Place, names: Iterable[str]) -> int:
    there = _existing(place, names)
    if isinstance(place, str):
        delete_objects([join(place, name) for name in there])
        return len(there)
    for name in there:
        (place / name).unlink(missing_ok=True)
    sync_folder(place)
    return len(there)
