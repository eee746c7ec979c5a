from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import engine_tasks
import pytest
from engine_tasks import Task, wait_for
from process_table import wait_until_gone

from tokenmill.engine import RayCluster, RayEngine, attempts
from tokenmill.engine import ray as ray_module
from tokenmill.errors import BadDocumentError, ConfigError, TokenmillError

if TYPE_CHECKING:
    from rigs.ray_cluster import RayRig

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ray")]
TESTS = Path(__file__).parent


@pytest.fixture(scope="module")
def cluster(ray_rig: RayRig) -> Generator[RayCluster]:
    ray_rig.resize(1)
    connected = RayCluster(ray_rig.address)
    yield connected
    connected.close()


def tasks_in(folder: Path, number: int) -> list[Task]:
    return [Task(n, str(folder)) for n in range(number)]


# -- one node


def test_tasks_run_in_other_processes_and_every_result_comes_once(cluster: RayCluster):
    made = list(RayEngine(cluster).run(engine_tasks.double, map(Task, range(20))))
    assert sorted(result.number for result in made) == list(range(0, 40, 2))
    assert os.getpid() not in {result.pid for result in made}


@pytest.mark.parametrize(
    ("kind", "error", "text"),
    [
        ("disk", OSError, "[Errno 28] No space left on device: 'a.bin'"),
        ("bug", ValueError, "1 is not 2"),
        ("exit", RuntimeError, "SystemExit: 3"),
    ],
)
def test_a_failing_task_raises_what_it_raised_there(
    kind: str, error: type[Exception], text: str, cluster: RayCluster
):
    with pytest.raises(error) as caught:
        list(RayEngine(cluster).run(engine_tasks.fail_as, [kind]))
    assert str(caught.value) == text


def test_a_task_whose_worker_is_killed_is_repeated(tmp_path: Path, cluster: RayCluster):
    made = RayEngine(cluster).run(engine_tasks.die_once, tasks_in(tmp_path, 2))
    assert sorted(result.number for result in made) == [0, 2]


def test_a_task_that_kills_every_worker_is_given_up(tmp_path: Path, cluster: RayCluster):
    (task,) = tasks_in(tmp_path, 1)
    with pytest.raises(TokenmillError, match="died 3 times on one task") as e:
        list(RayEngine(cluster).run(engine_tasks.die_always, [task]))
    assert task.mark("attempts").read_text() == "xxx"
    assert f'without a word: {{"number":0,"folder":"{tmp_path}' in e.value.message
    assert "memory" in (e.value.hint or "")


def test_closing_ends_tasks_at_a_safe_point(tmp_path: Path, cluster: RayCluster):
    tasks = tasks_in(tmp_path, 3)
    engine = RayEngine(cluster)
    with closing(engine.run(engine_tasks.zero_or_until_stopped, tasks)) as results:
        assert next(results) == 0
        wait_for(tasks[1].mark("started"))
    assert tasks[1].mark("ended").exists()
    assert not tasks[2].mark("started").exists()


