"""Tasks on this machine: threads of this process, or several worker processes with threads each.

Threads suffice where tasks spend their time in native code that releases the interpreter lock. Beyond
a few cores the lock becomes the limit, and worker processes take over. They are started with
`python -m tokenmill.engine.worker` and speak JSON lines over pipes: no fork, no pickle, no main guard.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from tokenmill.engine.task import stop_requested

T = TypeVar("T")
R = TypeVar("R")


def available_cores() -> int:
    """Return how many cores this process may use, counting affinity and container limits."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:  # noqa: PTH123
            quota, period = file.read().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # not in a cgroup that limits the CPU
    return cores


def resolve_workers(workers: int | None) -> int:
    """Return a number of workers: None is every core, zero or less three quarters of them."""
    if workers is None:
        return available_cores()
    return workers if workers > 0 else max(1, available_cores() * 3 // 4)


class LocalEngine:
    """Runs tasks on threads of this process, at most `num_threads` at a time."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads

    def run(self, function: Callable[[T], R], tasks: Iterable[T]) -> Generator[R]:
        """Yield results as they finish; see `Engine.run`."""
        stop = threading.Event()
        finished: queue.SimpleQueue[Future[R]] = queue.SimpleQueue()
        token = stop_requested.set(stop)
        context = copy_context()
        stop_requested.reset(token)
        pool = ThreadPoolExecutor(self.num_threads, thread_name_prefix="task")
        pending, feed = 0, iter(tasks)
        try:
            while True:
                while pending < self.num_threads:
                    try:
                        task = next(feed)
                    except StopIteration:
                        break
                    future = pool.submit(context.copy().run, function, task)
                    future.add_done_callback(finished.put)
                    pending += 1
                if not pending:
                    return
                result = finished.get().result()
                pending -= 1
                yield result
        finally:
            stop.set()  # after a failure, Ctrl-C or close(): running tasks end at their next safe point
            pool.shutdown(wait=True, cancel_futures=True)
