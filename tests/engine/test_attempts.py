"""The driver's books, over an executor that does nothing by itself: the test says what happens."""

from __future__ import annotations

import queue
from collections.abc import Callable, Generator, Iterable
from typing import Any

import msgspec
import pytest

from tokenmill.engine import attempts as books
from tokenmill.engine.attempts import Attempts, Ended
from tokenmill.engine.cluster_worker import Account, Order, decode_order
from tokenmill.engine.protocol import Answer, Failure, Request
from tokenmill.engine.speculation import MIN_PEERS, Pace
from tokenmill.errors import BadDocumentError, TokenmillError

ORDER = Order(request=Request(0, "some:function", msgspec.Raw(b"null")))


class Scripted:
    """An executor that keeps its orders, and lets `happen` decide what becomes of them."""

    def __init__(self, happen: Callable[[Scripted, int], None], *, cpus: int = 2) -> None:
        self.inbox: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self.orders: list[int] = []
        self.elsewhere: list[bool] = []
        self.cancelled: list[tuple[int, bool]] = []
        self.cpus, self.idle = cpus, 0
        self.most_open = self.num_open = 0
        self._happen = happen

    def submit(self, order: bytes, *, elsewhere: bool) -> int:
        number = len(self.orders)
        self.orders.append(int(bytes(decode_order(order).request.task)))
        self.elsewhere.append(elsewhere)
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        self._happen(self, number)
        return number

    def cancel(self, attempt: int, *, force: bool) -> None:
        self.cancelled.append((attempt, force))
        self.end(Ended(attempt, loss="cancelled"))

    def end(self, ended: Ended) -> None:
        self.num_open -= 1
        self.inbox.put(ended)

    def succeed(self, attempt: int, seconds: float = 1.0) -> None:
        answer = Answer(0, result=msgspec.Raw(str(self.orders[attempt]).encode()))
        self.end(Ended(attempt, account=_account(answer, seconds)))

    def fail(self, attempt: int, failure: Failure) -> None:
        self.end(Ended(attempt, account=_account(Answer(0, error=failure), 1.0)))

    def num_cpus(self) -> int:
        return self.cpus

    def num_idle_cpus(self) -> int:
        return self.idle


def _account(answer: Answer, seconds: float) -> bytes:
    return msgspec.json.encode(Account(answer=answer, seconds=seconds, node="n1"))


