"""Tasks on worker processes of this machine, a few threads in each.

For machines with many cores, where one process would wait for its interpreter lock. Workers are started as
`python -m tokenmill.engine.worker` and speak JSON lines: no fork, no pickle, no guard in the user's script.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar, get_type_hints

import msgspec

from tokenmill.engine.worker import Answer, raise_failure
from tokenmill.errors import TokenmillError

T = TypeVar("T")
R = TypeVar("R")

MAX_ATTEMPTS = 3
"""How often a task may take a worker process down before it is given up."""


class _Worker:
    """One process, the tasks it has not answered, and a thread that listens to it."""

    def __init__(self, number: int, num_threads: int, inbox: queue.SimpleQueue[Any]) -> None:
        self.number = number
        self.open: dict[int, Any] = {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tokenmill.engine.worker", str(num_threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._inbox = inbox
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, task_id: int, name: str, task: Any) -> None:
        self.open[task_id] = task
        line = msgspec.json.encode({"id": task_id, "function": name, "task": task}) + b"\n"
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the listener reports the death, and the task is given to another

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._inbox.put((self, msgspec.json.decode(line, type=Answer)))
        self._inbox.put((self, None))

    def close(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it died first


class ProcessEngine:
    """Runs tasks on `num_processes` processes, `num_threads` tasks in each at a time."""

    def __init__(self, num_processes: int, *, num_threads: int) -> None:
        self.num_processes = num_processes
        self.num_threads = num_threads

    def run(self, function: Callable[[T], R], tasks: Iterable[T]) -> Generator[R]:
        """Yield results as they finish; see `Engine.run`. A task whose worker dies is repeated."""
        name = f"{function.__module__}:{function.__qualname__}"
        result_type = get_type_hints(function)["return"]
        inbox: queue.SimpleQueue[tuple[_Worker, Answer | None]] = queue.SimpleQueue()
        feed = _Feed(tasks)
        workers: list[_Worker] = []
        try:
            for number in range(self.num_processes):  # no more processes than there are tasks
                if not feed.has_next():
                    break
                workers.append(_Worker(number, self.num_threads, inbox))
                self._fill(workers[-1], feed, name)
            while any(worker.open for worker in workers):
                worker, reply = inbox.get()
                if reply is None:
                    feed.give_back(worker)
                    worker.process.wait()
                    workers[workers.index(worker)] = worker = _Worker(
                        worker.number, self.num_threads, inbox
                    )
                    self._fill(worker, feed, name)
                    continue
                if reply.error is not None:
                    raise_failure(reply.error)
                del worker.open[reply.id]
                self._fill(worker, feed, name)
                yield msgspec.json.decode(reply.result or b"null", type=result_type)
        finally:
            for worker in workers:
                worker.close()
            for worker in workers:
                worker.process.wait()

    def _fill(self, worker: _Worker, feed: _Feed, name: str) -> None:
        while len(worker.open) < self.num_threads and feed.has_next():
            worker.send(*feed.next(name))


class _Feed:
    """Tasks in order, those of dead workers first; counts how often each was tried."""

    def __init__(self, tasks: Iterable[Any]) -> None:
        self._tasks = iter(tasks)
        self._waiting: deque[tuple[int, Any]] = deque()
        self._attempts: dict[int, int] = {}
        self._num_taken = 0

    def has_next(self) -> bool:
        """Tell whether there is another task, looking one ahead."""
        if not self._waiting:
            for task in self._tasks:
                self._waiting.append((self._num_taken, task))
                self._num_taken += 1
                break
        return bool(self._waiting)

    def next(self, name: str) -> tuple[int, str, Any]:
        """Return the next task with its number."""
        number, task = self._waiting.popleft()
        self._attempts[number] = self._attempts.get(number, 0) + 1
        return number, name, task

    def give_back(self, worker: _Worker) -> None:
        """Take back the tasks of a worker that died."""
        status = worker.process.wait()
        for number, task in worker.open.items():
            if self._attempts[number] >= MAX_ATTEMPTS:
                raise TokenmillError(
                    f"a worker process died {MAX_ATTEMPTS} times on one task (exit status {status})",
                    hint="often the machine ran out of memory: use fewer --workers",
                )
            self._waiting.append((number, task))
        worker.open = {}
