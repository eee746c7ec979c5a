"""How the units of a run are shared out on one machine: threads of this process, or processes."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.engine import LocalEngine, ProcessEngine, resolve_workers

TASKS_AT_A_TIME = 3
"""Of a process: two units, so that its encoders always have work, and a shard to be written."""
THREADS_PER_PROCESS = 2
"""Encoder threads that one interpreter keeps fed; more of them get processes of their own."""
UNITS_PER_PROCESS = 4
"""A process takes half a second to start: less work than this is not worth one."""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """So many encoder threads, in so many processes."""

    workers: int
    num_processes: int

    @property
    def threads_per_process(self) -> int:
        """Encoder threads of a process; all units that it works on share them."""
        return -(-self.workers // self.num_processes)

    def engine(self) -> LocalEngine | ProcessEngine:
        """Return the engine for the tasks of the run."""
        if self.num_processes == 1:
            return LocalEngine(TASKS_AT_A_TIME)
        return ProcessEngine(self.num_processes, num_threads=TASKS_AT_A_TIME)


def arrange(workers: int | None, *, num_units: int) -> Arrangement:
    """Arrange `workers` encoder threads, or as many as there are cores, for some units."""
    number = resolve_workers(workers)
    most_processes = max(num_units // UNITS_PER_PROCESS, 1)
    return Arrangement(number, min(-(-number // THREADS_PER_PROCESS), most_processes))
