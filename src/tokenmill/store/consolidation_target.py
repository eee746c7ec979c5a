"""What can be consolidated: a store, or a folder of plain shards; where each keeps its entries."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET

from tokenmill.errors import ConfigError, DamageError, NotAStoreError
from tokenmill.files import sync_folder
from tokenmill.store.format import RUN_FOLDER, shard_name
from tokenmill.store.metadata import ConsolidatedEntry, Metadata, read_metadata, write_metadata
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
from tokenmill.store.verify import check_store
from tokenmill.store.writer import hash_file

_SHOWN_PROBLEMS: Final = 5


class StoreTarget:
    """A store: entries are in its metadata, and its checksums prove what is read."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        self.folder = folder
        self._metadata = metadata

    def reload(self) -> None:
        """Read the metadata again, now that no other run can change it."""
        self._metadata = read_metadata(self.folder)

    def names(self) -> list[str]:
        """Return the splits."""
        return list(self._metadata.splits)

    def reader(self, name: str) -> Split:
        """Return what reads the ids of a split and proves them."""
        return Store(self.folder, self._metadata, verify="blocks").splits[name]

    def identity(self, name: str) -> str:
        """Return a name for the content of a split."""
        return f"{self._metadata.digest}/{name}"

    def entry(self, name: str) -> ConsolidatedEntry | None:
        """Return what is recorded of the consolidated files of a split."""
        return self._metadata.splits[name].consolidated or None

    def set_entry(self, name: str, entry: ConsolidatedEntry | None) -> None:
        """Record the consolidated files of a split, or that there are none."""
        self._metadata = write_metadata(self.folder, self._with_entries({name: entry}))

    def delete_shards(self, names: list[str]) -> int:
        """Delete shards after a full verification of the store as it will be without them."""
        entries: dict[str, ConsolidatedEntry | None] = {}
        for name in names:
            entry = self.entry(name)
            assert entry is not None
            entries[name] = msgspec.structs.replace(entry, shards_deleted=True)
        shards = {
            self.folder / shard_name(name, index): shard.shard
            for name in names
            for index, shard in enumerate(self._metadata.splits[name].shards)
        }
        if all(self._metadata.splits[name].shards_deleted for name in names):
            for path, entry in shards.items():  # left by an attempt that did not finish?
                if path.exists() and hash_file(path) != entry:
                    raise _not_ours(path)
        else:
            future = self._with_entries(entries)
            _refuse_damage(self.folder, check_store(self.folder, future, level="full").problems)
            self._metadata = write_metadata(self.folder, future)
        return _delete(self.folder, list(shards))

    def _with_entries(self, entries: dict[str, ConsolidatedEntry | None]) -> Metadata:
        splits = dict(self._metadata.splits)
        for name, entry in entries.items():
            value = UNSET if entry is None else entry
            splits[name] = msgspec.structs.replace(splits[name], consolidated=value)
        return msgspec.structs.replace(self._metadata, splits=splits)


class PlainTarget:
    """A folder of .npy shards: entries are in `consolidated.json`."""

    def __init__(self, folder: Path, shards: dict[str, PlainShards]) -> None:
        self.folder = folder
        self._shards = shards
        self._record = PlainRecord(splits={})

    def reload(self) -> None:
        """Look again, now that no other run can change the record."""
        self._record = read_record(self.folder) or self._record
        self._shards = _plain_splits(self.folder)

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
        write_record(self.folder, self._record)

    def delete_shards(self, names: list[str]) -> int:
        """Delete shards after comparing every byte of them with the tokens file."""
        for name in names:
            known = self._record.splits[name]
            if known.consolidated.shards_deleted:
                continue
            _refuse_damage(
                self.folder, check_record(self.folder, self._record, level="full").problems
            )
            entry = msgspec.structs.replace(known.consolidated, shards_deleted=True)
            self.set_entry(name, entry)
        paths: list[Path] = []
        for shard in (shard for name in names for shard in self._record.splits[name].shards):
            path = self.folder / shard.name
            if path.exists() and str(path.stat().st_mtime_ns) != shard.version:
                raise _not_ours(path)
            paths.append(path)
        return _delete(self.folder, paths)


Target = StoreTarget | PlainTarget


def open_target(folder: Path) -> Target:
    """Return the store or the plain shards in a folder; with neither, raise `NotAStoreError`."""
    try:
        return StoreTarget(folder, read_metadata(folder))
    except NotAStoreError:
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


def _refuse_damage(folder: Path, problems: list[tuple[str, str]]) -> None:
    if problems:
        shown = "".join(f"\n  {file}: {text}" for file, text in problems[:_SHOWN_PROBLEMS])
        raise DamageError(
            f"{folder}: no shard was deleted, since the verification found damage:{shown}",
            hint="mend what is damaged first; the shards are still there",
        )


def _not_ours(path: Path) -> ConfigError:
    return ConfigError(
        f"{path}: is not the shard that was consolidated; it was not deleted",
        hint="something wrote it since: move it to another folder",
    )


def _delete(folder: Path, paths: list[Path]) -> int:
    num_deleted = 0
    for path in paths:
        try:
            path.unlink()
            num_deleted += 1
        except FileNotFoundError:  # an earlier attempt deleted it
            continue
    sync_folder(folder)
    return num_deleted
