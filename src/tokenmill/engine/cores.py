"""How many cores there are to use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def resolve_workers(workers: int | None) -> int:
    """Return a number of workers: None is every core, zero or less three quarters of them."""
    if workers is None:
        return available_cores()
    return workers if workers > 0 else max(1, available_cores() * 3 // 4)


def available_cores(*, cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return how many cores this process may use, counting affinity and container limits.

    A limit of one and a half cores counts as two: the second is used half of the time.
    """
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quotas = (_quota(folder) for folder in _folders(cgroups, membership))
    limits = [max(1, math.ceil(quota)) for quota in quotas if quota is not None]
    return min([cores, *limits])


def _folders(cgroups: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of the control groups that this process is in, from the outermost in.

    Inside a container the paths may be those of the host; then only the outermost folder exists,
    and holds the container's own limit.
    """
    lines = (_read(membership) or "0::/").splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2, alone or beside version 1
            roots = [cgroups, cgroups / "unified"]
        elif "cpu" in controllers.split(","):
            roots = [cgroups / name for name in {controllers, "cpu", "cpu,cpuacct"}]
        else:
            continue
        for root in roots:
            folder = root
            yield folder
            for part in path.strip("/").split("/"):
                folder = folder / part
                yield folder


def _quota(folder: Path) -> float | None:
    """Return the limit of one control group in cores."""
    limit = _read(folder / "cpu.max")
    if limit is None:  # version 1
        limit = f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}"
    try:
        quota, period = (int(number) for number in limit.split())
    except ValueError:
        return None  # "max", or no such files
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
