"""The books of a driver whose tasks run elsewhere: what runs, what to repeat, what is late.

An executor runs attempts; this decides which. Every event costs the same however many tasks there
are: 100,000 of them on 1,000 cores keep a driver busy for seconds, not minutes.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, Protocol

import msgspec

from tokenmill.engine.cluster_worker import Order, decode_account
from tokenmill.engine.protocol import Request, error_of
from tokenmill.engine.speculation import Pace
from tokenmill.engine.worker import GRACE_SECONDS
from tokenmill.errors import TokenmillError

MAX_DEATHS = 3
"""How often a task may take a worker process down before it is given up."""
MAX_LOSSES = 10
"""How often a task may be lost with its node, which is seldom its fault."""
MAX_ATTEMPTS_AT_A_TIME = 2
LOOK_SECONDS = 1.0
"""How often the driver looks for more cores and for late tasks."""
AHEAD = 2
"""Tasks handed over for each core: one runs, another waits, where an autoscaler sees it."""
SPARE = 2
"""And some more, for clusters that start with few cores or none."""
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended: an account, as JSON, or why there is none."""

    attempt: int
    account: bytes | None = None
    loss: Literal["", "worker", "node", "cancelled"] = ""
    cause: str = ""
    error: TokenmillError | None = None
    """Something that no other attempt would help against."""


class Executor(Protocol):
    """Runs attempts somewhere; each ends up in the inbox once, put there by any thread."""

    inbox: queue.SimpleQueue[Ended]

    def submit(self, order: bytes, *, elsewhere: bool) -> int:
        """Start an attempt when a core is free, and return a number that no other attempt has.

        `elsewhere` asks for a node that has little to do: an earlier attempt had no luck.
        """
        ...

    def cancel(self, attempt: int, *, force: bool) -> None:
        """Ask an attempt to end at its next safe point, or make its process end."""
        ...

    def num_cpus(self) -> int:
        """Return how many cores there are now; their number may change."""
        ...

    def num_idle_cpus(self) -> int:
        """Return how many cores have nothing to do."""
        ...


@dataclass(slots=True)
class _Task:
    """A task that is not finished."""

    number: int
    kind: str
    data: msgspec.Raw
    attempts: list[_Attempt] = field(default_factory=list["_Attempt"])
    num_deaths: int = 0
    num_losses: int = 0


@dataclass(slots=True)
class _Attempt:
    """An attempt at a task that has not ended."""

    id: int
    task: _Task
    started: float | None = None
    """When a core must have been free for it, seen from here."""
    cancelled: float | None = None
    """When it was told to end, if it was."""


