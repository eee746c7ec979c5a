"""A real Ray cluster on this machine: a head and further nodes, with processes of their own.

It never calls `ray stop`, which would end every Ray process of the machine: a cluster ends what it
started, and nothing else.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

STORE_BYTES = 80 << 20
READY_SECONDS = 60.0


def missing() -> str:
    """Return why there can be no cluster here, or nothing."""
    try:
        import ray.cluster_utils
    except ImportError:
        return "RAY IS MISSING: the Ray engine is not tested (pip install 'tokenmill[ray]')"
    del ray
    return ""


class RayRig:
    """A running cluster; nodes come and go."""

    def __init__(self, cluster: Any, settings: dict[str, str]) -> None:
        self._cluster, self._settings = cluster, settings
        self.nodes: list[Any] = [cluster.head_node]

    @property
    def address(self) -> str:
        """Where drivers connect to."""
        return self._cluster.address

    def add_node(self) -> Any:
        """Start another node with one core."""
        with _environment(self._settings):
            node = self._cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        self.nodes.append(node)
        return node

    def kill_node(self, node: Any) -> list[int]:
        """Kill a node and its workers at once, as a loss of power does; return who they were."""
        self.nodes.remove(node)
        workers = self.workers_of(node)
        self._cluster.remove_node(node, allow_graceful=False)
        for pid in workers:
            _kill(pid)
        return workers

    def resize(self, num_nodes: int) -> None:
        """Start nodes, or end some in good order, until there are so many."""
        while len(self.nodes) > num_nodes:
            self._cluster.remove_node(self.nodes.pop())
        while len(self.nodes) < num_nodes:
            self.add_node()
        self.wait_for_cpus(num_nodes)

    def wait_for_cpus(self, num_cpus: int) -> None:
        """Wait until the cluster itself counts so many cores."""
        deadline = time.monotonic() + READY_SECONDS
        while (found := self._num_cpus()) != num_cpus:
            assert time.monotonic() < deadline, f"{found} cores, expected {num_cpus}"
            time.sleep(0.05)

    def workers(self) -> list[int]:
        """Return the processes that run tasks now, by the name that Ray gives them."""
        raylets = {pid for node in self.nodes for pid in _raylets(node)}
        return [pid for pid, parent, name in _processes() if parent in raylets and _is_worker(name)]

    def workers_of(self, node: Any) -> list[int]:
        """Return all worker processes of a node."""
        raylets = set(_raylets(node))
        return [pid for pid, parent, name in _processes() if parent in raylets and "ray" in name]

    def _num_cpus(self) -> int:
        nodes = self._cluster.global_state.node_table()
        return sum(int(node["Resources"].get("CPU", 0)) for node in nodes if node["Alive"])


@contextmanager
def ray_cluster(python_paths: Iterable[Path] = (), *, num_cpus: int = 1) -> Generator[RayRig]:
    """Start a head with some cores in a folder of its own; stop everything at the end.

    Modules in `python_paths` can be imported by workers.
    """
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray-")  # short: sockets have names of 107 bytes at most
    settings = {
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_health_check_initial_delay_ms": "0",
        "RAY_health_check_period_ms": "500",
        "RAY_health_check_timeout_ms": "5000",
        "RAY_health_check_failure_threshold": "4",
        "PYTHONPATH": os.pathsep.join([*map(str, python_paths), os.environ.get("PYTHONPATH", "")]),
    }
    try:
        with _environment(settings):
            cluster = Cluster(
                initialize_head=True,
                head_node_args={
                    "num_cpus": num_cpus,
                    "object_store_memory": STORE_BYTES,
                    "include_dashboard": False,
                },
            )
        try:
            yield RayRig(cluster, settings)
        finally:
            with _environment(settings):
                cluster.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _environment(settings: dict[str, str]) -> Generator[None]:
    """Set variables for what is started in the block; drivers see none of them."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _raylets(node: Any) -> list[int]:
    return [info.process.pid for info in node.all_processes.get("raylet", [])]


def _processes() -> list[tuple[int, int, str]]:
    """Return the number, the parent and the command of every process."""
    found: list[tuple[int, int, str]] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended meanwhile
        found.append((int(folder.name), int(fields[1]), command))
    return found


def _is_worker(command: str) -> bool:
    return command.startswith("ray::run_attempt")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it was faster
        os.kill(pid, signal.SIGKILL)
