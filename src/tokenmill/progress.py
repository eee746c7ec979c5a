"""One stream of progress events, and three ways to show it: live, plain lines, JSON lines."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO, cast

import msgspec

from tokenmill.errors import ConfigError

MODES = ("auto", "live", "plain", "json", "none")
PLAIN_SECONDS = 10.0
JSON_SECONDS = 1.0
REFRESHES_PER_SECOND = 8
_MINUTE = 60
_THREE_DIGITS = 999.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """How far a job is. `done` and `total` count bytes of input, or what `unit` says."""

    stage: str
    done: int = 0
    total: int = 0
    num_documents: int = 0
    num_tokens: int = 0
    num_rejected: int = 0
    unit: str = "B"
    note: str = ""
    """What else is to be said with the numbers."""
    message: str = ""
    """Something to tell the user once; the numbers are not shown with it."""


Report = Callable[[Event], None]
Rates = tuple[float, float, float | None]
"""Bytes per second, tokens per second, seconds left (None: not yet known)."""


def silent(event: Event) -> None:
    """Report nothing."""


@contextmanager
def show_progress(mode: str = "auto", *, stream: TextIO | None = None) -> Generator[Report]:
    """Yield a function to report events to, which shows them on `stream`, by default stderr.

    `mode` auto is live on a terminal and plain lines elsewhere. The last event is always shown. A
    stream whose reader is gone falls silent: showing progress never stops a run.
    """
    if mode not in MODES:
        raise ConfigError(f"progress is {mode!r}, expected one of {', '.join(MODES)}")
    target = sys.stderr if stream is None else stream
    if mode == "none" or target is None:  # a process without a console has no stderr
        yield silent
        return
    if mode == "auto":
        is_live = target.isatty() and os.environ.get("TERM") != "dumb"
        mode = "live" if is_live else "plain"
    forgiving = cast("TextIO", _Forgiving(target))
    if mode == "live":
        with _live(forgiving) as report:
            yield report
        return
    if mode == "json":
        lines = _Lines(forgiving, seconds=JSON_SECONDS, render=_json_line)
    else:
        lines = _Lines(forgiving, seconds=PLAIN_SECONDS, render=_plain_line)
    try:
        yield lines
    finally:
        lines.close()


class Meter:
    """Rate and remaining time of a stage, from its first event: resumed work is not credited."""

    def __init__(self) -> None:
        self._first = Event(stage="")
        self._started = 0.0

    def update(self, event: Event) -> Rates:
        """Return bytes per second, tokens per second and seconds left (None: not yet known)."""
        now = time.monotonic()
        if event.stage != self._first.stage or event.done < self._first.done:
            self._first, self._started = event, now
        elapsed = now - self._started
        if elapsed <= 0:
            return 0.0, 0.0, None
        byte_rate = (event.done - self._first.done) / elapsed
        token_rate = max(event.num_tokens - self._first.num_tokens, 0) / elapsed
        left = max(event.total - event.done, 0) / byte_rate if byte_rate > 0 else None
        return byte_rate, token_rate, left


def duration(seconds: float) -> str:
    """Write a time span the way people read it.

    >>> duration(3.21), duration(75), duration(7384), duration(100 * 3600)
    ('3.2s', '1m15s', '2h03m', '4d04h')
    """
    if round(seconds, 1) < _MINUTE:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(max(int(seconds), _MINUTE), _MINUTE)
    hours, minutes = divmod(minutes, 60)
    days, hours_of_day = divmod(hours, 24)
    if days:
        return f"{days}d{hours_of_day:02d}h"
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def count(number: float) -> str:
    """Write a large number with three digits and a letter.

    >>> count(999), count(12_345_678), count(3_000_000_000)
    ('999', '12.3M', '3.00G')
    """
    for letter in ("", "k", "M", "G", "T", "P", "E"):
        if abs(number) < _THREE_DIGITS or letter == "E":
            break
        number /= 1000
    return f"{number:#.3g}".rstrip(".") + letter if letter else f"{number:.0f}"


class _Forgiving:
    """A text stream that falls silent when its reader is gone, and writes what it cannot encode."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_gone = False

    def write(self, text: str) -> int:
        try:
            self._try(self._stream.write, text)
        except UnicodeEncodeError:
            self._try(self._stream.write, text.encode("ascii", "backslashreplace").decode())
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, function: Callable[..., object], *arguments: str) -> None:
        if self._is_gone:
            return
        try:
            function(*arguments)
        except UnicodeEncodeError:
            raise
        except (OSError, ValueError):  # a pipe or terminal that was closed; a file that was
            self._is_gone = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Lines:
    """A line now and then: for a stage's first, last and full event, and every few seconds."""

    def __init__(
        self, stream: TextIO, *, seconds: float, render: Callable[[Event, Rates], str]
    ) -> None:
        self._stream = stream
        self._seconds = seconds
        self._render = render
        self._meter = Meter()
        self._stage: str | None = None
        self._shown_at = 0.0
        self._is_full = False
        self._held: str = ""

    def __call__(self, event: Event) -> None:
        if event.message:  # it says nothing about how far the stage is
            self._write(self._render(event, (0.0, 0.0, None)))
            return
        now = time.monotonic()
        is_new = event.stage != self._stage
        if is_new:
            self.close()
            self._stage, self._is_full = event.stage, False
        gets_full = not self._is_full and 0 < event.total <= event.done
        self._is_full |= gets_full
        self._held = self._render(event, self._meter.update(event))
        if is_new or gets_full or now - self._shown_at >= self._seconds:
            self._shown_at = now
            self.close()

    def close(self) -> None:
        """Show the last event, if it was not shown."""
        if self._held:
            self._write(self._held)
            self._held = ""

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()


