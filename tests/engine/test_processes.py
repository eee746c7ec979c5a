from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import engine_tasks
import pytest
from engine_tasks import Task, wait_for
from process_table import wait_until_gone

from tokenmill.engine import ProcessEngine, processes
from tokenmill.errors import TokenmillError

TESTS = Path(__file__).parent
Children = Callable[[], list[int]]


def tasks_in(folder: Path, number: int) -> list[Task]:
    return [Task(n, str(folder)) for n in range(number)]


# -- processes


def test_tasks_are_spread_over_all_processes(children: Children):
    results = ProcessEngine(3, num_threads=4).run(engine_tasks.double, map(Task, range(3)))
    first = next(results)
    assert len(children()) == 3
    assert len({first.pid, *(result.pid for result in results)}) == 3
    assert children() == []


def test_every_thread_of_every_process_gets_a_task(tmp_path: Path):
    engine = ProcessEngine(2, num_threads=2)
    pids = list(engine.run(engine_tasks.all_at_once, tasks_in(tmp_path, 4)))
    assert [pids.count(pid) for pid in pids] == [2, 2, 2, 2]


def test_no_more_processes_are_started_than_there_are_tasks(children: Children):
    results = ProcessEngine(4).run(engine_tasks.double, [Task(1)])
    next(results)
    assert len(children()) == 1
    results.close()
    assert children() == []


def test_a_failure_leaves_no_process_behind(children: Children, tmp_path: Path):
    with pytest.raises(TokenmillError):
        list(ProcessEngine(2).run(engine_tasks.first_fails, tasks_in(tmp_path, 2)))
    assert children() == []


def test_a_task_that_cannot_be_sent_is_an_error_here(children: Children):
    with pytest.raises(TypeError, match="unsupported"):
        list(ProcessEngine(1).run(engine_tasks.give_pair, [object()]))  # pyright: ignore[reportArgumentType]
    assert children() == []


def test_a_result_that_cannot_be_sent_is_an_error_not_a_silence(children: Children):
    with pytest.raises(TypeError, match="unsupported"):
        list(ProcessEngine(1).run(engine_tasks.give_what_json_cannot_hold, [1]))
    assert children() == []


def test_a_task_that_exits_is_an_error_not_a_silence():
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        list(ProcessEngine(1).run(engine_tasks.fail_as, ["exit"]))


def test_what_tasks_print_does_not_mix_with_their_results(capfd: pytest.CaptureFixture[str]):
    assert list(ProcessEngine(1).run(engine_tasks.talk, [1, 2])) == ["heard", "heard"]
    out, err = capfd.readouterr()
    assert out == ""
    assert sorted(err.split("\n")) == sorted(
        ["", *2 * ["by print", "by descriptor", "by a program"]]
    )


def test_a_function_that_workers_cannot_import_is_refused_before_anything_starts():
    with pytest.raises(TypeError, match="it is a lambda"):
        ProcessEngine(1).run(lambda task: task, [1])


@pytest.mark.parametrize(("num_processes", "num_threads"), [(0, 1), (1, 0)])
def test_an_engine_needs_a_process_and_a_thread(num_processes: int, num_threads: int):
    with pytest.raises(ValueError, match="must be at least 1"):
        ProcessEngine(num_processes, num_threads=num_threads)


def test_modules_in_the_working_folder_do_not_hide_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "queue.py").write_text("raise ImportError('not the one you want')")
    monkeypatch.chdir(tmp_path)
    assert list(ProcessEngine(1).run(engine_tasks.give_pair, [1])) == [(1, None)]


# -- death


def test_a_task_whose_worker_is_killed_is_repeated(tmp_path: Path, children: Children):
    results = ProcessEngine(2, num_threads=2).run(engine_tasks.die_once, tasks_in(tmp_path, 6))
    assert sorted(result.number for result in results) == [0, 2, 4, 6, 8, 10]
    assert children() == []


def test_a_task_that_kills_every_worker_is_given_up(tmp_path: Path, children: Children):
    (task,) = tasks_in(tmp_path, 1)
    with pytest.raises(TokenmillError) as caught:
        list(ProcessEngine(2).run(engine_tasks.die_always, [task]))
    assert task.mark("attempts").read_text() == "xxx"
    assert "died 3 times on one task, killed by SIGKILL: {" in caught.value.message
    assert str(tmp_path)[:20] in caught.value.message
    assert "memory" in (caught.value.hint or "")
    assert children() == []


def test_tasks_that_shared_a_dead_worker_are_repeated_alone_and_one_is_blamed(tmp_path: Path):
    tasks = tasks_in(tmp_path, 4)
    results: list[int] = []
    with pytest.raises(TokenmillError, match=r'killed by SIGKILL: \{"number":0,'):
        results.extend(ProcessEngine(1, num_threads=4).run(engine_tasks.first_dies, tasks))
    assert sorted(results) == [1, 2, 3]
    assert tasks[0].mark("attempts").read_text() == "xxxx"


def test_a_task_that_is_repeated_alone_does_not_join_others(tmp_path: Path):
    engine = ProcessEngine(2, num_threads=2)
    assert sorted(engine.run(engine_tasks.odd_die_once, tasks_in(tmp_path, 4))) == [0, 1, 2, 3]


