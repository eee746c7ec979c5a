"""A run on a cluster: connect while the driver plans, and make sure that workers see the output."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from tokenmill.engine import LATE_SECONDS, RayCluster, RayEngine, resolve_workers
from tokenmill.errors import StorageError
from tokenmill.folder import Folder, open_folder
from tokenmill.pipeline.context import leave_run
from tokenmill.store import RUN_FOLDER

MARK_NAME = f"{RUN_FOLDER}/mark"
_SEEN_SECONDS = 3.0
"""How long a new file may take to be seen by other machines."""
_LOOK_SECONDS = 0.1


class ClusterSettings(Protocol):
    """The settings that say where tasks run."""

    @property
    def engine(self) -> str:
        """Which engine: local or ray."""
        ...

    @property
    def address(self) -> str | None:
        """Where the cluster is."""
        ...

    @property
    def workers(self) -> int | None:
        """How many cores may be used."""
        ...


class Mark(msgspec.Struct, frozen=True):
    """What the driver wrote into the run's folder, for workers to find."""

    output: str
    id: str


class Opening:
    """A connection to a cluster in the making; calling it waits for it."""

    def __init__(self, settings: ClusterSettings, warm: Any) -> None:
        self._settings, self._warm = settings, warm
        self._cluster: RayCluster | None = None
        self._error: BaseException | None = None
        self._is_unwanted = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._open, name="opening", daemon=True)
        self._thread.start()

    def __call__(self) -> RayCluster:
        """Return the cluster, or raise why there is none."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._cluster is not None
        return self._cluster

    def close(self) -> None:
        """Leave the cluster, as soon as it is reached if it is not yet."""
        with self._lock:
            self._is_unwanted = True
            cluster = self._cluster
        if cluster is not None:
            cluster.close()

    def _open(self) -> None:
        try:
            num_cpus = resolve_workers(self._settings.workers)
            cluster = RayCluster(self._settings.address, num_cpus=num_cpus)
            cluster.warm_up(self._warm)
        except BaseException as error:  # noqa: BLE001  (raised again where it is waited for)
            self._error = error
            return
        with self._lock:
            self._cluster = cluster
            is_unwanted = self._is_unwanted
        if is_unwanted:
            cluster.close()


@contextmanager
def opening_cluster(settings: ClusterSettings, warm: Any) -> Generator[Opening | None]:
    """Begin to connect to a cluster if the settings ask for one; leave it at the end.

    Its workers load the module of the function `warm` meanwhile.
    """
    if settings.engine != "ray":
        yield None
        return
    opening = Opening(settings, warm)
    try:
        yield opening
    finally:
        opening.close()


def engine_on(
    opening: Opening,
    settings: ClusterSettings,
    folder: Folder,
    *,
    late_seconds: float = LATE_SECONDS,
) -> RayEngine:
    """Return an engine whose workers see `folder`; one that does not is an error."""
    mark = Mark(folder.place, uuid4().hex)
    folder.write(MARK_NAME, mark.id.encode())
    cluster = opening()
    workers = settings.workers
    if workers is not None and workers <= 0:
        workers = max(cluster.num_cpus() * 3 // 4, 1)
    before = check_mark, mark
    return RayEngine(cluster, workers=workers, before=before, late_seconds=late_seconds)


def check_mark(mark: Mark) -> None:
    """Make sure, in a worker, that the folder here is the one that the driver writes to."""
    leave_run(mark.output)  # this process may have worked on an earlier run
    folder = open_folder(mark.output)
    deadline = time.monotonic() + _SEEN_SECONDS
    while (found := _read_mark(folder)) != mark.id:
        if time.monotonic() > deadline:
            what = "something else there" if found else "nothing there"
            raise StorageError(
                f"node {platform.node()} does not see {mark.output} as the driver does: {what}",
                hint="write to a folder that all nodes share, under the same path, or to s3://",
            )
        time.sleep(_LOOK_SECONDS)


def _read_mark(folder: Folder) -> str:
    try:
        return folder.read(MARK_NAME).decode()
    except (FileNotFoundError, NotADirectoryError):
        return ""
