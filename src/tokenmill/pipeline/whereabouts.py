"""Where a process works, for those who look from elsewhere: its host, its job, its nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process, and the job of Slurm that it is part of, if it is."""

    host: str = ""
    """The machine's name, as the system knows it."""
    pid: int = 0
    job: str = ""
    """The number of the job; of an array's task both, as in 17_3."""
    nodes: str = ""
    """The nodes of the job, as in n[1-4]."""
    restarts: int = 0
    """How often the job went back into the queue."""

    def seems_alive(self) -> bool | None:
        """Tell whether the process runs, if it is on this machine; None if it is on another."""
        if self.host != os.uname().nodename:
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def whereabouts(environment: Mapping[str, str] | None = None) -> Whereabouts:
    """Return where this process works."""
    env = os.environ if environment is None else environment
    array, task = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    restarts = env.get("SLURM_RESTART_COUNT", "")
    return Whereabouts(
        host=os.uname().nodename,
        pid=os.getpid(),
        job=f"{array}_{task}" if array and task else env.get("SLURM_JOB_ID", ""),
        nodes=env.get("SLURM_JOB_NODELIST", ""),
        restarts=int(restarts) if restarts.isdecimal() else 0,
    )