def test_a_worker_that_dies_while_it_answers_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    mark = tmp_path / "cut"
    program = f"""
import os, pathlib, sys
mark = pathlib.Path({str(mark)!r})
if not mark.exists():
    mark.touch()
    sys.stdin.readline()
    os.write(1, b'{{"id": 0, "resu')
    os._exit(1)
{processes._PROGRAM}
"""
    monkeypatch.setattr(processes, "_PROGRAM", program)
    assert list(ProcessEngine(1).run(engine_tasks.give_pair, [7])) == [(7, None)]
    assert mark.exists()


def test_workers_that_cannot_start_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "_PROGRAM", "raise SystemExit(9)")
    with pytest.raises(TokenmillError, match="died 3 times on one task, with exit status 9: 5"):
        list(ProcessEngine(1).run(engine_tasks.give_pair, [5]))


def test_an_idle_worker_that_dies_does_no_harm(tmp_path: Path, children: Children):
    results = ProcessEngine(1).run(engine_tasks.double, map(Task, range(3)))
    first = next(results)
    os.kill(first.pid, signal.SIGKILL)
    assert sorted(result.number for result in results) == [2, 4]


@pytest.mark.parametrize(
    ("grace_seconds", "end_seconds", "status"), [(0.05, 60, 1), (60, 0.05, -signal.SIGKILL)]
)
def test_a_stubborn_task_ends_with_its_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    grace_seconds: float,
    end_seconds: float,
    status: int,
):
    grace = f"from tokenmill.engine import worker; worker.GRACE_SECONDS = {grace_seconds}"
    program = processes._PROGRAM.replace("; main()", f"; {grace}; main()")
    monkeypatch.setattr(processes, "_PROGRAM", program)
    monkeypatch.setattr(processes, "_END_SECONDS", end_seconds)
    ended: list[int | None] = []
    wait = processes._wait

    def wait_and_note(workers: list[processes._Worker], *, seconds: float) -> None:
        wait(workers, seconds=seconds)
        ended.extend(worker.process.returncode for worker in workers)

    def tasks() -> Iterator[Task]:
        task = Task(0, str(tmp_path))
        yield task
        wait_for(task.mark("started"))
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "_wait", wait_and_note)
    with pytest.raises(KeyboardInterrupt):
        list(ProcessEngine(2).run(engine_tasks.sleep_long, tasks()))
    assert ended == [status]


# -- drivers of all kinds: the module of the tasks is found by a path that only the driver set

PATHS = f"import sys; sys.path.insert(0, {str(TESTS)!r})"
ENDLESS = f"""
{PATHS}
import engine_tasks
from tokenmill.engine import ProcessEngine
tasks = [engine_tasks.Task(number, sys.argv[1]) for number in range(2)]
list(ProcessEngine(2).run(engine_tasks.until_stopped, tasks))
"""
SIMPLE = f"""
{PATHS}
import engine_tasks
from tokenmill.engine import ProcessEngine
print(sorted(ProcessEngine(2).run(engine_tasks.give_pair, [1, 2])))
"""
MAIN_FUNCTION = """
from tokenmill.engine import ProcessEngine
def work(task: int) -> int:
    return task
ProcessEngine(1).run(work, [1])
"""


def start_endless(folder: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a driver in a process group of its own; return it and its workers."""
    script = folder / "endless.py"
    script.write_text(ENDLESS)
    driver = subprocess.Popen(
        [sys.executable, script, folder], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    marks = [task.mark("started") for task in tasks_in(folder, 2)]
    wait_for(*marks)
    return driver, [int(mark.read_text()) for mark in marks]


def test_workers_end_when_their_driver_is_killed(tmp_path: Path):
    driver, workers = start_endless(tmp_path)
    driver.kill()
    driver.communicate()
    wait_until_gone(workers)
    assert all(task.mark("ended").exists() for task in tasks_in(tmp_path, 2))


def test_ctrl_c_is_seen_by_the_driver_alone_and_ends_all(tmp_path: Path):
    driver, workers = start_endless(tmp_path)
    os.killpg(driver.pid, signal.SIGINT)
    _, err = driver.communicate()
    assert driver.returncode == -signal.SIGINT
    assert err.count("Traceback") == err.count("KeyboardInterrupt") == 1
    assert all(task.mark("ended").exists() for task in tasks_in(tmp_path, 2))
    wait_until_gone(workers)


def test_a_script_needs_no_main_guard(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(SIMPLE)
    run = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("[(1, None), (2, None)]\n", "")


def test_an_interactive_session_can_use_workers():
    program = [sys.executable, "-q", "-i"]
    run = subprocess.run(program, input=SIMPLE, capture_output=True, text=True, check=False)
    assert run.stdout == "[(1, None), (2, None)]\n"


def test_a_function_of_the_script_itself_is_refused():
    program = [sys.executable, "-c", MAIN_FUNCTION]
    run = subprocess.run(program, capture_output=True, text=True, check=False)
    assert "it is defined in the script or session itself" in run.stderr
