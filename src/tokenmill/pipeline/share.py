"""A share of a run: the parts of every n-th unit, made by a process among equals.

Shares need no driver and take no lock. Each plans the run by itself, which gives the same units
everywhere, and publishes receipts create-only, so that shares may overlap, repeat or be killed. The
plain command then makes what is missing, and the store.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import msgspec

from tokenmill.errors import BadDocumentError, ConfigError
from tokenmill.files import storage_error
from tokenmill.folder import Folder, open_folder
from tokenmill.pipeline.arrangement import arrange
from tokenmill.pipeline.journal import PROGRESS_SECONDS, Journal
from tokenmill.pipeline.parts import PARTS_FOLDER, Receipt, read_receipt, receipt_name
from tokenmill.pipeline.plan import (
    RECORD_NAME,
    RunPlan,
    check_same_run,
    chosen_tokenizer,
    make_plan,
    plan_record,
)
from tokenmill.pipeline.run import prepare_folder
from tokenmill.pipeline.settings import TokenizeSettings
from tokenmill.pipeline.share_state import SHARES_FOLDER, ShareState, write_state
from tokenmill.pipeline.unit import UnitTask, tokenize_unit
from tokenmill.pipeline.whereabouts import whereabouts
from tokenmill.progress import Event, Report, silent
from tokenmill.sources import Unit
from tokenmill.store import METADATA_NAME, RUN_FOLDER, write_tokenizer

_RECORD = f"{RUN_FOLDER}/{RECORD_NAME}"


@dataclass(frozen=True, slots=True)
class Share:
    """The units whose number leaves `index` when divided by `count`."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ConfigError(f"share is {self}, expected K/N with K from 0 to N-1")

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOutcome:
    """What a share did."""

    share: str
    num_units: int
    num_units_made: int
    """By this process; the others were there, or are not needed."""
    num_tokens: int
    num_documents: int
    seconds: float

    def text(self) -> str:
        """Return a line for people."""
        return (
            f"share {self.share}: {self.num_units_made:,} of {self.num_units:,} units made, "
            f"{self.num_tokens:,} tokens in {self.num_documents:,} documents"
        )


def parse_share(text: str) -> Share:
    """Read `K/N`.

    >>> parse_share("3/64")
    Share(index=3, count=64)
    """
    index, slash, count = text.partition("/")
    if not slash or not all(part.isascii() and part.isdecimal() for part in (index, count)):
        raise ConfigError(f"share is {text!r}, expected K/N, such as 0/64")
    return Share(int(index), int(count))


def tokenize_share(
    settings: TokenizeSettings, output: str, share: Share, *, report: Report = silent
) -> ShareOutcome:
    """Make the parts of a share that are not there yet, for the run that writes to `output`."""
    started = time.monotonic()
    folder = open_folder(output)
    try:
        plan = _join_run(settings, folder)
        made = ShareRun(plan, share, folder=folder, report=report)
        if folder.size(METADATA_NAME) is None:  # otherwise it is complete
            made.finish()
    except OSError as error:
        raise storage_error(error) from error
    return ShareOutcome(
        share=str(share),
        num_units=len(made.units),
        num_units_made=made.totals["made"],
        num_tokens=made.totals["tokens"],
        num_documents=made.totals["documents"],
        seconds=time.monotonic() - started,
    )


def _join_run(settings: TokenizeSettings, folder: Folder) -> RunPlan:
    """Begin the run, or make sure that it was begun with the same settings and input."""
    tokenizer = chosen_tokenizer(settings)
    plan = make_plan(settings, tokenizer)
    if folder.size(METADATA_NAME) is not None:
        return plan
    prepare_folder(folder)
    folder.make(SHARES_FOLDER)
    journal, record = Journal(folder), plan_record(plan)
    if journal.read_record() is None and folder.write_new(_RECORD, msgspec.json.encode(record)):
        journal.write_record(record)  # again, to survive a power loss
    begun = journal.read_record()
    assert begun is not None, "nobody removes a record"
    check_same_run(begun, record, output=folder.place)
    if folder.size(tokenizer.definition_name) != len(tokenizer.definition):
        write_tokenizer(folder, tokenizer.definition_name, data=tokenizer.definition)
    return plan


