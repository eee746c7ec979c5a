"""What one job asks of Slurm: the flags of `tokenmill run`, checked field by field."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tokenmill.cluster.quoting import directive_path, directive_word
from tokenmill.errors import ConfigError

_MEMORY = re.compile(r"[0-9]+[KMGT]?", re.IGNORECASE)
_TIME = re.compile(r"((?P<days>[0-9]+)-)?(?P<clock>[0-9]+(:[0-9]+){0,2})")
_CONSTRAINT = re.compile(r"[\[(A-Za-z0-9_][A-Za-z0-9_.,&|!*()\[\]:=-]*")
_ARRAY = re.compile(r"(?P<size>[1-9][0-9]{0,6})(%(?P<limit>[1-9][0-9]{0,6}))?")
_NO_LIMIT = {"UNLIMITED", "INFINITE"}
_WARNING_SECONDS = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSettings:
    """The size and the name of a job."""

    nodes: int = 1
    """Nodes; with more than one, Ray shares the work out."""
    cpus: int = 40
    """Cores on each node."""
    mem: str = "40G"
    """Memory on each node."""
    time: str = "1-00:00:00"
    """Time limit; before it ends the job stops at a safe point, requeues itself and continues."""
    gpus_per_node: int = 0
    """GPUs on each node."""
    constraint: str | None = None
    """Features that nodes must have."""
    job_name: str = "tokenmill"
    """Name of the job."""
    log: str = "tokenmill-%j.log"
    """File for what the job prints; %j is the job's number."""
    error_log: str | None = None
    """File for what it prints on stderr; by default the same."""
    array: str | None = None
    """N or N%M: share the units among N jobs, M of them at a time, without Ray."""
    max_restarts: int = 50
    """How often a job requeues itself before it gives up."""

    def __post_init__(self) -> None:
        for name, minimum in (("nodes", 1), ("cpus", 1), ("gpus_per_node", 0), ("max_restarts", 0)):
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, got {getattr(self, name)}")
        directive_word(self.job_name, what="job_name")
        directive_path(self.log, what="log")
        if self.error_log is not None:
            directive_path(self.error_log, what="error_log")
        if not _MEMORY.fullmatch(self.mem):
            raise ConfigError(f"mem is {self.mem!r}, expected a number with K, M, G or T: 40G")
        if self.constraint is not None and not _CONSTRAINT.fullmatch(self.constraint):
            raise ConfigError(
                f"constraint is {self.constraint!r}, expected names with & | , * ! and brackets"
            )
        if self.array is not None and not _ARRAY.fullmatch(self.array):
            raise ConfigError(f"array is {self.array!r}, expected N or N%M, such as 64 or 64%8")
        if self.array is not None and self.nodes > 1:
            raise ConfigError(
                f"array is {self.array} and nodes is {self.nodes}, but each task has one node",
                hint="drop -N for a job array, or --array for Ray over the nodes",
            )
        time_seconds(self.time)

    @property
    def num_shares(self) -> int:
        """The number of array tasks; 0 without an array."""
        match = _ARRAY.fullmatch(self.array or "")
        return int(match["size"]) if match else 0

    @property
    def warning_seconds(self) -> int:
        """How long before its time is up a job is told to stop: early enough to end in peace."""
        seconds = time_seconds(self.time)
        return _WARNING_SECONDS if seconds is None else min(_WARNING_SECONDS, max(seconds // 4, 1))


def time_seconds(text: str) -> int | None:
    """Return the seconds of a time limit as Slurm writes it, or None for no limit.

    >>> time_seconds("30"), time_seconds("1:30"), time_seconds("1-00:00:00"), time_seconds("2-12")
    (1800, 90, 86400, 216000)
    """
    if text.upper() in _NO_LIMIT:
        return None
    match = _TIME.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"time is {text!r}, expected minutes, H:M:S, D-H or D-H:M:S, such as 1-00:00:00"
        )
    clock = [int(part) for part in match["clock"].split(":")]
    if match["days"] is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = [*clock, 0, 0][:3]
    else:  # minutes, minutes:seconds or hours:minutes:seconds
        hours, minutes, seconds = {1: [0, *clock, 0], 2: [0, *clock], 3: clock}[len(clock)]
    found = ((int(match["days"] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if not found:
        raise ConfigError(f"time is {text!r}, which is no time at all")
    return found
