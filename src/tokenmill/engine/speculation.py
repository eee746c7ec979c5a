"""When a task is so late that a second attempt at it is worth an idle core."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from statistics import median

MIN_PEERS = 3
"""Finished tasks of the same kind that it takes to know how long such a task should take."""
LATE_FACTOR = 3.0
LATE_SECONDS = 10.0
_REMEMBERED = 101


class Pace:
    """How long tasks of each kind took lately, and whether another one takes far longer.

    >>> pace = Pace(late_seconds=10)
    >>> for seconds in (4, 5, 6):
    ...     pace.note("unit", seconds)
    >>> pace.is_late("unit", 14), pace.is_late("unit", 16), pace.is_late("shard", 1000)
    (False, True, False)
    """

    def __init__(self, late_seconds: float = LATE_SECONDS) -> None:
        self.late_seconds = late_seconds
        """However short its peers were, a task that runs no longer than this is not late."""
        self._taken: defaultdict[Hashable, deque[float]] = defaultdict(
            lambda: deque[float](maxlen=_REMEMBERED)
        )

    def note(self, kind: Hashable, seconds: float) -> None:
        """Remember how long a task took that has finished."""
        self._taken[kind].append(seconds)

    def is_late(self, kind: Hashable, seconds: float) -> bool:
        """Tell whether a task that has run for so long takes far longer than its peers did."""
        if seconds <= self.late_seconds:
            return False
        taken = self._taken.get(kind, ())
        return len(taken) >= MIN_PEERS and seconds > LATE_FACTOR * median(taken)
