"""Room on this machine's disk for files on their way to an object store, and from it.

Each process has a folder of its own under the system's temporary folder (TMPDIR), and holds a lock
in it. At its end it removes the folder; those of processes that were killed go when the next one on
the same machine makes its own.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from tokenmill.files import storage_error

_LOCK_NAME = "lock"
_lock = threading.Lock()
_own: dict[int, tuple[Path, BinaryIO]] = {}  # by process: a forked child needs another


def scratch_path(name: str) -> Path:
    """Return a path for a new file that nobody else uses; `name` says what it is for."""
    with _lock:
        if os.getpid() not in _own:
            _own[os.getpid()] = _make_folder()
        folder, _ = _own[os.getpid()]
    return folder / f"{uuid4().hex[:12]}.{name.replace('/', '_')}"


def _make_folder() -> tuple[Path, BinaryIO]:
    parent = Path(tempfile.gettempdir())
    mark = f"tokenmill-{os.uname().nodename}-"
    _sweep(parent, mark)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{mark}{os.getpid()}-", dir=parent))
        lock = (folder / _LOCK_NAME).open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise storage_error(error, parent) from error
    atexit.register(_leave, os.getpid(), folder, lock)
    return folder, lock


def _leave(pid: int, folder: Path, lock: BinaryIO) -> None:
    """Remove the folder at the end of its process; a forked child leaves it to its parent."""
    if pid == os.getpid():
        lock.close()
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path, mark: str) -> None:
    """Remove the folders of processes of this machine that are gone: their locks are free."""
    for folder in parent.glob(f"{mark}*"):
        with suppress(OSError), (folder / _LOCK_NAME).open("rb") as lock:  # or it is another's
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