class ShareRun:
    """The work of one share; its state is what is in the folder, plus counters."""

    def __init__(self, plan: RunPlan, share: Share, *, folder: Folder, report: Report) -> None:
        self.plan, self.share, self.folder, self.report = plan, share, folder, report
        self.units = plan.units[share.index :: share.count]
        self.arrangement = arrange(plan.settings.workers, num_units=len(self.units))
        self.totals: Counter[str] = Counter()
        self._where = whereabouts()
        self._started = time.time()
        self._last_told = float("-inf")
        self._num_in_order = 0
        self._tokens_in_order = 0

    def finish(self) -> None:
        """Make every part that is missing."""
        state = "stopped"
        todo = list(self._look_around())
        self._report()
        self._tell("running", now=True)
        try:
            with closing(
                self.arrangement.engine().run(tokenize_unit, self._tasks(todo))
            ) as results:
                for receipt in results:
                    self.totals["made"] += 1
                    self._count(receipt)
                    self._check_rejects()
                    self._report()
                    self._tell("running")
            state = "done"
        finally:
            self._tell(state, now=True)

    def _look_around(self) -> Iterator[Unit]:
        """Count what is done of the share, and yield the units that are not."""
        there = self.folder.sizes(PARTS_FOLDER)
        for unit in self.units:
            if receipt_name(unit.index).removeprefix(f"{PARTS_FOLDER}/") in there:
                self._count(read_receipt(self.folder, unit.index))
            else:
                yield unit

    def _tasks(self, todo: list[Unit]) -> Iterator[UnitTask]:
        for unit in todo:
            if self._is_enough():
                return
            yield UnitTask(
                output=self.folder.place,
                unit=unit,
                fail_on_reject=self.plan.settings.on_error == "fail",
                num_threads=self.arrangement.threads_per_process,
            )

    def _is_enough(self) -> bool:
        """Tell whether units that are done, without a gap, have all tokens that are asked for."""
        limit = self.plan.settings.max_tokens
        if limit is None or self.plan.settings.needs_all_parts:
            return False
        while self._num_in_order < len(self.plan.units) and self._tokens_in_order < limit:
            try:
                receipt = read_receipt(self.folder, self._num_in_order)
            except FileNotFoundError:
                break
            self._tokens_in_order += receipt.num_tokens
            self._num_in_order += 1
        return self._tokens_in_order >= limit

    def _count(self, receipt: Receipt) -> None:
        self.totals["units"] += 1
        self.totals["tokens"] += receipt.num_tokens
        self.totals["documents"] += receipt.num_documents
        self.totals["rejected"] += receipt.num_rejected

    def _check_rejects(self) -> None:
        limit, found = self.plan.settings.max_errors, self.totals["rejected"]
        if limit is not None and found > limit:
            raise BadDocumentError(
                f"{found:,} broken documents in share {self.share} alone, "
                f"max_errors allows {limit:,}",
                hint="raise --max-errors to continue, or mend the input",
            )

    def _bytes(self, num_units: int) -> int:
        """Return about how much of the input some units are."""
        return round(self.plan.total_bytes / max(len(self.plan.units), 1) * num_units)

    def _report(self) -> None:
        event = Event(
            stage="tokenize",
            done=self._bytes(self.totals["units"]),
            total=self._bytes(len(self.units)),
            num_documents=self.totals["documents"],
            num_tokens=self.totals["tokens"],
            num_rejected=self.totals["rejected"],
        )
        self.report(event)

    def _tell(self, state: str, *, now: bool = False) -> None:
        """Leave how far it is where `tokenmill status` finds it."""
        clock = time.monotonic()
        if not now and clock - self._last_told < PROGRESS_SECONDS:
            return
        self._last_told = clock
        told = ShareState(
            share=self.share.index,
            num_shares=self.share.count,
            state=state,
            time=round(time.time(), 3),
            started=round(self._started, 3),
            num_units=len(self.units),
            num_units_done=self.totals["units"],
            num_units_made=self.totals["made"],
            bytes_made=self._bytes(self.totals["made"]),
            num_tokens=self.totals["tokens"],
            num_documents=self.totals["documents"],
            num_rejected=self.totals["rejected"],
            where=self._where,
        )
        write_state(self.folder, told)
