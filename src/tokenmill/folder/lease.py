"""A lock in an object store, which knows no locks: an object that its holder renews.

    _run/locks/000007.json    who holds it, on which machine, and when it was last renewed

Whoever takes over from a holder that is gone creates the object with the next number, which only
one can; the highest number counts, and it is never removed. So there is no moment at which two can
take the same lock. A holder that stood still for long can find that another took over: `check`
tells. Times are those of the holders' clocks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import msgspec

from tokenmill.errors import BusyError, StorageError
from tokenmill.remote import delete_objects, join, list_objects, put_object, read_object

RENEW_SECONDS = 20.0
STALE_SECONDS = 90.0
"""A holder on another machine that did not renew for so long counts as gone."""
_GOODBYE_SECONDS = 10.0
_TRIES = 5
_PROCESS_STATE, _PROCESS_START = 0, 19  # fields of /proc/PID/stat behind the name

_held: set[str] = set()  # ids of the leases that this process holds


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a lease."""

    id: str
    host: str
    machine: str
    """Where `pid` means something: the name, the boot and the process space of a machine."""
    pid: int
    started: str
    """When the process started: numbers of processes come again."""
    time: float
    is_released: bool = False

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"

    def is_alive(self) -> bool:
        """Tell whether the lease counts: its process lives, or renewed it not long ago."""
        if self.is_released:
            return False
        if self.machine != _machine():
            return time.time() - self.time < STALE_SECONDS
        if self.pid == os.getpid():
            return self.id in _held
        return self.started == _process_start(self.pid)


_HOLDERS = msgspec.json.Decoder(Holder)


class Lease:
    """The lease at a URL, held by this process until `release`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._taken_by: Holder | None = None
        self._holder, self._number = _take(url)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def check(self, *, now: bool = False) -> None:
        """Raise `BusyError` if another run took over; `now` asks, instead of remembering."""
        if now:
            self._look()
        if self._taken_by is not None:
            raise BusyError(
                f"{self.url.rpartition('/')[0]}: taken over by another run ({self._taken_by}): "
                f"this one was not heard of for {STALE_SECONDS:.0f} seconds",
                hint="leave the work to it; `tokenmill status` shows how far it is",
            )

    def release(self) -> None:
        """Let others have it; if that cannot be said now, they find that this process is gone."""
        self._stop.set()
        self._thread.join(_GOODBYE_SECONDS)
        _held.discard(self._holder.id)

    def _renew(self) -> None:
        """Renew the lease until it is released, then say so: one thread, so in that order."""
        while not self._stop.wait(RENEW_SECONDS):
            with suppress(StorageError):  # the run itself will say what is wrong
                self._look()
                if self._taken_by is not None:
                    return
                self._write(msgspec.structs.replace(self._holder, time=time.time()))
        if self._taken_by is None:
            with suppress(StorageError):
                self._write(msgspec.structs.replace(self._holder, is_released=True))

    def _look(self) -> None:
        number, holder = _latest(self.url)
        if number > self._number:
            self._taken_by = holder

    def _write(self, holder: Holder) -> None:
        put_object(_name(self.url, self._number), msgspec.json.encode(holder))


@contextmanager
def hold_lease(url: str) -> Generator[Lease]:
    """Hold the lease at `url` for the block; raise `BusyError` if another process has it."""
    lease = Lease(url)
    try:
        yield lease
    finally:
        lease.release()


def lease_holder(url: str) -> str | None:
    """Return who holds the lease at `url`, if anyone does."""
    _, holder = _latest(url)
    return str(holder) if holder is not None and holder.is_alive() else None


def _take(url: str) -> tuple[Holder, int]:
    for _ in range(_TRIES):
        number, before = _latest(url)
        if before is not None and before.is_alive():
            raise _busy(url, before)
        holder = Holder(
            id=uuid4().hex,
            host=os.uname().nodename,
            machine=_machine(),
            pid=os.getpid(),
            started=_process_start(os.getpid()),
            time=time.time(),
        )
        if put_object(_name(url, number + 1), msgspec.json.encode(holder), new=True):
            _held.add(holder.id)
            older = (_name(url, n) for n in range(max(number - _TRIES, 0), number + 1) if n)
            delete_objects(list(older))
            return holder, number + 1
    raise BusyError(f"{url.rpartition('/')[0]}: other runs begin all the time")


def _busy(url: str, holder: Holder) -> BusyError:
    hint = "wait for it to end, or stop it; `tokenmill status` shows how far it is"
    if holder.machine != _machine():
        ago = max(time.time() - holder.time, 0)
        hint += f"; it was heard of {ago:.0f} s ago, after {STALE_SECONDS:.0f} s it counts as gone"
    return BusyError(f"{url.rpartition('/')[0]}: in use by another run ({holder})", hint=hint)


def _latest(url: str) -> tuple[int, Holder | None]:
    """Return the lease that counts and its number; (0, None): there never was one."""
    stems = (info.path.rpartition("/")[2].removesuffix(".json") for info in list_objects(url))
    numbers = [int(stem) for stem in stems if stem.isdecimal()]
    if not numbers:
        return 0, None
    number = max(numbers)
    try:
        return number, _HOLDERS.decode(read_object(_name(url, number)))
    except (FileNotFoundError, msgspec.DecodeError):  # a newer one came, or it is not ours
        return number, None


def _name(url: str, number: int) -> str:
    return join(url, f"{number:06d}.json")


def _machine() -> str:
    """Return a name for the place in which a process number is unique."""
    marks = [os.uname().nodename]
    with suppress(OSError):
        marks.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        marks.append(Path("/proc/self/ns/pid").readlink().name)
    return " ".join(marks)


def _process_start(pid: int) -> str:
    """Return a mark of a living process that no later one with its number has; else nothing."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return ""
    return "" if fields[_PROCESS_STATE] in {"Z", "X"} else fields[_PROCESS_START]
