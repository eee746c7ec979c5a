"""Tasks on a Ray cluster: one that is there already, or one of this machine, for a while.

Ray schedules, starts workers and notices deaths. Orders and accounts cross as JSON bytes and are
small, so they never enter its object store. This is the only file that knows Ray, and importing it
does not load it.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tokenmill.engine.attempts import Attempts, Ended, Executor
from tokenmill.engine.cluster_worker import Order, run_attempt, warm_up
from tokenmill.engine.protocol import Request, function_name, task_and_result_types
from tokenmill.engine.speculation import LATE_SECONDS, Pace
from tokenmill.errors import ConfigError, MissingDependencyError, TokenmillError

T = TypeVar("T")
R = TypeVar("R")

CONNECT_SECONDS = 60.0
"""How long a cluster may take to let a driver in; a local one, to start."""
_REACH_SECONDS = 5.0
_OBJECT_STORE_BYTES = 100 << 20  # of a local cluster: nothing large ever goes there
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns of a change to come
    "RAY_DEDUP_LOGS": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "5",
}
_log = logging.getLogger(__name__)


class RayEngine:
    """Runs tasks on the cores of a cluster, one core for each.

    `workers` bounds the cores in use; without it, all of them are used, and those that come later.
    `before` is a function and a task for it, run once by each worker process before its first task.
    """

    def __init__(
        self,
        cluster: Executor,
        *,
        workers: int | None = None,
        before: tuple[Callable[[Any], Any], Any] | None = None,
        late_seconds: float = LATE_SECONDS,
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        self._cluster, self._workers, self._late_seconds = cluster, workers, late_seconds
        self._before = None if before is None else _request(*before)

    def run(self, function: Callable[[T], R], tasks: Iterable[T]) -> Generator[R]:
        """Yield results as they finish; see `Engine.run`."""
        return self._run(function_name(function), tasks, task_and_result_types(function)[1])

    def _run(self, name: str, tasks: Iterable[Any], result_type: Any) -> Generator[Any]:
        order = Order(
            request=Request(0, name, msgspec.Raw(b"null")),
            before=self._before,
            folder=str(Path.cwd()),
            version=version("tokenmill"),
        )
        attempts = Attempts(
            self._cluster,
            tasks,
            order=order,
            most=self._workers,
            pace=Pace(self._late_seconds),
        )
        try:
            for result in attempts:
                yield msgspec.json.decode(result, type=result_type)
        finally:
            attempts.stop()


def _request(function: Callable[[Any], Any], task: Any) -> Request:
    return Request(0, function_name(function), msgspec.Raw(msgspec.json.encode(task)))


class RayCluster:
    """A connection to a cluster, an `Executor`; `close` it.

    `address` is that of a cluster (host:port, or auto for one of this machine); without it the
    variable RAY_ADDRESS counts, and without that a cluster of `num_cpus` cores is started here and
    ends with the connection. A program that is connected to Ray already keeps its connection.
    """

    def __init__(self, address: str | None = None, *, num_cpus: int | None = None) -> None:
        self.inbox: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._numbers = count()
        self._refs: dict[int, Any] = {}
        self._closing = threading.Event()
        self._answer: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._ray = _load_ray()
        self._is_own = not self._ray.is_initialized()
        self._thread = threading.Thread(
            target=self._hold, args=(_place(address), num_cpus), name="ray", daemon=True
        )
        if self._is_own:
            self._connect()
        attempt = self._ray.remote(num_cpus=1, max_retries=0)(run_attempt)
        self._attempt = attempt.remote
        self._attempt_elsewhere = attempt.options(scheduling_strategy="SPREAD").remote

    def warm_up(self, function: Callable[..., Any]) -> None:
        """Let workers load the module of a function while the driver has other things to do."""
        warm = self._ray.remote(num_cpus=1, max_retries=0)(warm_up)
        self._warm = [warm.remote(function_name(function)) for _ in range(self.num_cpus())]

    def submit(self, order: bytes, *, elsewhere: bool) -> int:
        """Hand an attempt over to Ray."""
        number = next(self._numbers)
        reference = (self._attempt_elsewhere if elsewhere else self._attempt)(order)
        self._refs[number] = reference
        reference.future().add_done_callback(partial(self._note_end, number))
        return number

    def cancel(self, attempt: int, *, force: bool) -> None:
        """Cancel an attempt, unless it has ended meanwhile."""
        reference = self._refs.get(attempt)
        if reference is not None:
            with suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.cancel(reference, force=force)

    def num_cpus(self) -> int:
        """Return the cores of the nodes that are up."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def num_idle_cpus(self) -> int:
        """Return the cores that no task of anyone holds."""
        return int(self._ray.available_resources().get("CPU", 0))

    def close(self) -> None:
        """Leave the cluster as it was; end it if it was started here."""
        self._refs.clear()
        self._closing.set()
        if self._is_own:
            self._thread.join()

    # -- connecting

    def _connect(self) -> None:
        self._thread.start()
        try:
            error = self._answer.get(timeout=CONNECT_SECONDS)
        except queue.Empty:
            error = ConnectionError(f"no answer in {CONNECT_SECONDS:.0f} seconds")
        except BaseException:
            self._closing.set()
            raise
        if error is not None:
            self._closing.set()
            raise _connection_error(error) from error

    def _hold(self, place: str, num_cpus: int | None) -> None:
        """Connect, stay until closed, disconnect: all in one thread.

        The processes of a local cluster end with the thread that started them; and in a thread of
        its own Ray cannot take the signals that the command line handles.
        """
        try:
            self._init(place, num_cpus)
        except BaseException as error:  # noqa: BLE001  (raised again by the thread that waits)
            self._answer.put(error)
            return
        self._answer.put(None)
        with _no_chatter(self._ray):
            self._closing.wait()
            self._ray.shutdown()

    def _init(self, place: str, num_cpus: int | None) -> None:
        settings: dict[str, Any] = {
            "address": place,
            "logging_level": logging.INFO if _is_verbose() else logging.CRITICAL,
            "log_to_driver": _is_verbose(),
        }
        if place == "local":
            settings |= {
                "num_cpus": num_cpus,
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
            }
        else:
            _check_reachable(place)
        self._ray.init(**settings)

    # -- results

    def _note_end(self, number: int, future: Any) -> None:
        """Put how an attempt ended into the inbox; Ray calls this from a thread of its own."""
        self._refs.pop(number, None)
        self.inbox.put(self._ended(number, future))

    def _ended(self, number: int, future: Any) -> Ended:
        error, kinds = future.exception(), self._ray.exceptions
        if error is None:
            return Ended(number, account=future.result())
        cause = str(error).partition("\n")[0].rstrip(".")
        if isinstance(error, kinds.TaskCancelledError):
            return Ended(number, loss="cancelled", cause=cause)
        if isinstance(error, kinds.OutOfMemoryError):
            return Ended(number, loss="worker", cause="ended by Ray for the memory that it took")
        if isinstance(error, kinds.WorkerCrashedError):
            return Ended(number, loss="worker", cause="without a word")
        if isinstance(error, kinds.RayTaskError):  # tasks' own errors come in their accounts
            return Ended(number, error=_useless_worker(error))
        return Ended(number, loss="node", cause=cause)


