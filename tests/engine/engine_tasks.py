"""Functions for engines to run; worker processes import them from here by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from tokenmill.engine import check_stop
from tokenmill.errors import ConfigError

WAIT_SECONDS = 30.0


class Task(msgspec.Struct, frozen=True):
    number: int
    folder: str = ""

    def mark(self, what: str) -> Path:
        """Return the file by which a task tells the test, in whatever process, where it is."""
        return Path(self.folder) / f"{what}-{self.number}"

    def tell(self, what: str) -> None:
        """Make the file, with the number of this process in it."""
        partial = self.mark(f"{what}.partial")
        partial.write_text(str(os.getpid()))
        partial.rename(self.mark(what))


class Result(msgspec.Struct, frozen=True):
    number: int
    pid: int


def wait_for(*paths: Path) -> None:
    """Wait until files exist."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, f"waited in vain for {paths}"
        time.sleep(0.005)


def double(task: Task) -> Result:
    if task.folder:
        task.mark("done").touch()
    return Result(2 * task.number, os.getpid())


def give_pair(task: int) -> tuple[int, str | None]:
    return task, None


def give_nothing(task: int) -> None:
    assert task >= 0


def until_stopped(task: Task) -> None:
    """Work without end, but for `check_stop`."""
    task.tell("started")
    try:
        while True:
            check_stop()
            time.sleep(0.002)
    finally:
        task.mark("ended").touch()


def zero_or_until_stopped(task: Task) -> int:
    if task.number:
        until_stopped(task)
    return task.number


def first_fails(task: Task) -> None:
    """Fail in task 0 once the other task runs."""
    if task.number:
        until_stopped(task)
    wait_for(Path(task.folder) / "started-1")
    raise ConfigError("a.txt: wrong", hint="mend it")


def fail_as(kind: str) -> None:
    errors: dict[str, BaseException] = {
        "disk": OSError(28, "No space left on device", "a.bin"),
        "bug": ValueError("1 is not 2"),
        "more than a message": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        "not built in": subprocess.CalledProcessError(3, "ls"),
        "exit": SystemExit(3),
        "odd name": ConfigError("caf\udce9.txt: gone", hint="\udce9"),
    }
    raise errors[kind]


def give_what_json_cannot_hold(task: int) -> Any:
    return object()


def die_once(task: Task) -> Result:
    """Be killed at the first attempt."""
    if not task.mark("died").exists():
        task.mark("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return double(task)


def die_always(task: Task) -> None:
    attempts = task.mark("attempts")
    attempts.write_text(attempts.read_text() + "x" if attempts.exists() else "x")
    os.kill(os.getpid(), signal.SIGKILL)


def third_dies(task: Task) -> int:
    """Be killed in task 3, with all five running in one process at the first attempt."""
    first_attempt = not task.mark("started").exists()
    task.tell("started")
    if first_attempt:
        wait_for(*(Task(number, task.folder).mark("started") for number in range(5)))
    if task.number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    if first_attempt:
        time.sleep(WAIT_SECONDS)
    return task.number


def sleep_long(task: Task) -> None:
    """Reach no safe point."""
    task.tell("started")
    time.sleep(600)


def talk(task: int) -> str:
    """Print in every way there is, and return what can be read from stdin."""
    print("by print")
    sys.stdout.flush()
    os.write(1, b"by descriptor\n")
    subprocess.run(["/bin/sh", "-c", "echo by a program; cat"], check=True)
    return sys.stdin.read() + "heard"


def unannotated(task):  # pyright: ignore[reportMissingParameterType]
    return task


def two_parameters(task: int, more: int) -> int:
    return task + more


class Holder:
    def method(self, task: int) -> int:
        return task
