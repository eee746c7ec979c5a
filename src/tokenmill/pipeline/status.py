"""How far a run is, read from what it has on disk; works from any shell, for live and dead runs."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from tokenmill.errors import NotAStoreError
from tokenmill.folder import Folder, open_folder
from tokenmill.pipeline.journal import EVENTS_NAME, LOCK_NAME, Journal
from tokenmill.progress import count, duration
from tokenmill.store import METADATA_NAME, decode_metadata


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a run and how much of it is done."""

    output: str
    state: str
    """complete, running or stopped."""
    holder: str = ""
    """Which process works on it, when one does."""
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


class _Logged(msgspec.Struct):
    """The fields of a logged event that matter here."""

    time: float
    event: str
    done: int = 0
    tokens: int = 0
    documents: int = 0
    rejected: int = 0


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
    events = _read_events(journal)
    holder = folder.holder(LOCK_NAME)
    rate = _rate(events) if holder is not None else None
    last = events[-1] if events else None
    numbers = next((e for e in reversed(events) if e.event == "progress"), None)
    num_units_done, num_shards_done = journal.num_done()
    left = (record.total_bytes - numbers.done) / rate if rate and numbers else None
    return Status(
        output=folder.place,
        state="running" if holder is not None else "stopped",
        holder=holder or "",
        num_units=record.num_units,
        num_units_done=num_units_done,
        num_shards_done=num_shards_done,
        total_bytes=record.total_bytes,
        num_tokens=numbers.tokens if numbers else 0,
        num_documents=numbers.documents if numbers else 0,
        num_rejected=numbers.rejected if numbers else 0,
        bytes_per_second=rate,
        seconds_left=left,
        last_event_seconds_ago=None if last is None else max(time.time() - last.time, 0.0),
    )


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
            event = msgspec.json.decode(line, type=_Logged)
        except msgspec.DecodeError:
            continue
        events = [event] if event.event == "start" else [*events[-200:], event]
    return events


def _rate(events: list[_Logged]) -> float | None:
    progress = [event for event in events if event.event == "progress"]
    if not progress or progress[-1].time <= progress[0].time:
        return None
    return (progress[-1].done - progress[0].done) / (progress[-1].time - progress[0].time)
