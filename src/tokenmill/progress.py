"""One stream of progress events, and three ways to show it: live terminal, plain lines, JSON lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

import msgspec

PLAIN_SECONDS = 10.0
JSON_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """How far a job is. `done` and `total` count bytes of input."""

    stage: str
    done: int = 0
    total: int = 0
    num_documents: int = 0
    num_tokens: int = 0
    num_rejected: int = 0
    message: str = ""
    """Something to tell the user once; the numbers are not shown with it."""


Report = Callable[[Event], None]


def silent(event: Event) -> None:
    """Report nothing."""


@contextmanager
def show_progress(mode: str = "auto", *, stream: TextIO | None = None) -> Generator[Report]:
    """Yield a function to report events to; `mode` is auto, plain, json or none."""
    stream = stream or sys.stderr
    if mode == "auto":
        mode = "live" if stream.isatty() else "plain"
    if mode == "live":
        with _live(stream) as report:
            yield report
    elif mode == "plain":
        yield _Lines(stream, seconds=PLAIN_SECONDS, render=_plain_line)
    elif mode == "json":
        yield _Lines(stream, seconds=JSON_SECONDS, render=_json_line)
    else:
        yield silent


class Meter:
    """Rate and remaining time of a stage, counted from its first event so that resumed work is not credited."""

    def __init__(self) -> None:
        self._stage = ""
        self._first = Event(stage="")
        self._started = 0.0

    def update(self, event: Event) -> tuple[float, float, float | None]:
        """Return input bytes per second, tokens per second and seconds left (None: not yet known)."""
        now = time.monotonic()
        if event.stage != self._stage:
            self._stage, self._first, self._started = event.stage, event, now
        elapsed = max(now - self._started, 1e-9)
        byte_rate = (event.done - self._first.done) / elapsed
        token_rate = (event.num_tokens - self._first.num_tokens) / elapsed
        left = (event.total - event.done) / byte_rate if byte_rate > 0 else None
        return byte_rate, token_rate, left


def duration(seconds: float) -> str:
    """Write a time span the way people read it.

    >>> duration(3.21), duration(75), duration(7384)
    ('3.2s', '1m15s', '2h03m')
    """
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def count(number: float) -> str:
    """Write a large number with three digits and a letter.

    >>> count(999), count(12_345_678), count(3_000_000_000)
    ('999', '12.3M', '3.00G')
    """
    for letter in ("", "k", "M", "G", "T"):
        if abs(number) < 999.5 or letter == "T":
            break
        number /= 1000
    if not letter:
        return f"{number:.0f}"
    digits = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    return f"{number:.{digits}f}{letter}"


class _Lines:
    """A line now and then: the first event, every few seconds, each message, and the end of a stage."""

    def __init__(self, stream: TextIO, *, seconds: float, render: Callable[..., str]) -> None:
        self._stream = stream
        self._seconds = seconds
        self._render = render
        self._meter = Meter()
        self._last = float("-inf")

    def __call__(self, event: Event) -> None:
        rates = self._meter.update(event)
        now = time.monotonic()
        finished = event.total and event.done >= event.total
        if event.message or finished or now - self._last >= self._seconds:
            self._last = now
            print(self._render(event, *rates), file=self._stream, flush=True)


def _plain_line(event: Event, byte_rate: float, token_rate: float, left: float | None) -> str:
    if event.message:
        return event.message
    share = 100 * event.done / event.total if event.total else 100
    parts = [
        f"{event.stage}: {share:.0f}%",
        f"{count(event.done)}B of {count(event.total)}B",
        f"{count(event.num_documents)} documents",
        f"{count(event.num_tokens)} tokens",
        f"{byte_rate / 1e6:.0f} MB/s",
        f"{token_rate / 1e6:.1f}M tokens/s",
    ]
    if event.num_rejected:
        parts.append(f"{event.num_rejected:,} rejected")
    if left is not None and event.done < event.total:
        parts.append(f"{duration(left)} left")
    return ", ".join(parts)


def _json_line(event: Event, byte_rate: float, token_rate: float, left: float | None) -> str:
    fields = {
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
    if event.message:
        fields = {"stage": event.stage, "message": event.message}
    return msgspec.json.encode(fields).decode()


@contextmanager
def _live(stream: TextIO) -> Generator[Report]:
    from rich.console import (
        Console,
    )  # a terminal is there: only then is rich worth its start-up time
    from rich.progress import BarColumn, Progress, TextColumn

    meter = Meter()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[numbers]}"))
    with Progress(*columns, console=Console(file=stream), refresh_per_second=8) as progress:
        bars: dict[str, int] = {}

        def report(event: Event) -> None:
            if event.message:
                progress.console.print(event.message, markup=False, highlight=False)
                return
            byte_rate, token_rate, left = meter.update(event)
            if event.stage not in bars:
                bars[event.stage] = progress.add_task(event.stage, numbers="")
            numbers = f"{count(event.num_tokens)} tokens  {byte_rate / 1e6:.0f} MB/s"
            if left is not None and event.done < event.total:
                numbers += f"  {duration(left)} left"
            if event.num_rejected:
                numbers += f"  {event.num_rejected:,} rejected"
            bar = bars[event.stage]
            progress.update(
                bar,  # pyright: ignore[reportArgumentType]
                completed=event.done,
                total=event.total or 1,
                numbers=numbers,
            )

        yield report
