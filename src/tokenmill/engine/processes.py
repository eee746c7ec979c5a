"""Tasks on worker processes of this machine, a few threads in each.

For machines with many cores, where one process would wait for its interpreter lock. Workers are
fresh interpreters that speak JSON lines: no fork, no pickle, no guard in the user's script.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, TypeVar

import msgspec

from tokenmill.engine.protocol import (
    Answer,
    decode_answer,
    error_of,
    function_name,
    task_and_result_types,
)
from tokenmill.engine.worker import GRACE_SECONDS
from tokenmill.errors import TokenmillError

T = TypeVar("T")
R = TypeVar("R")

MAX_ATTEMPTS = 3
"""How often a task may take a worker process of its own down before it is given up."""
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; from tokenmill.engine.worker import main; main()"
)
_END_SECONDS = GRACE_SECONDS + 5.0
_DEATH_SECONDS = 1.0
_SHOWN_CHARS = 200


class ProcessEngine:
    """Runs tasks on `num_processes` processes, `num_threads` tasks in each at a time.

    A task whose worker dies, as when memory runs out, is repeated on another worker.
    """

    def __init__(self, num_processes: int, *, num_threads: int = 1) -> None:
        if num_processes < 1 or num_threads < 1:
            raise ValueError(
                f"num_processes and num_threads must be at least 1, "
                f"got {num_processes} and {num_threads}"
            )
        self.num_processes = num_processes
        self.num_threads = num_threads

    def run(self, function: Callable[[T], R], tasks: Iterable[T]) -> Generator[R]:
        """Yield results as they finish; see `Engine.run`."""
        return self._run(function_name(function), tasks, task_and_result_types(function)[1])

    def _run(self, name: str, tasks: Iterable[Any], result_type: Any) -> Generator[Any]:
        feed, crew = _Feed(tasks), _Crew(self.num_processes, self.num_threads)
        try:
            crew.give_out(feed, name)
            while crew.is_busy:
                worker, answer = crew.inbox.get()
                if answer is None:
                    feed.take_back(crew.bury(worker))
                elif answer.error is not None:
                    raise error_of(answer.error)
                else:
                    del worker.open[answer.id]
                crew.give_out(feed, name)  # before the caller takes its time with the result
                if answer is not None:
                    yield msgspec.json.decode(answer.result, type=result_type)
        finally:
            crew.end()


class _Worker:
    """One process, the tasks it has not answered, and a thread that listens to it."""

    def __init__(self, num_threads: int, inbox: queue.SimpleQueue[Any]) -> None:
        self.open: dict[int, Any] = {}
        self.has_suspect = False
        self._inbox = inbox
        paths = [os.path.abspath(path) for path in sys.path]  # noqa: PTH100  (the empty one is cwd)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(num_threads), *paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.listener = threading.Thread(target=self._listen, name="listener", daemon=True)
        self.listener.start()

    @property
    def is_closed(self) -> bool:
        """Whether it runs a task that is to run alone."""
        return self.has_suspect and bool(self.open)

    def send(self, number: int, name: str, task: Any) -> None:
        line = msgspec.json.encode({"id": number, "function": name, "task": task}) + b"\n"
        self.open[number] = task
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the listener reports the death
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def close_input(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it died first
            self.process.stdin.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                try:
                    answer = decode_answer(line)
                except msgspec.DecodeError:
                    break  # cut short by its death
                self._inbox.put((self, answer))
        self._inbox.put((self, None))


class _Crew:
    """The workers of one run, started as tasks come and replaced when they die."""

    def __init__(self, num_processes: int, num_threads: int) -> None:
        self.inbox: queue.SimpleQueue[tuple[_Worker, Answer | None]] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._num_processes = num_processes
        self._num_threads = num_threads

    @property
    def is_busy(self) -> bool:
        """Whether an answer, or a death, is to come."""
        return any(worker.open for worker in self._workers)

    def give_out(self, feed: _Feed, name: str) -> None:
        """Give every thread a task, those of idle processes first."""
        while feed.has_next():
            is_suspect = feed.next_is_suspect
            worker = self._free_worker(alone=is_suspect)
            if worker is None:
                return
            worker.has_suspect = is_suspect
            number, task = feed.next()
            worker.send(number, name, task)

    def _free_worker(self, *, alone: bool) -> _Worker | None:
        """Return the worker with the least to do; with `alone`, one that has nothing to do."""
        if len(self._workers) < self._num_processes:
            with _interrupts_held():
                worker = _Worker(self._num_threads, self.inbox)
                self._workers.append(worker)
            return worker
        worker = min(self._workers, key=lambda worker: (worker.is_closed, len(worker.open)))
        room = 1 if alone else self._num_threads
        return None if worker.is_closed or len(worker.open) >= room else worker

    def bury(self, worker: _Worker) -> _Worker:
        """Remove a worker that has ended."""
        self._workers.remove(worker)
        worker.close_input()
        _wait([worker], seconds=_DEATH_SECONDS)
        return worker

    def end(self) -> None:
        """End all workers: at a safe point of their tasks, or after some seconds at any."""
        for worker in self._workers:
            worker.close_input()
        _wait(self._workers, seconds=_END_SECONDS)


def _wait(workers: list[_Worker], *, seconds: float) -> None:
    """Wait for workers to end, so that none is left over; then make them."""
    deadline = time.monotonic() + seconds
    try:
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(deadline - time.monotonic(), 0))
    finally:  # also when a second Ctrl-C comes
        for worker in workers:
            worker.process.kill()
            worker.process.wait()
            worker.listener.join(_DEATH_SECONDS)


class _Feed:
    """Tasks with their numbers, in order; those of workers that died come again.

    Of several tasks that a dead worker had, any may be to blame: each is repeated alone in a
    process, which also gives it more of the memory that it may have lacked.
    """

    def __init__(self, tasks: Iterable[Any]) -> None:
        self._tasks = enumerate(tasks)
        self._waiting: deque[tuple[int, Any]] = deque()
        self._num_deaths: Counter[int] = Counter()
        self._suspects: set[int] = set()

    @property
    def next_is_suspect(self) -> bool:
        """Whether the next task had a part in a worker's death."""
        return self._waiting[0][0] in self._suspects

    def has_next(self) -> bool:
        """Tell whether there is another task, looking one ahead."""
        if not self._waiting:
            self._waiting.extend(islice(self._tasks, 1))
        return bool(self._waiting)

    def next(self) -> tuple[int, Any]:
        """Return the next task with its number."""
        return self._waiting.popleft()

    def take_back(self, worker: _Worker) -> None:
        """Take back the tasks of a worker that died."""
        self._suspects.update(worker.open)
        self._waiting.extend(worker.open.items())
        if len(worker.open) != 1:
            return
        ((number, task),) = worker.open.items()
        self._num_deaths[number] += 1
        if self._num_deaths[number] >= MAX_ATTEMPTS:
            raise TokenmillError(
                f"a worker process died {MAX_ATTEMPTS} times on one task, "
                f"{_cause(worker.process.returncode)}: {_shown(task)}",
                hint="often the machine ran out of memory: use fewer --workers",
            )


def _cause(status: int) -> str:
    if status >= 0:
        return f"with exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _shown(task: Any) -> str:
    text = msgspec.json.encode(task).decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


@contextmanager
def _interrupts_held() -> Generator[None]:
    """Keep Ctrl-C from a worker that starts: it ignores it once it is ready.

    And from its listener, so that the interrupt of a start comes when the worker is in the crew.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
