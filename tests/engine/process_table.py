"""Which processes there are, by the system's own account."""

from __future__ import annotations

import time
from pathlib import Path

CHILD_SECONDS = 30.0


def children_of(pid: int) -> list[int]:
    """Return the processes that `pid` started and that are still there, zombies included."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + CHILD_SECONDS
    while left := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that only waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