def _plain_line(event: Event, rates: Rates) -> str:
    if event.message:
        return event.message
    byte_rate, token_rate, left = rates
    unit = event.unit if event.unit == "B" else f" {event.unit}"
    parts = [f"{count(event.done)}{unit}"]
    if event.total:
        done = f"{count(event.done)}{unit if unit == 'B' else ''}"
        parts = [_percent(event), f"{done} of {count(event.total)}{unit}"]
    if event.note:
        parts.append(event.note)
    if event.num_documents:
        parts.append(f"{count(event.num_documents)} documents")
    if event.num_tokens:
        parts.append(f"{count(event.num_tokens)} tokens")
    if byte_rate and unit == "B":
        parts.append(f"{count(byte_rate)}B/s")
    if token_rate:
        parts.append(f"{count(token_rate)} tokens/s")
    return f"{event.stage}: {', '.join(parts + _rest(event, left))}"


def _percent(event: Event) -> str:
    return f"{min(100 * event.done // event.total, 100)}%" if event.total else ""


def _rest(event: Event, left: float | None) -> list[str]:
    """Return what is only said when there is something to say."""
    parts = [f"{event.num_rejected:,} rejected"] if event.num_rejected else []
    if left is not None and event.done < event.total:
        parts.append(f"{duration(left)} left")
    return parts


def _json_line(event: Event, rates: Rates) -> str:
    byte_rate, token_rate, left = rates
    fields: dict[str, Any] = {
        "stage": event.stage,
        "done": event.done,
        "total": event.total,
        "documents": event.num_documents,
        "tokens": event.num_tokens,
        "rejected": event.num_rejected,
        "bytes_per_second": round(byte_rate),
        "tokens_per_second": round(token_rate),
        "seconds_left": None if left is None else round(left, 1),
    }
    if event.unit != "B":
        fields[f"{event.unit}_per_second"] = fields.pop("bytes_per_second")
        fields["note"] = event.note
    if event.message:
        text = event.message.encode(errors="backslashreplace").decode()  # file names can be odd
        fields = {"stage": event.stage, "message": text}
    return msgspec.json.encode(fields).decode()


@contextmanager
def _live(stream: TextIO) -> Generator[Report]:
    # A terminal is there: only then is rich worth the time that it takes to load.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn

    meter = Meter()
    bars: dict[str, TaskID] = {}
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[numbers]}", markup=False),
        console=Console(file=stream),
        expand=True,
        redirect_stdout=False,  # results that are printed meanwhile are not progress
        refresh_per_second=REFRESHES_PER_SECOND,
    )

    def report(event: Event) -> None:
        if event.message:
            progress.console.print(event.message, markup=False, highlight=False)
            return
        byte_rate, token_rate, left = meter.update(event)
        numbers = [_percent(event), f"{count(event.num_tokens)} tokens"]
        if event.unit == "B":
            numbers.append(f"{count(byte_rate)}B/s")
        else:
            numbers += [event.note, f"{count(token_rate)} tokens/s"]
        if event.stage not in bars:
            bars[event.stage] = progress.add_task(event.stage, numbers="")
        progress.update(
            bars[event.stage],
            completed=event.done,
            total=event.total or None,
            numbers="  ".join(numbers + _rest(event, left)),
        )

    with progress:
        yield report
