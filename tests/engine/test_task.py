"""What every engine promises, whatever it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import engine_tasks
import pytest
from engine_tasks import Task, wait_for

from tokenmill.engine import Engine, LocalEngine, ProcessEngine, check_stop
from tokenmill.errors import ConfigError, Interrupted

ENGINES: dict[str, tuple[Engine, int]] = {
    "1 thread": (LocalEngine(1), 1),
    "3 threads": (LocalEngine(3), 3),
    "1 process": (ProcessEngine(1), 1),
    "2 processes of 2 threads": (ProcessEngine(2, num_threads=2), 4),
}
"""Engines, and how many tasks each runs at a time."""


@pytest.fixture(params=ENGINES)
def crew(request: pytest.FixtureRequest) -> tuple[Engine, int]:
    return ENGINES[request.param]


@pytest.fixture
def engine(crew: tuple[Engine, int]) -> Engine:
    return crew[0]


def test_every_task_gives_one_result(engine: Engine):
    results = engine.run(engine_tasks.double, (Task(number) for number in range(20)))
    assert sorted(result.number for result in results) == list(range(0, 40, 2))


def test_no_tasks_give_no_results(engine: Engine, children: Callable[[], list[int]]):
    assert list(engine.run(engine_tasks.double, [])) == []
    assert children() == []


def test_results_keep_their_types(engine: Engine):
    assert list(engine.run(engine_tasks.give_pair, [5])) == [(5, None)]
    assert list(engine.run(engine_tasks.give_nothing, [5])) == [None]


def test_tasks_are_taken_only_a_little_ahead(crew: tuple[Engine, int]):
    engine, at_a_time = crew
    taken: list[int] = []

    def tasks() -> Iterator[Task]:
        for number in range(100):
            taken.append(number)
            yield Task(number)

    with closing(engine.run(engine_tasks.double, tasks())) as results:
        assert taken == []
        for num_results in range(1, 6):
            next(results)
            assert len(taken) <= num_results + at_a_time + 1


def test_a_feed_can_stop_when_enough_is_done(crew: tuple[Engine, int]):
    engine, at_a_time = crew
    results: list[int] = []

    def tasks() -> Iterator[Task]:
        number = 0
        while len(results) < 5:
            yield Task(number)
            number += 1

    for result in engine.run(engine_tasks.double, tasks()):
        results.append(result.number)
    assert 5 <= len(results) <= 5 + at_a_time + 1


def test_work_goes_on_while_the_caller_looks_at_a_result(engine: Engine, tmp_path: Path):
    tasks = [Task(number, str(tmp_path)) for number in range(2)]
    with closing(engine.run(engine_tasks.double, tasks)) as results:
        next(results)
        wait_for(*(task.mark("done") for task in tasks))


@pytest.mark.parametrize("name", ["3 threads", "2 processes of 2 threads"])
def test_the_first_failure_is_raised_and_stops_the_other_tasks(name: str, tmp_path: Path):
    engine, _ = ENGINES[name]
    tasks = [Task(number, str(tmp_path)) for number in range(2)]
    with pytest.raises(ConfigError) as caught:
        list(engine.run(engine_tasks.first_fails, tasks))
    assert type(caught.value) is ConfigError
    assert (caught.value.message, caught.value.hint) == ("a.txt: wrong", "mend it")
    assert tasks[1].mark("ended").exists()


def test_a_failing_feed_is_raised_and_stops_the_tasks(engine: Engine, tmp_path: Path):
    task = Task(0, str(tmp_path))
    error = ValueError("no more")

    def tasks() -> Iterator[Task]:
        yield task
        wait_for(task.mark("started"))
        raise error

    with pytest.raises(ValueError, match="no more") as caught:
        list(engine.run(engine_tasks.until_stopped, tasks()))
    assert caught.value is error
    assert task.mark("ended").exists()


def test_nothing_runs_when_close_returns(engine: Engine, tmp_path: Path):
    first, second = Task(0), Task(1, str(tmp_path))

    def tasks() -> Iterator[Task]:
        yield first
        yield second

    results = engine.run(engine_tasks.zero_or_until_stopped, tasks())
    assert next(results) == 0
    wait_for(second.mark("started"))
    results.close()
    assert second.mark("ended").exists()


@pytest.mark.parametrize(
    ("kind", "expected", "message"),
    [
        ("disk", OSError, r"\[Errno 28\] No space left on device: 'a.bin'"),
        ("bug", ValueError, "1 is not 2"),
    ],
)
def test_what_a_task_raises_keeps_its_class(
    engine: Engine, kind: str, expected: type[Exception], message: str
):
    with pytest.raises(expected, match=message) as caught:
        list(engine.run(engine_tasks.fail_as, [kind]))
    assert type(caught.value) is expected


def test_an_engine_works_in_a_thread(engine: Engine):
    results: list[object] = []
    thread = threading.Thread(
        target=lambda: results.extend(engine.run(engine_tasks.give_pair, [1, 2]))
    )
    thread.start()
    thread.join()
    assert sorted(map(str, results)) == ["(1, None)", "(2, None)"]


# -- stopping


def test_outside_of_a_run_nothing_asks_to_stop():
    check_stop()


def test_a_stopped_task_sees_that_it_can_be_continued(tmp_path: Path):
    seen: list[Interrupted] = []

    def work(task: Task) -> None:
        try:
            engine_tasks.until_stopped(task)
        except Interrupted as error:
            seen.append(error)

    task = Task(0, str(tmp_path))
    results = LocalEngine(2).run(lambda t: work(t) if t.folder else None, [Task(1), task])
    next(results)
    wait_for(task.mark("started"))
    results.close()
    assert seen[0].exit_code == 75
    check_stop()


def test_two_runs_in_one_process_do_not_disturb_each_other(tmp_path: Path):
    def work(task: Task) -> int:
        task.mark("started").touch()
        while not task.mark("end").exists():
            check_stop()
            time.sleep(0.002)
        return task.number

    first, second = Task(1, str(tmp_path)), Task(2, str(tmp_path))
    quick = Task(0, str(tmp_path))
    quick.mark("end").touch()
    one = LocalEngine(2).run(work, [quick, first])
    other = LocalEngine(2).run(work, [quick, second])
    assert (next(one), next(other)) == (0, 0)
    wait_for(first.mark("started"), second.mark("started"))
    one.close()
    check_stop()  # nor does it disturb us
    second.mark("end").touch()
    assert list(other) == [2]


def test_stopping_a_run_stops_the_runs_that_its_tasks_started(tmp_path: Path):
    inner = Task(1, str(tmp_path))

    def work(task: Task) -> None:
        if task.number:
            list(LocalEngine(1).run(engine_tasks.until_stopped, [inner]))

    outer = LocalEngine(2).run(work, [Task(0), Task(1)])
    next(outer)
    wait_for(inner.mark("started"))
    outer.close()
    assert inner.mark("ended").exists()
