from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import engine_tasks
import pytest
from engine_tasks import Task, wait_for

from tokenmill.engine import LocalEngine


def test_the_very_exception_of_a_task_is_raised():
    error = KeyError("mine")

    def work(_: int) -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        list(LocalEngine(1).run(work, [1]))
    assert caught.value is error


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_no_more_tasks_run_at_a_time_than_there_are_threads(num_threads: int):
    lock, running, most = threading.Lock(), 0, 0
    full = threading.Event()

    def work(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == num_threads:
                full.set()
        assert full.wait(10)
        with lock:
            running -= 1

    list(LocalEngine(num_threads).run(work, range(20)))
    assert most == num_threads


def test_a_task_that_waits_when_a_run_is_closed_never_starts():
    started: list[int] = []
    results = LocalEngine(1).run(started.append, range(10))
    next(results)
    num_started = len(started)
    results.close()
    assert len(started) <= num_started + 1


def test_ctrl_c_ends_a_run_and_its_tasks(tmp_path: Path):
    tasks = [Task(number, str(tmp_path)) for number in range(2)]
    main = threading.get_ident()

    def interrupt() -> None:
        wait_for(*(task.mark("started") for task in tasks))
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        list(LocalEngine(2).run(engine_tasks.until_stopped, tasks))
    assert all(task.mark("ended").exists() for task in tasks)


def test_no_threads_are_left_over():
    before = threading.active_count()

    def tasks() -> Iterator[int]:
        yield from range(10)

    list(LocalEngine(4).run(engine_tasks.give_pair, tasks()))
    assert threading.active_count() == before


@pytest.mark.parametrize("number", [0, -1])
def test_an_engine_needs_a_thread(number: int):
    with pytest.raises(ValueError, match="num_threads must be at least 1"):
        LocalEngine(number)
