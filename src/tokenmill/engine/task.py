"""What every engine does, and how a task learns that it should stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Protocol, TypeVar

from tokenmill.errors import Interrupted

T = TypeVar("T")
R = TypeVar("R")

stop_requested: ContextVar[threading.Event | None] = ContextVar("stop_requested", default=None)


class Engine(Protocol):
    """Runs independent tasks somewhere."""

    def run(self, function: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """Yield results as tasks finish; raise what the first failing task raised.

        `tasks` is consumed lazily, only a little ahead of the work, so a generator can stop feeding
        when enough is done. `function` must be importable by name, tasks and results JSON-able structs.
        Closing the iterator stops the work: running tasks see it at their next `check_stop`.
        """
        ...


def check_stop() -> None:
    """Raise `Interrupted` if the engine wants this task to end; tasks call it at safe points."""
    event = stop_requested.get()
    if event is not None and event.is_set():
        raise Interrupted("stopped at a safe point", hint="run the same command again to continue")