def results(executor: Scripted, tasks: Iterable[Any], **settings: Any) -> Generator[int]:
    attempts = Attempts(executor, tasks, order=ORDER, **settings)
    try:
        for result in attempts:
            yield int(bytes(result))
    finally:
        attempts.stop()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands still but for the test: every look at the inbox takes a second."""
    now = [0.0]

    class Time:
        @staticmethod
        def monotonic() -> float:
            now[0] += 0.3
            return now[0]

    monkeypatch.setattr(books, "time", Time)
    monkeypatch.setattr(books, "LOOK_SECONDS", 0.001)
    return now


# -- handing out


def test_every_result_comes_once_and_nothing_is_left():
    executor = Scripted(Scripted.succeed)
    assert sorted(results(executor, range(50))) == list(range(50))
    assert executor.orders == list(range(50))
    assert executor.cancelled == []


def test_some_more_tasks_than_cores_are_handed_over_and_no_more():
    executor = Scripted(lambda self, n: self.succeed(n) if n == 7 else None, cpus=3)
    run = results(executor, range(100))
    assert next(run) == 7
    run.close()
    assert executor.most_open == books.AHEAD * 3 + books.SPARE


def test_workers_bound_the_tasks_that_are_handed_over():
    executor = Scripted(lambda self, number: self.succeed(number) if number == 1 else None)
    run = results(executor, range(100), most=2)
    assert next(run) == 1
    run.close()
    assert executor.most_open == 2


def test_a_cluster_without_cores_is_asked_for_some():
    executor = Scripted(Scripted.succeed, cpus=0)
    assert sorted(results(executor, range(5))) == list(range(5))


def test_cores_that_come_later_get_tasks(clock: list[float]):
    def happen(self: Scripted, number: int) -> None:
        self.cpus = 10
        if self.num_open == books.AHEAD * 10 + books.SPARE:
            for attempt in range(len(self.orders)):
                self.succeed(attempt)
            self._happen = Scripted.succeed

    assert len(list(results(Scripted(happen, cpus=1), range(30)))) == 30


def test_tasks_are_taken_only_as_they_are_needed():
    taken: list[int] = []
    executor = Scripted(lambda self, number: self.succeed(number) if number == 0 else None)
    run = results(executor, (taken.append(n) or n for n in range(100)), most=4)
    assert next(run) == 0
    run.close()
    assert len(taken) == 5


# -- losses


def test_a_task_whose_worker_died_is_repeated_elsewhere():
    def happen(self: Scripted, number: int) -> None:
        if number == 0:
            self.end(Ended(number, loss="worker", cause="killed"))
        else:
            self.succeed(number)

    executor = Scripted(happen, cpus=1)
    assert sorted(results(executor, range(3))) == [0, 1, 2]
    repeated = executor.orders.index(0, 1)
    assert [executor.elsewhere[n] for n in (0, repeated)] == [False, True]


@pytest.mark.parametrize(
    ("loss", "limit", "message"),
    [
        ("worker", books.MAX_DEATHS, "a worker process died 3 times on one task, killed: 7"),
        ("node", books.MAX_LOSSES, "one task was lost 10 times with its node, killed: 7"),
    ],
)
def test_a_task_that_is_lost_again_and_again_is_given_up(loss: Any, limit: int, message: str):
    executor = Scripted(lambda self, n: self.end(Ended(n, loss=loss, cause="killed")))
    with pytest.raises(TokenmillError, match=message):
        list(results(executor, [7]))
    assert len(executor.orders) == limit


def test_what_a_task_raised_is_raised_and_the_others_are_cancelled():
    failure = Failure("BadDocumentError", "a.txt: byte 7: not UTF-8", hint="mend it")

    def happen(self: Scripted, number: int) -> None:
        if number == 2:
            self.fail(number, failure)

    executor = Scripted(happen)
    with pytest.raises(BadDocumentError, match=r"a\.txt: byte 7: not UTF-8") as caught:
        list(results(executor, range(10)))
    assert caught.value.hint == "mend it"
    assert any("n1" in note for note in caught.value.__notes__)
    assert sorted(executor.cancelled) == [(n, False) for n in (0, 1, 3, 4, 5)]


# -- late tasks


def late_once(self: Scripted, number: int) -> None:
    """Let task 0 hang at its first attempt, and a core fall idle in the end."""
    if number:
        self.succeed(number)
    self.idle = 1


def test_a_late_task_gets_a_second_attempt_and_the_first_is_cancelled(clock: list[float]):
    executor = Scripted(late_once)
    made = list(results(executor, range(6), pace=Pace(late_seconds=2)))
    assert sorted(made) == list(range(6))
    assert executor.orders == [0, 1, 2, 3, 4, 5, 0]
    assert set(executor.cancelled) == {(0, False)}
    assert executor.elsewhere[-1]


def test_of_two_attempts_that_both_end_one_counts(clock: list[float]):
    executor = Scripted(lambda *_: None)

    def happen(self: Scripted, number: int) -> None:
        late_once(self, number)
        if number == 6:
            executor.succeed(0)

    executor._happen = happen
    assert sorted(results(executor, range(6), pace=Pace(late_seconds=2))) == list(range(6))


@pytest.mark.parametrize("why", ["no idle core", "no peers", "workers bound it"])
def test_there_is_no_second_attempt(why: str, clock: list[float]):
    num_tasks = MIN_PEERS if why == "no peers" else 6

    def happen(self: Scripted, number: int) -> None:
        late_once(self, number)
        self.idle = 0 if why == "no idle core" else 1

    executor = Scripted(happen)
    run = results(
        executor,
        range(num_tasks),
        pace=Pace(late_seconds=2),
        most=1 if why == "workers bound it" else None,
    )
    if why == "workers bound it":
        executor._happen = lambda self, n: None if n == 5 else self.succeed(n)
    made = [next(run) for _ in range(num_tasks - 1)]
    late = 5 if why == "workers bound it" else 0
    executor.inbox.put(Ended(99))
    for _ in range(40):  # many looks later
        executor.inbox.put(Ended(99))
    executor.succeed(late)
    assert sorted([*made, *run]) == list(range(num_tasks))
    assert len(executor.orders) == num_tasks


def test_a_second_attempt_that_fails_does_not_end_the_first(clock: list[float]):
    def happen(self: Scripted, number: int) -> None:
        late_once(self, number)
        if number == 6:
            self.inbox.get()
            self.fail(number, Failure("StorageError", "a bad disk"))
            self.idle = 0
            self.succeed(0)

    assert sorted(results(Scripted(happen), range(6), pace=Pace(late_seconds=2))) == list(range(6))


# -- scale


def test_the_books_cost_the_same_for_every_task_however_many_there_are():
    """Count the looks at open attempts, not the time: of 4 times the tasks, 4 times as many."""

    def num_calls(num_tasks: int) -> int:
        executor = Scripted(Scripted.succeed, cpus=100)
        return _count_calls(lambda: sum(1 for _ in results(executor, range(num_tasks))))

    small, large = num_calls(1000), num_calls(4000)
    assert large < 4.2 * small


def _count_calls(work: Callable[[], Any]) -> int:
    """Count the Python lines that run in the module under test."""
    import sys

    number = 0

    def trace(frame: Any, event: str, _argument: Any) -> Any:
        nonlocal number
        if frame.f_globals.get("__name__") != books.__name__:
            return None
        number += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return number
