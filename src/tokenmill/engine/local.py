"""Tasks on threads of this process.

That suffices where tasks spend their time in native code that releases the interpreter lock. Beyond
some cores the lock becomes the limit, and `ProcessEngine` takes over.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from tokenmill.engine.task import stoppable_context

T = TypeVar("T")
R = TypeVar("R")

NUM_WAITING = 1
"""Tasks that are taken ahead, so that a thread has work while the caller looks at a result."""


class LocalEngine:
    """Runs tasks on threads of this process, at most `num_threads` at a time."""

    def __init__(self, num_threads: int) -> None:
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, got {num_threads}")
        self.num_threads = num_threads

    def run(self, function: Callable[[T], R], tasks: Iterable[T]) -> Generator[R]:
        """Yield results as they finish; see `Engine.run`."""
        stop = threading.Event()
        context = stoppable_context(stop)
        finished: queue.SimpleQueue[Future[R]] = queue.SimpleQueue()
        pool = ThreadPoolExecutor(self.num_threads, thread_name_prefix="task")
        num_pending, feed = 0, iter(tasks)
        try:
            while True:
                for task in islice(feed, self.num_threads + NUM_WAITING - num_pending):
                    future = pool.submit(context.copy().run, function, task)
                    future.add_done_callback(finished.put)
                    num_pending += 1
                if not num_pending:
                    return
                result = finished.get().result()
                num_pending -= 1
                yield result
        finally:
            stop.set()  # after a failure, Ctrl-C or close(): tasks end at their next safe point
            pool.shutdown(wait=True, cancel_futures=True)