class Attempts:
    """All attempts at the tasks of one run. Iterating yields the results as JSON."""

    def __init__(
        self,
        executor: Executor,
        tasks: Iterable[Any],
        *,
        order: Order,
        most: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._executor, self._order, self._most = executor, order, most
        self._feed = enumerate(tasks)
        self._again: deque[_Task] = deque()
        self._open: dict[int, _Attempt] = {}
        self._queued: deque[_Attempt] = deque()  # handed over, and more of them than cores
        self._num_running = 0
        self._num_wanted = 0  # attempts that were not told to end
        self._pace = Pace() if pace is None else pace
        self._num_cpus = 0
        self._looked = float("-inf")
        self._is_fed = False

    def __iter__(self) -> Iterator[msgspec.Raw]:
        """Yield results as they come; raise what a task raised."""
        self._look()
        while self._num_wanted:
            with suppress(queue.Empty):
                result = self._settle(self._executor.inbox.get(timeout=LOOK_SECONDS))
                self._hand_out()  # before the caller takes its time with the result
                if result is not None:
                    yield result
            self._look()

    def stop(self) -> None:
        """End all attempts: at a safe point of their tasks, or after some seconds at any."""
        try:
            self._end_all(force=False)
        finally:  # also when a second Ctrl-C comes
            self._end_all(force=True)

    # -- handing out

    def _hand_out(self) -> None:
        """Hand over tasks until every core has one and some wait."""
        while len(self._open) < self._room():
            task = self._next()
            if task is None:
                return
            self._submit(task)

    def _room(self) -> int:
        if self._most is not None:
            return self._most
        return AHEAD * self._num_cpus + SPARE

    def _next(self) -> _Task | None:
        if self._again:
            return self._again.popleft()
        for number, task in islice(self._feed, 1):
            return _Task(number, type(task).__name__, msgspec.Raw(msgspec.json.encode(task)))
        self._is_fed = True
        return None

    def _submit(self, task: _Task) -> None:
        request = Request(task.number, self._order.request.function, task.data)
        order = msgspec.structs.replace(self._order, request=request)
        is_first = not task.attempts and not task.num_deaths and not task.num_losses
        number = self._executor.submit(msgspec.json.encode(order), elsewhere=not is_first)
        attempt = _Attempt(number, task)
        self._open[number] = attempt
        self._num_wanted += 1
        task.attempts.append(attempt)
        self._queued.append(attempt)
        self._note_running()

    def _note_running(self) -> None:
        """Those that were handed over first run first: as many of them as there are cores."""
        while self._queued and self._num_running < max(self._num_cpus, 1):
            attempt = self._queued.popleft()
            if attempt.id in self._open:
                attempt.started = time.monotonic()
                self._num_running += 1

    # -- settling

    def _settle(self, ended: Ended) -> msgspec.Raw | None:
        """Strike an attempt off the books; return a result if it brought one that is needed."""
        attempt = self._open.pop(ended.attempt, None)
        if attempt is None:
            return None  # of an earlier run over the same executor
        if attempt.started is not None:
            self._num_running -= 1
        self._note_running()
        task = attempt.task
        task.attempts.remove(attempt)
        if attempt.cancelled is not None:
            return None
        self._num_wanted -= 1
        if ended.error is not None:
            raise ended.error
        if ended.account is None:
            self._lose(task, ended)
            return None
        account = decode_account(ended.account)
        if account.answer.error is not None:
            if not task.attempts:  # else the other attempt may have more luck
                error = error_of(account.answer.error)
                error.add_note(f"The node was {account.node}.")
                raise error
            return None
        self._pace.note(task.kind, account.seconds)
        for other in task.attempts:
            self._cancel(other)
        return account.answer.result

    def _lose(self, task: _Task, ended: Ended) -> None:
        """Repeat a task whose worker or node is gone, unless that happens again and again."""
        if ended.loss == "worker":
            task.num_deaths += 1
        else:
            task.num_losses += 1
        if task.num_deaths >= MAX_DEATHS:
            raise TokenmillError(
                f"a worker process died {MAX_DEATHS} times on one task, {ended.cause}: "
                f"{_shown(task.data)}",
                hint="often a node ran out of memory: see its log, and give it fewer CPUs",
            )
        if task.num_losses >= MAX_LOSSES:
            raise TokenmillError(
                f"one task was lost {MAX_LOSSES} times with its node, {ended.cause}: "
                f"{_shown(task.data)}",
                hint="look at the nodes of the cluster, then run the same command again",
            )
        if not task.attempts:
            self._again.append(task)

    # -- looking around

    def _look(self) -> None:
        """Now and then, count the cores, and give idle ones a second attempt at late tasks."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        self._num_cpus = self._executor.num_cpus()
        self._note_running()
        self._hand_out()
        for attempt in self._open.values():
            if attempt.cancelled is not None and now - attempt.cancelled > GRACE_SECONDS:
                self._executor.cancel(attempt.id, force=True)
        if self._is_fed and not self._again:
            for task in islice(self._late_tasks(now), self._num_idle()):
                self._submit(task)

    def _late_tasks(self, now: float) -> list[_Task]:
        """Return the tasks that run far longer than others did, and have one attempt only."""
        return [
            attempt.task
            for attempt in self._open.values()
            if attempt.started is not None
            and attempt.cancelled is None
            and len(attempt.task.attempts) < MAX_ATTEMPTS_AT_A_TIME
            and self._pace.is_late(attempt.task.kind, now - attempt.started)
        ]

    def _num_idle(self) -> int:
        """Return how many idle cores there are that this run may use."""
        num_idle = self._executor.num_idle_cpus() if self._open else 0
        if self._most is not None:
            num_idle = min(num_idle, self._most - len(self._open))
        return max(num_idle, 0)

    # -- stopping

    def _cancel(self, attempt: _Attempt) -> None:
        """Ask an attempt to end."""
        if attempt.cancelled is None:
            attempt.cancelled = time.monotonic()
            self._num_wanted -= 1
            self._executor.cancel(attempt.id, force=False)

    def _end_all(self, *, force: bool) -> None:
        for attempt in self._open.values():
            self._executor.cancel(attempt.id, force=force)
        deadline = time.monotonic() + GRACE_SECONDS
        while self._open and (left := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                ended = self._executor.inbox.get(timeout=left)
                self._open.pop(ended.attempt, None)


def _shown(data: msgspec.Raw) -> str:
    text = bytes(data).decode()
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