def _load_ray() -> Any:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingDependencyError("ray", extra="ray", purpose="the engine ray") from error
    return ray


def _place(address: str | None) -> str:
    place = address or os.environ.get("RAY_ADDRESS") or "local"
    if "://" in place:
        raise ConfigError(
            f"the Ray address {place!r} is one for Ray's client, expected host:port",
            hint="run the command on a node of the cluster, as `ray job submit` does",
        )
    return place


def _check_reachable(place: str) -> None:
    """Knock first: where nobody listens, Ray would wait for many minutes."""
    host, colon, port = place.rpartition(":")
    if place == "auto":
        return
    if not colon or not port.isdecimal():
        raise ConfigError(f"the Ray address is {place!r}, expected host:port, auto or local")
    with socket.create_connection((host, int(port)), timeout=_REACH_SECONDS):
        pass


def _connection_error(error: BaseException) -> BaseException:
    if isinstance(error, TokenmillError):
        return error
    if "Version mismatch" in str(error):
        lines = " ".join(line.strip() for line in str(error).splitlines())
        hint = "install the same versions of Ray and Python here and on the cluster"
        return ConfigError(f"the Ray cluster cannot be used from here: {lines}", hint=hint)
    if isinstance(error, OSError | RuntimeError | ValueError):
        return ConfigError(
            f"the Ray cluster cannot be reached: {error}",
            hint="check --address and RAY_ADDRESS; `ray status` on its head tells whether it is up",
        )
    return error


def _useless_worker(error: BaseException) -> TokenmillError:
    reason = next((line for line in reversed(str(error).splitlines()) if line.strip()), "")
    return ConfigError(
        f"a worker of the Ray cluster cannot run tasks: {reason.strip()}",
        hint="install the same version of tokenmill on all nodes",
    )


def _is_verbose() -> bool:
    return _log.isEnabledFor(logging.DEBUG)


@contextmanager
def _no_chatter(ray: Any) -> Generator[None]:
    """Keep Ray from printing what befalls its processes: on stdout, which carries results.

    There is no setting for it. What counts of it comes to the driver as the end of an attempt.
    """
    module, name = ray._private.worker, "print_to_stdstream"
    before = getattr(module, name, None)
    if before is None or _is_verbose():
        yield
        return
    setattr(module, name, lambda *_, **__: None)
    try:
        yield
    finally:
        setattr(module, name, before)
