"""A tokenize run: units to parts, parts to shards, shards to a store; continued wherever it stopped."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tokenmill.config import resolve
from tokenmill.engine import LocalEngine, resolve_workers
from tokenmill.errors import BadDocumentError, ConfigError, DamageError
from tokenmill.files import exclusive_lock, storage_error
from tokenmill.pipeline.assemble import assemble_shard
from tokenmill.pipeline.commit import commit
from tokenmill.pipeline.journal import FinishedShard, Journal
from tokenmill.pipeline.layout import SPLITS, ShardTask, Stream, split_tokens
from tokenmill.pipeline.limit import (
    CutRules,
    Kept,
    keep_of_part,
    keep_shuffled,
    smallest_hashes_threshold,
)
from tokenmill.pipeline.parts import (
    Part,
    Receipt,
    SourceCount,
    count_documents,
    lengths,
    read_rejects,
)
from tokenmill.pipeline.plan import RunPlan, check_same_run, make_plan, plan_record
from tokenmill.pipeline.settings import TokenizeSettings
from tokenmill.pipeline.shuffled import (
    ShuffledShardTask,
    assemble_shuffled,
    bucket_tokens,
    shuffled_tasks,
)
from tokenmill.pipeline.unit import Worker
from tokenmill.progress import Event, Report, silent
from tokenmill.sources import Unit
from tokenmill.store import Metadata, ShardEntry, Store, open_store, read_metadata
from tokenmill.store.format import METADATA_NAME, RUN_FOLDER
from tokenmill.tokenizer import Tokenizer, load_tokenizer

WAVE_BYTES = 16 << 30
"""Input after which finished shards are assembled and their parts removed, to bound the disk needed."""
UNITS_AT_A_TIME = 2
"""While one unit is being finished, the next keeps the encoders busy."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    metadata: Metadata
    was_complete: bool
    seconds: float


def tokenize_corpus(
    settings: TokenizeSettings, output: Path, *, report: Report = silent
) -> Outcome:
    """Tokenize into the folder `output`, or continue where an earlier run of the same settings stopped."""
    started = time.monotonic()
    tokenizer = load_tokenizer(settings.tokenizer)
    plan = make_plan(settings, tokenizer)
    journal = Journal(output)
    try:
        _prepare_folder(output)
        with exclusive_lock(journal.lock):
            _check_record(plan, journal)
            if (output / METADATA_NAME).exists():
                journal.finish()
                return Outcome(read_metadata(output), True, time.monotonic() - started)
            metadata = Run(plan, tokenizer, journal=journal, report=report).finish()
    except OSError as error:
        raise storage_error(error) from error
    return Outcome(metadata, False, time.monotonic() - started)


def tokenize(
    sources: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    report: Report = silent,
    **settings: Any,
) -> Store:
    """Tokenize `sources` into the folder `output` and open the store.

    `settings` are the fields of `TokenizeSettings`: tokenizer, val_ratio, shard_tokens and so on. Calling it again
    continues an interrupted run; on a complete one it only opens the store.
    """
    several = [sources] if isinstance(sources, str | Path) else list(sources)
    layer = {**settings, "sources": [str(source) for source in several]}
    tokenize_corpus(resolve(TokenizeSettings, layer), Path(output), report=report)
    return open_store(output)


