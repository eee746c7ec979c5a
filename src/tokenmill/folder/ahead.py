"""Look at many small things at a time, where each takes its time to arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def map_ahead(function: Callable[[T], R], items: Iterable[T], *, num_threads: int) -> Iterator[R]:
    """Yield `function(item)` in the order of the items, working on `num_threads` of them at a time.

    With one thread nothing is done ahead, and everything in the caller's own thread.
    """
    if num_threads == 1:
        yield from map(function, items)
        return
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="ahead")
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) == num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
