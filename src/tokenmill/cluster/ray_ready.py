"""Wait until the nodes of a job have joined its Ray cluster: `python -m …ray_ready CPUS SECONDS`.

The batch script runs this after it has started Ray; the cluster is the one of RAY_ADDRESS.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing

from tokenmill.engine import RayCluster
from tokenmill.errors import TokenmillError

POLL_SECONDS = 0.5
ENOUGH = 0.5
"""With less than this share of the cores something is wrong with the cluster, not with a node."""


def wait_for_cpus(num_cpus: int, *, timeout_seconds: float) -> int:
    """Return how many cores have joined: `num_cpus`, or fewer when the time is over."""
    deadline = time.monotonic() + timeout_seconds
    with closing(RayCluster()) as cluster:
        while True:
            found = cluster.num_cpus()
            if found >= num_cpus or time.monotonic() > deadline:
                return found
            time.sleep(POLL_SECONDS)


def main(arguments: list[str]) -> int:
    """Wait, say how many came, and return whether that is enough to work with."""
    wanted, seconds = int(arguments[0]), float(arguments[1])
    try:
        found = wait_for_cpus(wanted, timeout_seconds=seconds)
    except TokenmillError as error:
        sys.stderr.write(f"tokenmill run: {error}\n")
        return error.exit_code
    late = "" if found >= wanted else f" of {wanted}, the others may join later"
    sys.stderr.write(f"tokenmill run: Ray is ready with {found} cores{late}\n")
    return 0 if found >= ENOUGH * wanted else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
