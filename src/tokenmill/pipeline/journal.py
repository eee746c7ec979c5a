"""What a run has on disk, and what of it still counts after a crash.

_run/run.json             what the run was begun with
_run/lock                 held by the process that works on it
_run/parts/               parts and receipts of finished units
_run/shards/              the entry of each finished shard
_run/events.jsonl         how it went, for people and for `tokenmill status`
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from tokenmill.errors import DamageError
from tokenmill.files import atomic_write, storage_error
from tokenmill.pipeline.parts import Receipt, read_receipt
from tokenmill.pipeline.plan import RECORD_NAME, RunRecord
from tokenmill.progress import Event
from tokenmill.store import (
    BLOCKS_FOLDER,
    DOCS_FOLDER,
    RUN_FOLDER,
    ShardEntry,
    blocks_path,
    docs_path,
    shard_path,
)

PROGRESS_SECONDS = 2.0


class FinishedShard(msgspec.Struct, frozen=True, tag=True):
    """A published shard: the tokens it covers, and its entry for the metadata."""

    split: str
    index: int
    start: int
    entry: ShardEntry


class Journal:
    """The files under `_run/`. All writing is by the process that holds the lock."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.folder = output / RUN_FOLDER
        self.parts = self.folder / "parts"
        self.shards = self.folder / "shards"
        self.lock = self.folder / "lock"
        self.events = self.folder / "events.jsonl"
        self._last_logged = float("-inf")

    def create(self) -> None:
        """Make the folders."""
        self.parts.mkdir(parents=True, exist_ok=True)
        self.shards.mkdir(exist_ok=True)

    def read_record(self) -> RunRecord | None:
        """Return what the run was begun with, or None if it never began."""
        try:
            data = (self.folder / RECORD_NAME).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(data, type=RunRecord)
        except msgspec.DecodeError as error:
            raise DamageError(
                f"{self.folder / RECORD_NAME}: {error}",
                hint="the run cannot be continued: choose another output, or remove this one",
            ) from error

    def write_record(self, record: RunRecord) -> None:
        """Keep what the run is begun with."""
        with atomic_write(self.folder / RECORD_NAME) as file:
            file.write(msgspec.json.encode(record))

    def read_receipts(self) -> dict[int, Receipt]:
        """Return the receipts of finished units; a receipt cut by a power loss is removed."""
        receipts: dict[int, Receipt] = {}
        for path in sorted(self.parts.glob("*.json")):
            try:
                receipt = read_receipt(path)
            except DamageError:
                path.unlink()
                continue
            receipts[receipt.unit] = receipt
        return receipts

    def drop_receipt(self, receipt: Receipt) -> None:
        """Forget a unit, so that it is done again."""
        (self.parts / f"{receipt.unit:06d}.json").unlink(missing_ok=True)
        self.drop_part(receipt)

    def drop_part(self, receipt: Receipt) -> None:
        """Remove the tokens of a unit that no unfinished shard needs."""
        (self.parts / receipt.part_name).unlink(missing_ok=True)

    def read_shards(self) -> dict[tuple[str, int], FinishedShard]:
        """Return the finished shards whose files are there with the right sizes."""
        found: dict[tuple[str, int], FinishedShard] = {}
        for path in sorted(self.shards.glob("*.json")):
            try:
                shard = msgspec.json.decode(path.read_bytes(), type=FinishedShard)
            except msgspec.DecodeError:
                path.unlink()
                continue
            if self._sizes_agree(shard):
                found[shard.split, shard.index] = shard
        return found

    def write_shard(self, shard: FinishedShard) -> None:
        """Record a shard that is on disk under its final name."""
        with atomic_write(self.shards / f"{shard.split}_{shard.index:06d}.json") as file:
            file.write(msgspec.json.encode(shard))

    def clean(self, receipts: Iterable[Receipt]) -> None:
        """Remove what crashed attempts left behind; only while no task runs."""
        kept = {
            name for r in receipts for name in (r.part_name, r.rejects_name, f"{r.unit:06d}.json")
        }
        for path in self.parts.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)
        folders = (
            "",
            DOCS_FOLDER,
            BLOCKS_FOLDER,
            RUN_FOLDER,
            f"{RUN_FOLDER}/shards",
        )
        for folder in folders:
            for path in (self.output / folder).glob(".*.partial"):
                path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Remove parts and receipts once the store is complete."""
        for folder in (self.parts, self.shards):
            if folder.is_dir():
                for path in folder.iterdir():
                    path.unlink(missing_ok=True)
                folder.rmdir()

    def log(self, **fields: Any) -> None:
        """Append an event."""
        line = (
            msgspec.json.encode({"time": round(time.time(), 3), "pid": os.getpid(), **fields})
            + b"\n"
        )
        try:
            with self.events.open("ab", buffering=0) as file:
                file.write(line)
        except OSError as error:
            raise storage_error(error, self.events) from error

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

    def _sizes_agree(self, shard: FinishedShard) -> bool:
        split, index, entry = shard.split, shard.index, shard.entry
        places = (
            (shard_path(self.output, split, index=index), entry.shard),
            (docs_path(self.output, split, index=index), entry.docs),
            (blocks_path(self.output, split, index=index), entry.blocks),
        )
        return all(path.is_file() and path.stat().st_size == file.bytes for path, file in places)
