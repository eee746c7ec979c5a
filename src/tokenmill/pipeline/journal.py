"""What a run has on disk, and what of it still counts after a crash.

_run/run.json             what the run was begun with
_run/lock                 held by the process that works on it
_run/parts/               parts and receipts of finished units
_run/shards/              the entry of each finished shard
_run/shares/              how far each share is, of a run without one driver
_run/events.jsonl         how it went, for people and for `tokenmill status`
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from tokenmill.errors import DamageError
from tokenmill.folder import Folder, map_ahead
from tokenmill.pipeline.parts import PARTS_FOLDER, Receipt, read_receipt, receipt_name
from tokenmill.pipeline.plan import RECORD_NAME, RunRecord
from tokenmill.pipeline.share_state import SHARES_FOLDER
from tokenmill.progress import Event
from tokenmill.store import (
    BLOCKS_FOLDER,
    DOCS_FOLDER,
    RUN_FOLDER,
    ShardEntry,
    blocks_name,
    docs_name,
    shard_name,
)

SHARDS_FOLDER = f"{RUN_FOLDER}/shards"
LOCK_NAME = f"{RUN_FOLDER}/lock"
EVENTS_NAME = f"{RUN_FOLDER}/events.jsonl"
_RECORD = f"{RUN_FOLDER}/{RECORD_NAME}"

PROGRESS_SECONDS = 2.0


class FinishedShard(msgspec.Struct, frozen=True, tag=True):
    """A published shard: the tokens it covers, and its entry for the metadata."""

    split: str
    index: int
    start: int
    entry: ShardEntry


_SHARDS = msgspec.json.Decoder(FinishedShard)  # made once: see `_RECEIPTS`


class Journal:
    """The files under `_run/`. Tasks leave receipts; the rest is for the holder of the lock."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._last_logged = float("-inf")

    def create(self) -> None:
        """Make the folders."""
        self.folder.make(PARTS_FOLDER, SHARDS_FOLDER)

    def read_record(self) -> RunRecord | None:
        """Return what the run was begun with, or None if it never began."""
        try:
            data = self.folder.read(_RECORD)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return msgspec.json.decode(data, type=RunRecord)
        except msgspec.DecodeError as error:
            raise DamageError(
                f"{self.folder.where(_RECORD)}: {error}",
                hint="the run cannot be continued: choose another output, or remove this one",
            ) from error

    def write_record(self, record: RunRecord) -> None:
        """Keep what the run is begun with."""
        self.folder.write(_RECORD, msgspec.json.encode(record))

    def read_receipts(self) -> dict[int, Receipt]:
        """Return the receipts of finished units; a receipt cut by a power loss is removed."""
        stems = (name.removesuffix(".json") for name in self._names(PARTS_FOLDER))
        units = (int(stem) for stem in stems if stem.isdecimal())
        found = map_ahead(self._read_receipt, units, num_threads=self.folder.num_readers)
        return {receipt.unit: receipt for receipt in found if receipt is not None}

    def drop_receipt(self, receipt: Receipt) -> None:
        """Forget a unit, so that it is done again."""
        self.folder.remove(receipt.name, receipt.part_name)

    def drop_parts(self, receipts: Iterable[Receipt]) -> None:
        """Remove the tokens of units that no unfinished shard needs."""
        self.folder.remove(*(receipt.part_name for receipt in receipts))

    def read_shards(self) -> dict[tuple[str, int], FinishedShard]:
        """Return the finished shards whose files are there with the right sizes."""
        found: dict[tuple[str, int], FinishedShard] = {}
        sizes = {
            f"{folder}/{name}" if folder else name: size
            for folder in ("", DOCS_FOLDER, BLOCKS_FOLDER)
            for name, size in self.folder.sizes(folder).items()
        }
        names = (f"{SHARDS_FOLDER}/{name}" for name in self._names(SHARDS_FOLDER))
        for shard in map_ahead(self._read_shard, names, num_threads=self.folder.num_readers):
            if shard is not None and _sizes_agree(shard, sizes):
                found[shard.split, shard.index] = shard
        return found

    def write_shard(self, shard: FinishedShard) -> None:
        """Record a shard that is there under its final name; every attempt writes the same."""
        name = f"{SHARDS_FOLDER}/{shard.split}_{shard.index:06d}.json"
        # not synced: after a power loss a shard without its entry is made again
        self.folder.write(name, msgspec.json.encode(shard), sync=False)

    def num_done(self) -> tuple[int, int]:
        """Count the finished units and shards."""
        return len(self._names(PARTS_FOLDER)), len(self._names(SHARDS_FOLDER))

    def clean(self, receipts: Iterable[Receipt]) -> None:
        """Remove what crashed attempts left behind; only while no task runs."""
        kept = {name for r in receipts for name in (r.part_name, r.rejects_name, r.name)}
        there = (f"{PARTS_FOLDER}/{name}" for name in self.folder.sizes(PARTS_FOLDER))
        self.folder.remove(*(name for name in there if name not in kept))
        self.folder.sweep("", DOCS_FOLDER, BLOCKS_FOLDER, RUN_FOLDER, SHARDS_FOLDER, SHARES_FOLDER)

    def finish(self) -> None:
        """Remove parts and receipts once the store is complete."""
        self.folder.remove_folder(PARTS_FOLDER)
        self.folder.remove_folder(SHARDS_FOLDER)

    def log(self, **fields: Any) -> None:
        """Append an event."""
        event = {"time": round(time.time(), 3), "pid": os.getpid(), **fields}
        self.folder.append(EVENTS_NAME, msgspec.json.encode(event) + b"\n")

    def log_progress(self, event: Event) -> None:
        """Append how far the run is, every few seconds and at the end."""
        now = time.monotonic()
        if now - self._last_logged < PROGRESS_SECONDS and event.done < event.total:
            return
        self._last_logged = now
        self.log(
            event="progress",
            done=event.done,
            tokens=event.num_tokens,
            documents=event.num_documents,
            rejected=event.num_rejected,
        )

    def _read_receipt(self, unit: int) -> Receipt | None:
        try:
            return read_receipt(self.folder, unit)
        except DamageError:
            self.folder.remove(receipt_name(unit))
            return None

    def _read_shard(self, name: str) -> FinishedShard | None:
        try:
            return _SHARDS.decode(self.folder.read(name))
        except msgspec.DecodeError:
            self.folder.remove(name)
            return None

    def _names(self, folder: str) -> list[str]:
        """Return the names of receipts or of entries, sorted; not those of files in the making."""
        names = self.folder.sizes(folder)
        return [name for name in names if name.endswith(".json") and not name.startswith(".")]


def _sizes_agree(shard: FinishedShard, sizes: dict[str, int]) -> bool:
    split, index, entry = shard.split, shard.index, shard.entry
    return (
        sizes.get(shard_name(split, index)) == entry.shard.bytes
        and sizes.get(docs_name(split, index)) == entry.docs.bytes
        and sizes.get(blocks_name(split, index)) == entry.blocks.bytes
    )
