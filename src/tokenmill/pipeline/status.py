"""How far a run is, read from what it has on disk; works from any shell, for live and dead runs."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from tokenmill.errors import NotAStoreError
from tokenmill.folder import Folder, open_folder
from tokenmill.pipeline.journal import EVENTS_NAME, LOCK_NAME, Journal
from tokenmill.pipeline.share_state import LIVE_SECONDS, read_states
from tokenmill.pipeline.whereabouts import Whereabouts
from tokenmill.progress import count, duration
from tokenmill.store import METADATA_NAME, decode_metadata

_SHOWN_JOBS = 8


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run and how much of it is done."""

    output: str
    state: str
    """complete, running or stopped."""
    holder: str = ""
    """Which process works on it, when one does."""
    jobs: list[str] = []
    """The jobs of Slurm that work on it."""
    nodes: list[str] = []
    """Where they do."""
    num_shares: int = 0
    """Into how many shares the units are divided, if they are."""
    num_shares_running: int = 0
    num_shares_done: int = 0
    num_units: int = 0
    num_units_done: int = 0
    num_shards_done: int
    total_bytes: int
    num_tokens: int
    num_documents: int
    num_rejected: int
    bytes_per_second: float | None = None
    seconds_left: float | None = None
    last_event_seconds_ago: float | None = None

    def text(self) -> str:
        """Return the status as a few lines for people."""
        share = 100 * self.num_units_done / self.num_units if self.num_units else 100
        lines = [f"{self.output}: {self.state}" + (f" ({self.holder})" if self.holder else "")]
        if self.state != "complete":
            lines += [
                f"  units     {self.num_units_done:,} of {self.num_units:,} ({share:.0f}%)",
                f"  shards    {self.num_shards_done:,} written",
                *self._cluster_lines(),
            ]
        lines += [
            f"  tokens    {self.num_tokens:,} in {self.num_documents:,} documents",
            f"  rejected  {self.num_rejected:,}",
        ]
        if self.bytes_per_second and self.state == "running":
            left = "" if self.seconds_left is None else f", {duration(self.seconds_left)} left"
            lines.append(f"  rate      {count(self.bytes_per_second)}B/s{left}")
        if self.state == "stopped":
            ago = self.last_event_seconds_ago
            when = "" if ago is None else f" (last sign of life {duration(ago)} ago)"
            lines.append(f"  the same tokenize command again continues it{when}")
        return "\n".join(lines)

    def _cluster_lines(self) -> list[str]:
        lines: list[str] = []
        if self.num_shares:
            done, running = self.num_shares_done, self.num_shares_running
            lines.append(f"  shares    {done:,} of {self.num_shares:,} done, {running:,} running")
        if self.jobs:
            more = len(self.jobs) - _SHOWN_JOBS
            shown = ", ".join(self.jobs[:_SHOWN_JOBS]) + (f" and {more:,} more" if more > 0 else "")
            lines.append(f"  slurm     {shown} on {', '.join(self.nodes)}")
        if self.state == "running" and self.last_event_seconds_ago is not None and lines:
            lines.append(f"  heard of  {duration(self.last_event_seconds_ago)} ago")
        return lines


class _Logged(msgspec.Struct):
    """The fields of a logged event that matter here."""

    time: float
    event: str
    done: int = 0
    tokens: int = 0
    documents: int = 0
    rejected: int = 0
    where: Whereabouts | None = None


_EVENTS = msgspec.json.Decoder(_Logged)


def run_status(output: str | Path) -> Status:
    """Return the status of the run that writes, wrote or began to write `output`."""
    folder = open_folder(output)
    if folder.size(METADATA_NAME) is not None:
        return _complete(folder)
    journal = Journal(folder)
    record = journal.read_record()
    if record is None:
        raise NotAStoreError(
            f"{output}: no run was begun here", hint="`tokenmill tokenize … -o DIR` begins one"
        )
    shares = read_states(folder)
    driver = _Driver(_read_events(journal), folder.holder(LOCK_NAME))
    live = [share for share in shares if share.is_live]
    num_units_done, num_shards_done = journal.num_done()
    rate = driver.rate if driver.is_live else sum(s.bytes_per_second for s in live) or None
    left_bytes = record.total_bytes * (1 - num_units_done / max(record.num_units, 1))
    where = [driver.where] if driver.is_live and driver.where else [s.where for s in live]
    heard = max((*(s.time for s in shares), driver.heard), default=0.0)
    return Status(
        output=folder.place,
        state="running" if driver.is_live or live else "stopped",
        holder=driver.holder or "",
        jobs=sorted({w.job for w in where if w.job}, key=_job_order),
        nodes=sorted({w.nodes for w in where if w.nodes}),
        num_shares=max((s.num_shares for s in shares), default=0),
        num_shares_running=len(live),
        num_shares_done=sum(s.state == "done" for s in shares),
        num_units=record.num_units,
        num_units_done=num_units_done,
        num_shards_done=num_shards_done,
        total_bytes=record.total_bytes,
        num_tokens=max(driver.numbers.tokens, sum(s.num_tokens for s in shares)),
        num_documents=max(driver.numbers.documents, sum(s.num_documents for s in shares)),
        num_rejected=max(driver.numbers.rejected, sum(s.num_rejected for s in shares)),
        bytes_per_second=rate,
        seconds_left=left_bytes / rate if rate else None,
        last_event_seconds_ago=max(time.time() - heard, 0.0) if heard else None,
    )


class _Driver:
    """The process that has, or had, the whole run in hand, as its log shows it."""

    def __init__(self, events: list[_Logged], holder: str | None) -> None:
        self.holder = holder
        self.where = next((e.where for e in events if e.where is not None), None)
        self.heard = events[-1].time if events else 0.0
        progress = [event for event in events if event.event == "progress"]
        self.numbers = progress[-1] if progress else _Logged(time=0.0, event="progress")
        self.rate = _rate(progress)

    @property
    def is_live(self) -> bool:
        """Whether it works: it holds the lock, or is elsewhere and spoke a short while ago.

        Not every network file system shows a lock to other machines.
        """
        if self.holder is not None or self.where is None:
            return self.holder is not None
        elsewhere = self.where.seems_alive() is None
        return elsewhere and time.time() - self.heard < LIVE_SECONDS


def _job_order(job: str) -> list[int]:
    return [int(number) for number in job.split("_") if number.isdecimal()]


def _complete(folder: Folder) -> Status:
    metadata = decode_metadata(folder.read(METADATA_NAME), folder.where(METADATA_NAME))
    return Status(
        output=folder.place,
        state="complete",
        num_shards_done=sum(len(split.shards) for split in metadata.splits.values()),
        total_bytes=sum(source.size for source in metadata.sources),
        num_tokens=metadata.num_tokens,
        num_documents=metadata.num_documents,
        num_rejected=metadata.counts.num_rejected,
    )


def _read_events(journal: Journal) -> list[_Logged]:
    """Return the events of the latest attempt; a line that a crash cut short is passed over."""
    try:
        lines = journal.folder.read(EVENTS_NAME).splitlines()
    except FileNotFoundError:
        return []
    events: list[_Logged] = []
    for line in lines:
        try:
            event = _EVENTS.decode(line)
        except msgspec.DecodeError:
            continue
        events = [event] if event.event == "start" else [*events[-200:], event]
    return events


def _rate(progress: list[_Logged]) -> float | None:
    if not progress or progress[-1].time <= progress[0].time:
        return None
    return (progress[-1].done - progress[0].done) / (progress[-1].time - progress[0].time)