def test_a_stubborn_task_ends_with_its_process(
    tmp_path: Path, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(attempts, "GRACE_SECONDS", 0.5)
    (task,) = tasks_in(tmp_path, 1)

    def tasks():
        yield task
        wait_for(task.mark("started"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(RayEngine(cluster).run(engine_tasks.sleep_long, tasks()))
    wait_until_gone([int(task.mark("started").read_text())])


def test_something_runs_once_in_a_process_before_its_tasks(tmp_path: Path, cluster: RayCluster):
    (task,) = tasks_in(tmp_path, 1)
    engine = RayEngine(cluster, before=(engine_tasks.need_mark, task))
    with pytest.raises(ConfigError, match="nothing there"):
        list(engine.run(engine_tasks.give_pair, [1]))
    task.mark("there").touch()
    task.mark("calls").unlink()
    processes = {r.pid for r in engine.run(engine_tasks.double, map(Task, range(5)))}
    assert len(task.mark("calls").read_text()) == len(processes)


def test_another_version_on_a_node_is_an_error(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ray_module, "version", lambda _: "9.9")
    with pytest.raises(ConfigError, match=r"has tokenmill .*, the driver has 9\.9"):
        list(RayEngine(cluster).run(engine_tasks.give_pair, [1]))


def test_an_engine_needs_a_worker(cluster: RayCluster):
    with pytest.raises(ValueError, match="workers must be at least 1"):
        RayEngine(cluster, workers=0)


# -- several nodes


def test_nodes_that_join_get_work(tmp_path: Path, ray_rig: RayRig, cluster: RayCluster):
    ray_rig.resize(1)
    tasks = tasks_in(tmp_path, 4)

    def feed():
        yield from tasks[:2]
        wait_for(tasks[0].mark("started"))  # alone on the only core, until a node joins
        ray_rig.resize(2)
        yield from tasks[2:]

    assert sorted(RayEngine(cluster).run(engine_tasks.two_at_once, feed())) == [0, 1, 2, 3]


def test_tasks_of_a_lost_node_are_repeated(tmp_path: Path, ray_rig: RayRig, cluster: RayCluster):
    ray_rig.resize(2)
    tasks = tasks_in(tmp_path, 3)
    go = tmp_path / "go"
    lost: list[int] = []

    def feed():
        yield from tasks[:2]
        wait_for(*(task.mark("started") for task in tasks[:2]))
        lost.extend(ray_rig.kill_node(ray_rig.nodes[1]))
        go.touch()
        yield tasks[2]

    before = [task.mark("started") for task in tasks[:2]]
    made = RayEngine(cluster).run(engine_tasks.wait_to_go, feed())
    assert sorted(made) == [0, 1, 2]
    assert not {int(mark.read_text()) for mark in before} & set(lost)
    assert len((tmp_path / "starts").read_text()) == 4


def test_a_task_that_hangs_gets_a_second_attempt(
    tmp_path: Path, ray_rig: RayRig, cluster: RayCluster
):
    ray_rig.resize(2)
    tasks = tasks_in(tmp_path, 6)
    engine = RayEngine(cluster, late_seconds=0.5)
    assert sorted(engine.run(engine_tasks.hang_once, tasks)) == [0, 1, 2, 3, 4, 5]
    assert tasks[0].mark("ended").exists()  # the first attempt was told to stop


# -- drivers

DRIVER = f"""
import sys; sys.path.insert(0, {str(TESTS)!r})
import engine_tasks
from tokenmill.engine import RayCluster, RayEngine
cluster = RayCluster(sys.argv[1])
tasks = [engine_tasks.Task(number, sys.argv[2]) for number in range(2)]
try:
    print(len(list(RayEngine(cluster).run(getattr(engine_tasks, sys.argv[3]), tasks))))
finally:
    cluster.close()
"""


def start_driver(rig: RayRig, folder: Path, function: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", DRIVER, rig.address, str(folder), function]
    return subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_ray_says_nothing_even_when_workers_die(tmp_path: Path, ray_rig: RayRig):
    driver = start_driver(ray_rig, tmp_path, "die_once")
    assert driver.communicate(timeout=60) == ("2\n", "")


def test_ctrl_c_ends_the_tasks_and_leaves_the_cluster(tmp_path: Path, ray_rig: RayRig):
    driver = start_driver(ray_rig, tmp_path, "until_stopped")
    task = Task(0, str(tmp_path))
    wait_for(task.mark("started"))
    os.killpg(driver.pid, signal.SIGINT)
    _, err = driver.communicate(timeout=60)
    assert driver.returncode == -signal.SIGINT
    assert err.count("Traceback") == err.count("KeyboardInterrupt") == 1
    assert task.mark("ended").exists()
    again = start_driver(ray_rig, tmp_path, "double")
    assert again.communicate(timeout=60) == ("2\n", "")


def test_workers_end_when_their_driver_is_killed(tmp_path: Path, ray_rig: RayRig):
    driver = start_driver(ray_rig, tmp_path, "until_stopped")
    task = Task(0, str(tmp_path))
    wait_for(task.mark("started"))
    driver.kill()
    driver.communicate()
    wait_until_gone([int(task.mark("started").read_text())])


# -- addresses


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "cannot be reached: .*refused"),
        ("nowhere", "expected host:port"),
        ("ray://127.0.0.1:10001", "is one for Ray's client"),
    ],
)
def test_a_wrong_address_is_a_clear_error(address: str, message: str):
    program = f"""
from tokenmill.engine import RayCluster
from tokenmill.errors import ConfigError
try:
    RayCluster({address!r})
except ConfigError as error:
    print(error)
"""
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert run.stderr == ""
    assert re.search(message, run.stdout)


def test_another_version_of_ray_is_a_clear_error():
    found = RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 1.0\n")
    error = ray_module._connection_error(found)
    assert isinstance(error, ConfigError)
    assert "The cluster was started with: Ray: 1.0" in error.message
    assert "same versions" in (error.hint or "")


def test_errors_keep_their_class_and_hint(cluster: RayCluster, tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        list(RayEngine(cluster).run(engine_tasks.need_mark, tasks_in(tmp_path, 1)))
    assert caught.value.hint == "put it there"
    assert not isinstance(caught.value, BadDocumentError)