class Run:
    """The work of one process on a run; its state is what is on disk, plus counters to report."""

    def __init__(
        self, plan: RunPlan, tokenizer: Tokenizer, *, journal: Journal, report: Report
    ) -> None:
        self.plan, self.tokenizer, self.journal, self.report = plan, tokenizer, journal, report
        self.dtype = np.dtype(plan.dtype)
        self.workers = resolve_workers(plan.settings.workers)
        self.threshold = plan.threshold
        self.receipts: dict[int, Receipt] = {}
        self.shards: dict[tuple[str, int], FinishedShard] = {}
        self.streams = {split: Stream(split) for split in SPLITS}
        self.num_in_order = 0  # units finished without a gap
        self.tokens_in_order = 0
        self.kept: Kept | None = None  # set once max_tokens is reached
        self.kept_unit = -1

    def finish(self) -> Metadata:
        """Do what is left to do and return the metadata of the complete store."""
        self._resume()
        self.journal.log(event="start", workers=self.workers, units=len(self.plan.units))
        for wave in self._waves():
            self._tokenize(wave)
            if not self.plan.needs_all_parts:
                self._follow_units()
                self._assemble(self._ready_shards(complete=False))
                self._drop_consumed()
        self._assemble(self._last_shards())
        metadata = commit(
            self.plan,
            self.tokenizer,
            journal=self.journal,
            receipts=[self.receipts[unit] for unit in sorted(self._units_used())],
            counts=self._source_counts(),
            shards={key: shard.entry for key, shard in self.shards.items()},
            kept=self.kept,
        )
        self.journal.log(event="complete", digest=metadata.digest)
        self.journal.finish()
        return metadata

    # -- units ----------------------------------------------------------------------------------

    def _waves(self) -> Iterator[list[Unit]]:
        """Yield units in order, in groups whose parts are allowed on disk together."""
        wave: list[Unit] = []
        num_bytes = 0
        per_unit = max(self.plan.total_bytes // max(len(self.plan.units), 1), 1)
        for unit in self.plan.units:
            wave.append(unit)
            num_bytes += per_unit
            if num_bytes >= WAVE_BYTES and not self.plan.needs_all_parts:
                yield wave
                wave, num_bytes = [], 0
        yield wave

    def _tokenize(self, units: list[Unit]) -> None:
        """Make the parts that are missing, on all encoder threads."""
        with ThreadPoolExecutor(self.workers, thread_name_prefix="encode") as encoders:
            worker = Worker(
                folder=self.journal.parts,
                plan=self.plan,
                tokenizer=self.tokenizer,
                fail_on_reject=self.plan.settings.on_error == "fail",
                encoders=encoders,
                num_encoders=self.workers,
            )
            results = LocalEngine(UNITS_AT_A_TIME).run(worker.tokenize_unit, self._missing(units))
            try:
                for receipt in results:
                    self.receipts[receipt.unit] = receipt
                    self._check_rejects()
                    self._report_units()
            finally:
                results.close()

    def _missing(self, units: list[Unit]) -> Iterator[Unit]:
        """Yield units that have no part yet, until max_tokens is reached."""
        limit = self.plan.settings.max_tokens
        for unit in units:
            if limit is not None and self.plan.settings.shuffle is None:
                self._follow_units()
                if self.kept is not None:
                    return
            if unit.index not in self.receipts:
                yield unit

    def _follow_units(self) -> None:
        """Lay out the tokens of units that are finished without a gap; find where max_tokens falls."""
        limit = self.plan.settings.max_tokens
        while self.kept is None and self.num_in_order in self.receipts:
            receipt = self.receipts[self.num_in_order]
            counts = receipt.counts
            left = None if limit is None else limit - self.tokens_in_order
            if left is not None and receipt.num_tokens >= left:
                self.kept = keep_of_part(
                    self._open(receipt.unit), limit=left, rules=self._cut_rules()
                )
                self.kept_unit = receipt.unit
                counts = self.kept.counts
            for split, stream in self.streams.items():
                stream.extend(receipt.unit, sum(c.num_tokens for c in counts if c.split == split))
            self.tokens_in_order += receipt.num_tokens
            self.num_in_order += 1

    def _check_rejects(self) -> None:
        limit = self.plan.settings.max_errors
        found = sum(receipt.num_rejected for receipt in self.receipts.values())
        if limit is not None and found > limit:
            raise BadDocumentError(
                f"{found:,} broken documents so far, max_errors allows {limit:,}",
                hint="raise --max-errors to continue, or mend the input",
            )

    def _report_units(self) -> None:
        done = self.receipts.values()
        per_unit = self.plan.total_bytes / max(len(self.plan.units), 1)
        event = Event(
            stage="tokenize",
            done=round(per_unit * len(self.receipts)),
            total=self.plan.total_bytes,
            num_documents=sum(receipt.num_documents for receipt in done),
            num_tokens=sum(receipt.num_tokens for receipt in done),
            num_rejected=sum(receipt.num_rejected for receipt in done),
        )
        self.report(event)
        self.journal.log_progress(event)

    # -- shards ---------------------------------------------------------------------------------

    def _ready_shards(self, *, complete: bool) -> list[ShardTask]:
        size = self.plan.settings.shard_tokens
        tasks = [s.take_shards(size, complete=complete) for s in self.streams.values()]
        return [task for split in tasks for task in split]

    def _last_shards(self) -> list[ShardTask] | list[ShuffledShardTask]:
        """Return every shard that is not yet laid out, now that all units are done."""
        settings = self.plan.settings
        if settings.val_documents:
            found = smallest_hashes_threshold(self._parts(), num_documents=settings.val_documents)
            if found is None:
                total = sum(receipt.num_documents for receipt in self.receipts.values())
                raise ConfigError(
                    f"val_documents is {settings.val_documents:,}, the input has {total:,} documents"
                )
            self.threshold = found
            self._recount()
        if settings.shuffle is None:
            self._follow_units()
            return self._ready_shards(complete=True)
        total = sum(receipt.num_tokens for receipt in self.receipts.values())
        if settings.max_tokens is not None and total >= settings.max_tokens:
            rules = self._cut_rules()
            self.kept = keep_shuffled(self._parts, limit=settings.max_tokens, rules=rules)
        tasks: list[ShuffledShardTask] = []
        for split in SPLITS:
            tasks += shuffled_tasks(
                split,
                bucket_tokens(self._parts(), split=split, threshold=self.threshold),
                shard_tokens=settings.shard_tokens,
                num_tokens=sum(c.num_tokens for c in self._source_counts() if c.split == split),
                num_units=len(self.plan.units),
            )
        return tasks

    def _assemble(self, tasks: list[ShardTask] | list[ShuffledShardTask]) -> None:
        """Write the shards of `tasks` that are not yet on disk."""
        missing = [task for task in tasks if (task.split, task.index) not in self.shards]
        results = LocalEngine(self.workers).run(self._assemble_one, missing)
        try:
            for task, entry in results:
                shard = FinishedShard(task.start, entry)
                self.journal.write_shard(task.split, task.index, shard)
                self.shards[task.split, task.index] = shard
        finally:
            results.close()

    def _assemble_one(
        self, task: ShardTask | ShuffledShardTask
    ) -> tuple[ShardTask | ShuffledShardTask, ShardEntry]:
        output = self.journal.output
        if isinstance(task, ShardTask):
            return task, assemble_shard(
                task, output, dtype=self.dtype, open_part=self._open, threshold=self.threshold
            )
        return task, assemble_shuffled(
            task, output, dtype=self.dtype, open_part=self._open, threshold=self.threshold
        )

    def _drop_consumed(self) -> None:
        """Remove parts whose tokens are all in finished shards."""
        needed = {slot.unit for stream in self.streams.values() for slot in stream.slots}
        for unit in range(self.num_in_order):
            if unit not in needed and unit != self.kept_unit:
                self.journal.drop_part(self.receipts[unit])

    # -- resuming -------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Find out what earlier attempts left that can be trusted."""
        self.receipts = self.journal.read_receipts()
        self.shards = self.journal.read_shards(self.dtype.itemsize)
        self.journal.clean(self.receipts.values())
        found = len(self.receipts)
        if not found:
            return
        while bad := self._lost_parts():
            for unit in bad:
                self.journal.drop_receipt(self.receipts.pop(unit))
        message = f"continuing: {len(self.receipts):,} of {len(self.plan.units):,} units were done"
        self.report(Event(stage="tokenize", message=message))
        self._report_units()

    def _lost_parts(self) -> list[int]:
        """Return units whose part is needed but damaged or gone."""
        lost = [unit for unit, receipt in self.receipts.items() if not self._rejects_whole(receipt)]
        results = LocalEngine(self.workers).run(self._check_part, self._units_needed())
        return sorted({*lost, *(unit for unit, good in results if not good)})

    def _units_needed(self) -> list[int]:
        """Return the finished units whose tokens are not all in finished shards."""
        if self.plan.needs_all_parts or self.plan.settings.max_tokens is not None:
            return sorted(self.receipts)
        probe = {split: Stream(split) for split in SPLITS}
        unit = 0
        while unit in self.receipts:
            for split, stream in probe.items():
                stream.extend(unit, split_tokens(self.receipts[unit], split))
            unit += 1
        needed = {other for other in self.receipts if other > unit}
        complete = unit == len(self.plan.units)
        for stream in probe.values():
            for task in stream.take_shards(self.plan.settings.shard_tokens, complete=complete):
                if (task.split, task.index) not in self.shards:
                    needed.update(slot.unit for slot in task.slots)
            needed.update(slot.unit for slot in stream.slots)
        return sorted(needed)

    def _check_part(self, unit: int) -> tuple[int, bool]:
        try:
            self._open(unit).check()
        except DamageError:
            return unit, False
        return unit, True

    def _rejects_whole(self, receipt: Receipt) -> bool:
        try:
            for _ in read_rejects(self.journal.parts, receipt) if receipt.rejects else ():
                pass
        except DamageError:
            return False
        return True

    # -- counting -------------------------------------------------------------------------------

    def _source_counts(self) -> list[SourceCount]:
        """Return what the store holds of each source."""
        if self.kept is None:
            return [count for receipt in self.receipts.values() for count in receipt.counts]
        before = range(max(self.kept_unit, 0))
        return [c for unit in before for c in self.receipts[unit].counts] + self.kept.counts

    def _units_used(self) -> list[int]:
        return list(range(self.kept_unit + 1)) if self.kept_unit >= 0 else list(self.receipts)

    def _recount(self) -> None:
        """Count documents by split again, once the threshold is known."""
        for unit, receipt in self.receipts.items():
            docs = self._open(unit).docs
            counts = count_documents(docs, lengths(docs), threshold=self.threshold)
            self.receipts[unit] = msgspec.structs.replace(receipt, counts=counts)

    def _cut_rules(self) -> CutRules:
        added = [i for i in (self.plan.bos_id, self.plan.eos_id) if i is not None]

        def count_bytes(ids: np.ndarray) -> int:
            return len(self.tokenizer.decode_bytes(ids[~np.isin(ids, added)]))

        return CutRules(self.threshold, count_bytes)

    def _open(self, unit: int) -> Part:
        return Part(self.journal.parts, self.receipts[unit], dtype=self.dtype)

    def _parts(self) -> Iterator[Part]:
        return (self._open(unit) for unit in sorted(self.receipts))


def _prepare_folder(output: Path) -> None:
    """Make the output folder, unless something else lives there."""
    if output.exists() and not output.is_dir():
        raise ConfigError(f"{output}: a file, expected a folder to write the store into")
    if output.is_dir() and any(output.iterdir()):
        if not (output / RUN_FOLDER).is_dir() and not (output / METADATA_NAME).is_file():
            raise ConfigError(
                f"{output}: not empty and not a store", hint="choose an empty or new folder"
            )
    Journal(output).create()


def _check_record(plan: RunPlan, journal: Journal) -> None:
    """Make sure that what is in the folder was begun with the same settings and input."""
    record = plan_record(plan)
    before = journal.read_record()
    if before is not None:
        check_same_run(before, record, output=journal.output)
    elif (journal.output / METADATA_NAME).exists():
        metadata = read_metadata(journal.output)
        changed = metadata.settings != record.settings
        if changed or metadata.tokenizer.fingerprint != record.fingerprint:
            raise ConfigError(
                f"{journal.output}: holds a store made with other settings",
                hint="choose another output folder",
            )
    else:
        journal.write_record(record)
