"""Functions for engines to run; worker processes import them from here by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
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


def all_at_once(task: Task) -> int:
    """Wait for three other tasks that run at the same time."""
    task.tell("started")
    wait_for(*(Task(number, task.folder).mark("started") for number in range(4)))
    return os.getpid()


def first_dies(task: Task) -> int:
    """Be killed in task 0: at the first attempt with three others in the same process."""
    is_first_attempt = not task.mark("started").exists()
    if task.number == 0:
        with task.mark("attempts").open("a") as attempts:
            attempts.write("x")
    if is_first_attempt:
        all_at_once(task)
        if task.number:
            time.sleep(WAIT_SECONDS)
    if task.number == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    with alone_in_process(task):
        time.sleep(0.02)
    return task.number


@contextmanager
def alone_in_process(task: Task) -> Generator[None]:
    """Fail if another task is in this block, in the same process."""
    mark = Path(task.folder) / f"process-{os.getpid()}"
    mark.touch(exist_ok=False)
    yield
    mark.unlink()


def odd_die_once(task: Task) -> int:
    """Be killed once in tasks 1 and 3, together, while task 0 runs on in another process."""
    first, second, third = (Task(number, task.folder) for number in (1, 2, 3))
    if task.number == 0:
        with alone_in_process(task):
            wait_for(third.mark("done"))
    elif task.number == 2 or task.mark("started").exists():
        with alone_in_process(task) if task.number != 2 else nullcontext():
            time.sleep(0.1)
        task.tell("done")
    else:
        task.tell("started")
        wait_for(first.mark("started"), third.mark("started"), second.mark("done"))
        os.kill(os.getpid(), signal.SIGKILL)
    return task.number


def hang_once(task: Task) -> int:
    """Hang in the first attempt at task 0 until it is cancelled."""
    if task.number == 0 and not task.mark("started").exists():
        until_stopped(task)
    return task.number


def two_at_once(task: Task) -> int:
    """Wait until two tasks run at the same time, in two processes."""
    task.tell("started")
    deadline = time.monotonic() + WAIT_SECONDS
    while len({p.read_text() for p in Path(task.folder).glob("started-?")}) < 2:
        assert time.monotonic() < deadline, "no second process came"
        time.sleep(0.01)
    return task.number


def wait_to_go(task: Task) -> int:
    """Start, and end when the test says so."""
    with (Path(task.folder) / "starts").open("a") as starts:
        starts.write("x")
    task.tell("started")
    wait_for(Path(task.folder) / "go")
    return task.number


def need_mark(task: Task) -> None:
    """Fail unless the test has put a file there."""
    with task.mark("calls").open("a") as calls:
        calls.write("x")
    if not task.mark("there").exists():
        raise ConfigError("nothing there", hint="put it there")


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
