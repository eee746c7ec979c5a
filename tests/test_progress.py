from __future__ import annotations

import io
import itertools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill import progress
from tokenmill.errors import ConfigError
from tokenmill.progress import Event, Meter, count, duration, show_progress, silent

MEGABYTE = 1_000_000


class Clock:
    """A clock that goes on only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def event(done: int, *, total: int = 100 * MEGABYTE, stage: str = "tokenize", **more: Any) -> Event:
    return Event(stage=stage, done=done, total=total, **more)


# -- the meter


def test_rates_and_remaining_time_come_from_the_work_seen(clock: Clock):
    meter = Meter()
    meter.update(event(0))
    clock.now += 5
    assert meter.update(event(20 * MEGABYTE, num_tokens=5000)) == (4 * MEGABYTE, 1000, 20)


def test_work_of_an_earlier_run_is_not_credited(clock: Clock):
    meter = Meter()
    meter.update(event(80 * MEGABYTE, num_tokens=8000))
    clock.now += 5
    assert meter.update(event(90 * MEGABYTE, num_tokens=9000)) == (2 * MEGABYTE, 200, 5)


def test_a_new_stage_is_measured_from_its_start(clock: Clock):
    meter = Meter()
    meter.update(event(0))
    clock.now += 100
    assert meter.update(event(50, stage="assemble")) == (0, 0, None)
    clock.now += 1
    assert meter.update(event(60, total=60, stage="assemble")) == (10, 0, 0)


def test_nothing_is_known_while_no_time_has_passed(clock: Clock):
    meter = Meter()
    assert meter.update(event(0)) == (0, 0, None)
    assert meter.update(event(10)) == (0, 0, None)
    clock.now -= 1
    assert meter.update(event(20)) == (0, 0, None)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**15),
            st.integers(0, 10**15),
            st.integers(0, 10**15),
            st.floats(0, 1e9),
        )
    )
)
def test_no_sequence_of_events_breaks_the_meter_or_a_line(
    events: list[tuple[int, int, int, float]],
):
    with pytest.MonkeyPatch.context() as monkeypatch:
        clock = Clock(monkeypatch)
        meter = Meter()
        for done, total, num_tokens, seconds in events:
            clock.now += seconds
            given_event = event(done, total=total, num_tokens=num_tokens)
            byte_rate, token_rate, left = rates = meter.update(given_event)
            assert byte_rate >= 0
            assert token_rate >= 0
            assert left is None or left >= 0
            assert progress._plain_line(given_event, rates).startswith("tokenize: ")
            assert json.loads(progress._json_line(given_event, rates))["done"] == done


# -- numbers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (59.94, "59.9s"),
        (59.96, "1m00s"),
        (60, "1m00s"),
        (3599.9, "59m59s"),
        (3600, "1h00m"),
        (86399, "23h59m"),
        (86400, "1d00h"),
        (1e9, "11574d01h"),
    ],
)
def test_durations_read_well(seconds: float, text: str):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999.4, "999"),
        (999.5, "1.00k"),
        (9_994, "9.99k"),
        (99_950, "100k"),
        (999_499, "999k"),
        (999_500, "1.00M"),
        (-12_345, "-12.3k"),
        (1.5e13, "15.0T"),
        (2e18, "2.00E"),
    ],
)
def test_counts_have_three_digits(number: float, text: str):
    assert count(number) == text


# -- lines


def show(mode: str, events: Iterator[Event] | list[Event]) -> list[str]:
    stream = io.StringIO()
    with show_progress(mode, stream=stream) as report:
        for item in events:
            report(item)
    return stream.getvalue().splitlines()


def interrupt(mode: str, stream: TextIO) -> None:
    with show_progress(mode, stream=stream) as report:
        report(event(0))
        report(event(50 * MEGABYTE))
        raise KeyboardInterrupt


def ticking(clock: Clock, seconds: float, events: list[Event]) -> Iterator[Event]:
    for item in events:
        yield item
        clock.now += seconds


def test_a_plain_line_says_how_far_how_fast_and_how_long(clock: Clock):
    second = event(25 * MEGABYTE, num_documents=12_000, num_tokens=6_000_000, num_rejected=1234)
    assert show("plain", ticking(clock, 10, [event(0), second])) == [
        "tokenize: 0%, 0B of 100MB",
        "tokenize: 25%, 25.0MB of 100MB, 12.0k documents, 6.00M tokens, 2.50MB/s, "
        "600k tokens/s, 1,234 rejected, 30.0s left",
    ]


def test_work_without_a_known_end_shows_what_is_done():
    assert show("plain", [event(5000, total=0)]) == ["tokenize: 5.00kB"]


def test_a_hundred_percent_is_only_said_at_the_end():
    assert show("plain", [event(999_999, total=MEGABYTE)])[0].startswith("tokenize: 99%")
    assert show("plain", [event(2 * MEGABYTE, total=MEGABYTE)])[0].startswith("tokenize: 100%")


def test_many_events_make_few_lines(clock: Clock):
    events = [event(done, total=1000) for done in range(1000)]
    assert len(show("plain", ticking(clock, 0.125, events))) == 1 + 12 + 1
    assert len(show("json", ticking(clock, 0.125, events))) == 1 + 124 + 1


def test_many_events_at_the_end_make_one_line_and_the_last(clock: Clock):
    events = [event(10, total=10, num_tokens=n) for n in range(1, 100)]
    lines = show("plain", ticking(clock, 0.01, [event(0, total=10), *events]))
    assert [line.split(", ")[2] for line in lines[1:]] == ["1 tokens", "99 tokens"]


def test_the_last_event_is_shown_even_when_the_run_ends_early(clock: Clock):
    lines = show(
        "plain", ticking(clock, 0.1, [event(0, total=10), event(1, total=10), event(2, total=10)])
    )
    assert [line.split(",")[0] for line in lines] == ["tokenize: 0%", "tokenize: 20%"]


def test_the_last_event_is_shown_when_the_run_fails():
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        interrupt("plain", stream)
    assert "tokenize: 50%" in stream.getvalue().splitlines()[-1]


def test_the_last_event_of_a_stage_is_shown_before_the_next_stage():
    events = [event(n, total=9, stage=s) for s, n in itertools.product(("one", "two"), (1, 2, 3))]
    assert [line.partition(",")[0] for line in show("plain", events)] == [
        "one: 11%",
        "one: 33%",
        "two: 11%",
        "two: 33%",
    ]


@pytest.mark.parametrize("mode", ["plain", "json"])
def test_a_message_is_shown_at_once_and_starts_no_clock(clock: Clock, mode: str):
    message = Event(stage="tokenize", message="continuing: 8 of 10 units were done")
    events = [message, event(80 * MEGABYTE), event(90 * MEGABYTE), message]
    lines = show(mode, ticking(clock, 10, events))
    assert "continuing" in lines[0]
    assert ("1.00MB/s" if mode == "plain" else '"bytes_per_second":1000000,') in lines[2]
    assert len(lines) == 4


def test_json_lines_are_json(clock: Clock):
    odd = Event(stage="tokenize", message='a "quoted"\nname \udce9')
    lines = show("json", ticking(clock, 2, [odd, event(0), event(4 * MEGABYTE, num_tokens=8)]))
    assert [json.loads(line) for line in lines] == [
        {"stage": "tokenize", "message": 'a "quoted"\nname \\udce9'},
        {
            "stage": "tokenize",
            "done": 0,
            "total": 100 * MEGABYTE,
            "documents": 0,
            "tokens": 0,
            "rejected": 0,
            "bytes_per_second": 0,
            "tokens_per_second": 0,
            "seconds_left": None,
        },
        {
            "stage": "tokenize",
            "done": 4 * MEGABYTE,
            "total": 100 * MEGABYTE,
            "documents": 0,
            "tokens": 8,
            "rejected": 0,
            "bytes_per_second": 2 * MEGABYTE,
            "tokens_per_second": 4,
            "seconds_left": 48.0,
        },
    ]


# -- streams


def test_no_progress_is_silent():
    stream = io.StringIO()
    with show_progress("none", stream=stream) as report:
        report(event(1))
    assert report is silent
    assert stream.getvalue() == ""


def test_a_process_without_stderr_is_silent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", None)
    with show_progress() as report:
        report(event(1))


def test_stderr_is_the_default(capsys: pytest.CaptureFixture[str]):
    with show_progress() as report:
        report(event(0))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "tokenize: 0%, 0B of 100MB\n")


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match="progress is 'loud', expected one of auto, live, plain"):
        show_progress("loud").__enter__()


def unbuffered(descriptor: int) -> TextIO:
    return io.TextIOWrapper(io.FileIO(descriptor, "w"), write_through=True)  # pyright: ignore[reportArgumentType]


def test_a_reader_that_goes_away_does_not_stop_the_run():
    reader, writer = os.pipe()
    with unbuffered(writer) as stream, show_progress("plain", stream=stream) as report:
        report(event(0))
        os.close(reader)
        report(event(1, stage="two"))
        report(event(1, stage="three"))


def test_a_closed_stream_does_not_stop_the_run():
    stream = io.StringIO()
    with show_progress("plain", stream=stream) as report:
        stream.close()
        report(event(0))


def test_a_message_that_the_stream_cannot_encode_is_shown_all_the_same():
    raw = io.BytesIO()
    with show_progress("plain", stream=io.TextIOWrapper(raw, encoding="ascii")) as report:
        report(Event(stage="a", message="done · café"))
        assert raw.getvalue() == b"done \\xb7 caf\\xe9\n"


# -- live


class Terminal:
    """A pseudo terminal: what is written to `stream` can be read as text."""

    def __init__(self) -> None:
        self.master, slave = os.openpty()
        self.stream = unbuffered(slave)

    def text(self) -> str:
        os.set_blocking(self.master, False)
        found = b""
        try:
            while piece := os.read(self.master, 65536):
                found += piece
        except OSError:
            pass
        return found.decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    terminal = Terminal()
    yield terminal
    terminal.stream.close()
    with suppress(OSError):  # a test may have closed it
        os.close(terminal.master)


HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


def test_a_terminal_shows_a_bar_with_numbers(terminal: Terminal):
    with show_progress(stream=terminal.stream) as report:
        report(Event(stage="tokenize", message="continuing [bold]here[/]"))
        report(event(0))
        report(event(50 * MEGABYTE, num_tokens=1_230_000, num_rejected=7))
        print("a result")
    text = terminal.text()
    assert "continuing [bold]here[/]" in text
    assert "tokenize" in text
    assert "50%  1.23M tokens" in text
    assert "7 rejected" in text
    assert "a result" not in text
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)


def test_an_interrupt_gives_the_terminal_back(terminal: Terminal):
    with pytest.raises(KeyboardInterrupt):
        interrupt("auto", terminal.stream)
    text = terminal.text()
    assert text.rindex(SHOW_CURSOR) > text.rindex(HIDE_CURSOR)


def test_a_terminal_that_goes_away_does_not_stop_the_run(terminal: Terminal):
    with show_progress(stream=terminal.stream) as report:
        report(event(0))
        os.close(terminal.master)
        report(event(1))
        report(Event(stage="tokenize", message="still here"))


def test_a_terminal_that_can_only_print_gets_lines(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TERM", "dumb")
    with show_progress(stream=terminal.stream) as report:
        report(event(0))
    assert terminal.text() == "tokenize: 0%, 0B of 100MB\r\n"
