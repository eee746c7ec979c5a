"""A tokenize run: units to parts, parts to shards, shards to a store; it can always continue."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tokenmill.config import resolve
from tokenmill.engine import Engine, LocalEngine
from tokenmill.errors import BadDocumentError, ConfigError
from tokenmill.files import storage_error
from tokenmill.folder import Folder, open_folder
from tokenmill.pipeline.arrangement import arrange
from tokenmill.pipeline.assemble import ShardTask
from tokenmill.pipeline.cluster_engine import Opening, engine_on, opening_cluster
from tokenmill.pipeline.commit import Made, commit
from tokenmill.pipeline.context import RunContext, enter_run, leave_run
from tokenmill.pipeline.journal import LOCK_NAME, FinishedShard, Journal
from tokenmill.pipeline.layout import SPLITS, ShardLayout, Stream, split_tokens
from tokenmill.pipeline.limit import (
    CutRules,
    Kept,
    keep_of_part,
    keep_shuffled,
    smallest_hashes_threshold,
)
from tokenmill.pipeline.order import split_threshold
from tokenmill.pipeline.parts import Part, Receipt, SourceCount, count_documents, lengths
from tokenmill.pipeline.plan import (
    RunPlan,
    check_same_run,
    chosen_tokenizer,
    make_plan,
    plan_record,
)
from tokenmill.pipeline.resume import recover
from tokenmill.pipeline.settings import TokenizeSettings
from tokenmill.pipeline.shuffled import ShuffledShardTask, bucket_tokens, shuffled_tasks
from tokenmill.pipeline.unit import UnitTask
from tokenmill.pipeline.whereabouts import whereabouts
from tokenmill.pipeline.work import Task, work
from tokenmill.progress import Event, Report, silent
from tokenmill.store import (
    METADATA_NAME,
    RUN_FOLDER,
    Metadata,
    Store,
    decode_metadata,
    open_store,
    write_tokenizer,
)
from tokenmill.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    metadata: Metadata
    was_complete: bool
    seconds: float


def tokenize(
    sources: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    report: Report = silent,
    **settings: Any,
) -> Store:
    """Tokenize `sources` into the folder or s3:// prefix `output` and open the store.

    `settings` are the fields of `TokenizeSettings`: tokenizer, val_ratio, shard_tokens and so on.
    Calling it again continues an interrupted run; on a complete one it only opens the store.
    """
    several = [sources] if isinstance(sources, str | Path) else list(sources)
    layer = {**settings, "sources": [str(source) for source in several]}
    tokenize_corpus(resolve(TokenizeSettings, layer), output, report=report)
    return open_store(output)


def tokenize_corpus(
    settings: TokenizeSettings, output: str | Path, *, report: Report = silent
) -> Outcome:
    """Tokenize into the folder `output`, or continue where an earlier run stopped."""
    with opening_cluster(settings, work) as cluster:
        return _tokenize(settings, output, report=report, cluster=cluster)


def _tokenize(
    settings: TokenizeSettings, output: str | Path, *, report: Report, cluster: Opening | None
) -> Outcome:
    started = time.monotonic()
    tokenizer = chosen_tokenizer(settings)
    plan = make_plan(settings, tokenizer)
    folder = open_folder(output)
    journal = Journal(folder)
    try:
        prepare_folder(folder)
        with folder.lock(LOCK_NAME):
            _check_record(plan, journal)
            if folder.size(METADATA_NAME) is not None:
                metadata = _read_metadata(folder)
                journal.finish()
                return Outcome(metadata, True, time.monotonic() - started)
            metadata = _work(plan, tokenizer, journal=journal, report=report, cluster=cluster)
    except OSError as error:
        raise storage_error(error) from error
    return Outcome(metadata, False, time.monotonic() - started)


def _work(
    plan: RunPlan,
    tokenizer: Tokenizer,
    *,
    journal: Journal,
    report: Report,
    cluster: Opening | None,
) -> Metadata:
    write_tokenizer(journal.folder, tokenizer.definition_name, data=tokenizer.definition)
    context = RunContext(
        folder=journal.folder,
        settings=plan.settings,
        files=plan.files,
        tokenizer=tokenizer,
        dtype=np.dtype(plan.dtype),
        bos_id=plan.bos_id,
        eos_id=plan.eos_id,
    )
    enter_run(context)
    try:
        engine = None if cluster is None else engine_on(cluster, plan.settings, journal.folder)
        return Run(plan, context, journal=journal, report=report, engine=engine).finish()
    finally:
        leave_run(journal.folder.place)


class Run:
    """The driver of a run; its state is what is on disk, plus counters."""

    def __init__(
        self,
        plan: RunPlan,
        context: RunContext,
        *,
        journal: Journal,
        report: Report,
        engine: Engine | None = None,
    ) -> None:
        self.plan, self.context, self.journal, self.report = plan, context, journal, report
        self.cluster = engine
        self.settings = plan.settings
        self.output = journal.folder.place
        self.arrangement = arrange(plan.settings.workers, num_units=len(plan.units))
        self.threshold = split_threshold(plan.settings.val_ratio)
        self.receipts: dict[int, Receipt] = {}
        self.shards: dict[tuple[str, int], FinishedShard] = {}
        self.totals: Counter[str] = Counter()
        self.streams = {split: Stream(split) for split in SPLITS}
        self.num_in_order = 0  # units finished without a gap
        self.tokens_in_order = 0
        self.in_work: dict[tuple[str, int], ShardLayout] = {}
        self.num_users: Counter[int] = Counter()  # shards in work, for each unit
        self.total_bytes = plan.total_bytes
        self.kept: Kept | None = None  # set once max_tokens is reached
        self.kept_unit = -1

    def finish(self) -> Metadata:
        """Do what is left to do and return the metadata of the complete store."""
        self._resume()
        units, workers = len(self.plan.units), self.arrangement.workers
        self.journal.log(event="start", workers=workers, units=units, where=whereabouts())
        self._work(self._units_and_shards())
        if self.settings.val_documents:
            self._choose_val()
        if self.settings.shuffle is None:
            self._work(self._ready_shards(complete=True))
        else:
            self._work(self._shuffled_shards())
        metadata = self._commit()
        self.journal.log(event="complete", digest=metadata.digest)
        self.journal.finish()
        return metadata

    def _resume(self) -> None:
        engine = self.cluster or LocalEngine(self.arrangement.workers)
        receipts, self.shards = recover(self.plan, self.journal, engine=engine)
        for receipt in receipts.values():
            self._keep(receipt)
        if self.receipts:
            done, total = len(self.receipts), len(self.plan.units)
            message = f"continuing: {done:,} of {total:,} units were done"
            self.report(Event(stage="tokenize", message=message))
        self._report_units()

    def _work(self, tasks: Iterator[Task]) -> None:
        """Run tasks as they come and note what they made."""
        engine = self.cluster or self.arrangement.engine()
        results = engine.run(work, tasks)
        try:
            for made in results:
                self.journal.folder.check_lock(LOCK_NAME)
                if isinstance(made, Receipt):
                    self._finish_unit(made)
                else:
                    self._finish_shard(made)
        finally:
            results.close()

    def _units_and_shards(self) -> Iterator[Task]:
        """Yield units that have no part yet, and shards as soon as their tokens are all there."""
        for unit in self.plan.units:
            if not self.settings.needs_all_parts:
                yield from self._ready_shards(complete=False)
                if self.kept is not None:
                    return
            if unit.index not in self.receipts:
                yield UnitTask(
                    output=self.output,
                    unit=unit,
                    fail_on_reject=self.settings.on_error == "fail",
                    num_threads=self._threads_of_a_task(),
                )

    def _threads_of_a_task(self) -> int:
        """Return how many encoder threads a process has; a task on a cluster has one core."""
        return 1 if self.cluster is not None else self.arrangement.threads_per_process

    # -- units to parts

    def _finish_unit(self, receipt: Receipt) -> None:
        self._keep(receipt)
        self._check_rejects()
        self._report_units()

    def _follow_units(self) -> None:
        """Lay out the tokens of units that are finished without a gap, up to max_tokens."""
        limit = self.settings.max_tokens
        while self.kept is None and self.num_in_order in self.receipts:
            receipt = self.receipts[self.num_in_order]
            counts = receipt.counts
            left = None if limit is None else limit - self.tokens_in_order
            if left is not None and receipt.num_tokens >= left:
                part, rules = self.context.part(receipt.unit), self._cut_rules()
                self.kept = keep_of_part(part, limit=left, rules=rules)
                self.kept_unit = receipt.unit
                counts = self.kept.counts
            for split, stream in self.streams.items():
                stream.extend(receipt.unit, split_tokens(counts, split))
            self.tokens_in_order += receipt.num_tokens
            self.num_in_order += 1

    def _keep(self, receipt: Receipt) -> None:
        """Remember and count a finished unit; checksums of its pieces are read where needed."""
        self.receipts[receipt.unit] = msgspec.structs.replace(receipt, pieces=[], runs=[])
        self.totals["documents"] += receipt.num_documents
        self.totals["tokens"] += receipt.num_tokens
        self.totals["rejected"] += receipt.num_rejected

    def _check_rejects(self) -> None:
        limit, found = self.settings.max_errors, self.totals["rejected"]
        if limit is not None and found > limit:
            raise BadDocumentError(
                f"{found:,} broken documents so far, max_errors allows {limit:,}",
                hint="raise --max-errors to continue, or mend the input",
            )

    def _report_units(self) -> None:
        per_unit = self.total_bytes / max(len(self.plan.units), 1)
        event = Event(
            stage="tokenize",
            done=round(per_unit * len(self.receipts)),
            total=self.total_bytes,
            num_documents=self.totals["documents"],
            num_tokens=self.totals["tokens"],
            num_rejected=self.totals["rejected"],
        )
        self.report(event)
        self.journal.log_progress(event)

    # -- parts to shards

    def _ready_shards(self, *, complete: bool) -> Iterator[ShardTask]:
        """Yield shards whose tokens are all there and that are not on disk yet."""
        self._follow_units()
        for stream in self.streams.values():
            for layout in stream.take_shards(self.settings.shard_tokens, complete=complete):
                if (layout.split, layout.index) not in self.shards:
                    self.in_work[layout.split, layout.index] = layout
                    self.num_users.update(slot.unit for slot in layout.slots)
                    yield ShardTask(self.output, self.threshold, layout)

    def _finish_shard(self, shard: FinishedShard) -> None:
        """Note a shard, and remove the parts that only it needed: bounds the disk in use."""
        key = shard.split, shard.index
        self.shards[key] = shard
        layout = self.in_work.pop(key, None)
        if layout is None:
            return
        units = [slot.unit for slot in layout.slots]
        self.num_users.subtract(units)
        if self.settings.max_tokens is not None:
            return  # which part a limit falls into is found again after a crash
        waiting = {slot.unit for stream in self.streams.values() for slot in stream.slots}
        done = [unit for unit in units if not self.num_users[unit] and unit not in waiting]
        self.journal.drop_parts(self.receipts[unit] for unit in done)

    def _shuffled_shards(self) -> Iterator[ShuffledShardTask]:
        """Yield the shards of a shuffled store that are not on disk yet."""
        limit = self.settings.max_tokens
        if limit is not None and self.totals["tokens"] >= limit:
            self.kept = keep_shuffled(self._parts, limit=limit, rules=self._cut_rules())
        for split in SPLITS:
            whole = ShuffledShardTask(
                output=self.output,
                threshold=self.threshold,
                split=split,
                num_tokens=split_tokens(self._source_counts(), split),
                num_units=len(self.plan.units),
            )
            totals = bucket_tokens(self._parts(), split=split, threshold=self.threshold)
            for task in shuffled_tasks(whole, totals, shard_tokens=self.settings.shard_tokens):
                if (task.split, task.index) not in self.shards:
                    yield task

    def _choose_val(self) -> None:
        """Find the content hash that gives val its number of documents, and count by it."""
        wanted = self.settings.val_documents
        found = smallest_hashes_threshold(self._parts(), num_documents=wanted)
        if found is None:
            total = self.totals["documents"]
            raise ConfigError(f"val_documents is {wanted:,}, the input has {total:,} documents")
        self.threshold = found
        for part in self._parts():
            counts = count_documents(part.docs, lengths(part.docs), threshold=found)
            unit = part.receipt.unit
            self.receipts[unit] = msgspec.structs.replace(self.receipts[unit], counts=counts)

    # -- shards to store

    def _commit(self) -> Metadata:
        last = self.kept_unit if self.kept_unit >= 0 else len(self.plan.units) - 1
        return commit(
            self.plan,
            self.context.tokenizer,
            journal=self.journal,
            made=Made(
                receipts=[self.receipts[unit] for unit in range(last + 1)],
                counts=self._source_counts(),
                shards=self.shards,
                kept=self.kept,
            ),
        )

    def _source_counts(self) -> list[SourceCount]:
        """Return what the store holds of each source."""
        if self.kept is None:
            return [count for receipt in self.receipts.values() for count in receipt.counts]
        before = range(max(self.kept_unit, 0))  # of a shuffled run, `kept` counts everything
        return [c for unit in before for c in self.receipts[unit].counts] + self.kept.counts

    def _cut_rules(self) -> CutRules:
        added = [i for i in (self.plan.bos_id, self.plan.eos_id) if i is not None]

        def count_bytes(ids: np.ndarray) -> int:
            return len(self.context.tokenizer.decode_bytes(ids[~np.isin(ids, added)].tolist()))

        return CutRules(self.threshold, count_bytes)

    def _parts(self) -> Iterator[Part]:
        return self.context.parts(sorted(self.receipts))


def prepare_folder(folder: Folder) -> None:
    """Make the output folder, unless something else lives there."""
    try:
        is_used = folder.holds("")  # first: another process may begin the same run right now
    except NotADirectoryError:
        raise ConfigError(
            f"{folder.place}: a file, expected a folder to write the store into"
        ) from None
    ours = folder.holds(RUN_FOLDER) or folder.size(METADATA_NAME) is not None
    if is_used and not ours:
        raise ConfigError(
            f"{folder.place}: not empty and not a store", hint="choose an empty or new folder"
        )
    Journal(folder).create()


def _read_metadata(folder: Folder) -> Metadata:
    return decode_metadata(folder.read(METADATA_NAME), folder.where(METADATA_NAME))


def _check_record(plan: RunPlan, journal: Journal) -> None:
    """Make sure that what is in the folder was begun with the same settings and input."""
    record = plan_record(plan)
    before = journal.read_record()
    if before is not None:
        check_same_run(before, record, output=journal.folder.place)
    elif journal.folder.size(METADATA_NAME) is not None:
        metadata = _read_metadata(journal.folder)
        changed = metadata.settings != record.settings
        if changed or metadata.tokenizer.fingerprint != record.fingerprint:
            raise ConfigError(
                f"{journal.folder.place}: holds a store made with other settings",
                hint="choose another output folder",
            )
    else:
        journal.write_record(record)
