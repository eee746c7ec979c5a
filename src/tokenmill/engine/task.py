"""What every engine does, and how a task learns that it should stop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Protocol, TypeVar

from tokenmill.errors import Interrupted

if TYPE_CHECKING:
    import threading

T = TypeVar("T")
R = TypeVar("R")

_stops: ContextVar[tuple[threading.Event, ...]] = ContextVar("stops", default=())
"""The stop events of the runs that the current task is part of: a task may start a run itself."""


class Engine(Protocol):
    """Runs independent tasks somewhere."""

    def run(self, function: Callable[[T], R], tasks: Iterable[T]) -> Generator[R]:
        """Yield results as tasks finish; raise what the first failing task raised.

        `tasks` is consumed lazily, only a little ahead of the work, so a generator can stop
        feeding when enough is done. `function` must be importable by name and say its types; tasks
        and results must be JSON-able structs. A failure or closing the generator stops the work:
        running tasks see it at their next `check_stop`, and none runs when `close` returns. So
        close it when a loop may be left early: `with closing(engine.run(…)) as results`.
        """
        ...


def check_stop() -> None:
    """Raise `Interrupted` if the engine wants this task to end; tasks call it at safe points."""
    if any(stop.is_set() for stop in _stops.get()):
        raise Interrupted("stopped at a safe point", hint="run the same command again to continue")


def stoppable_context(stop: threading.Event) -> Context:
    """Return a context in which `check_stop` obeys `stop`, and what it obeys here."""
    context = copy_context()
    context.run(_stops.set, (*_stops.get(), stop))
    return context
