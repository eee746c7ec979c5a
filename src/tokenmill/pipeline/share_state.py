"""What each share of a run tells about itself: one small file, written by it alone.

    _run/shares/000003.json    how far share 3 is, where it runs, when it last said so

A log that several machines append to would be torn on a network file system; a file of its own,
replaced as a whole, is not.
"""

from __future__ import annotations

import time

import msgspec

from tokenmill.folder import Folder
from tokenmill.pipeline.whereabouts import Whereabouts
from tokenmill.store import RUN_FOLDER

SHARES_FOLDER = f"{RUN_FOLDER}/shares"
LIVE_SECONDS = 120.0
"""A process on another machine that was silent for longer counts as gone."""


class ShareState(msgspec.Struct, frozen=True, kw_only=True):
    """How far one share is. The counts are of all its units that are done, whoever did them."""

    share: int
    num_shares: int
    state: str
    """running, stopped or done."""
    time: float
    started: float
    num_units: int
    num_units_done: int
    num_units_made: int
    """Done by the process that wrote this, since it started."""
    bytes_made: int
    """About how much of the input those were."""
    num_tokens: int
    num_documents: int
    num_rejected: int
    where: Whereabouts

    @property
    def is_live(self) -> bool:
        """Whether the process still works, as far as can be known from here."""
        if self.state != "running":
            return False
        alive = self.where.seems_alive()
        return time.time() - self.time < LIVE_SECONDS if alive is None else alive

    @property
    def bytes_per_second(self) -> float:
        """How fast it has been, itself."""
        return self.bytes_made / max(self.time - self.started, 1.0)


_STATES = msgspec.json.Decoder(ShareState)


def write_state(folder: Folder, state: ShareState) -> None:
    """Replace what the share said before."""
    name = f"{SHARES_FOLDER}/{state.share:06d}.json"
    folder.write(name, msgspec.json.encode(state), sync=False)


def read_states(folder: Folder) -> list[ShareState]:
    """Return what the shares of a run said last; one that is cut short is passed over."""
    found: list[ShareState] = []
    for name in folder.sizes(SHARES_FOLDER):
        if name.startswith(".") or not name.endswith(".json"):
            continue
        try:
            found.append(_STATES.decode(folder.read(f"{SHARES_FOLDER}/{name}")))
        except (FileNotFoundError, msgspec.DecodeError):
            continue
    return found
