"""Fetch a file from the web: whole and right under its name, or not there at all.

    .input.txt.fetch/part         what has arrived
    .input.txt.fetch/state.json   of what, and how much of it is safely on disk
    .input.txt.fetch/lock         held by the process that fetches

A fetch that was cut or killed goes on behind the bytes that are safely there, if the server can
prove that they belong to the same file. The name itself appears last, once size and hash are right.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from tokenmill.errors import ConfigError, DamageError, StorageError
from tokenmill.files import (
    OutputFile,
    atomic_write,
    exclusive_lock,
    publish_new,
    storage_error,
    sync_folder,
)
from tokenmill.progress import Event, Report, silent
from tokenmill.sources.http import (
    RangeRefusedError,
    Response,
    TransientError,
    open_url,
    shown,
    with_retries,
)
from tokenmill.sources.well_known import WELL_KNOWN

SYNC_BYTES = 16 << 20
"""Bytes after which what has arrived is made to survive a crash."""
_READ_BYTES = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A file that is there, and right as far as that can be known."""

    path: Path
    url: str
    num_bytes: int
    sha256: str
    is_proved: bool
    """Whether its hash was known beforehand."""
    was_present: bool
    seconds: float


class _State(msgspec.Struct, frozen=True):
    """What an earlier attempt left: `num_bytes` of `total` of the file that `validator` names."""

    url: str
    validator: str
    num_bytes: int
    total: int | None


def fetch(
    name_or_url: str, path: str | Path | None, *, sha256: str | None = None, report: Report = silent
) -> Fetched:
    """Fetch a well-known text or any address to `path`, by default to its own name here.

    A file that is there is not fetched again; if its hash is known and another, that is an error.
    """
    started = time.monotonic()
    url, expected, num_bytes = _resolve(name_or_url, sha256)
    target = _target(url, path)
    work = target.with_name(f".{target.name}.fetch")
    download = _Download(url, target, work=work, report=report)
    is_new = False
    try:
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            work.mkdir(exist_ok=True)
            with exclusive_lock(work / "lock"):
                if not target.exists():  # another process may have brought it meanwhile
                    is_new = download.finish(expected, num_bytes)
            shutil.rmtree(work, ignore_errors=True)
        found_bytes, found = (download.num_bytes, download.sha256) if is_new else _hash(target)
    except OSError as error:
        raise storage_error(error) from error
    if expected is not None and found != expected:
        raise ConfigError(
            f"{target}: is there with other content: sha256 {found}, expected {expected}",
            hint="move it away, or fetch to another path",
        )
    return Fetched(
        path=target,
        url=url,
        num_bytes=found_bytes,
        sha256=found,
        is_proved=expected is not None,
        was_present=not is_new,
        seconds=time.monotonic() - started,
    )


class _Download:
    """Brings one file to its name, continuing what an earlier attempt left."""

    def __init__(self, url: str, target: Path, *, work: Path, report: Report) -> None:
        self._url = url
        self._target = target
        self._part = work / "part"
        self._state_path = work / "state.json"
        self._report = report
        self._validator = ""
        self.num_bytes = 0
        self._total: int | None = None
        self._is_pieced = False  # whether bytes of several answers were put together
        self._digest: Any = hashlib.sha256()

    def finish(self, sha256: str | None, num_bytes: int | None) -> bool:
        """Fetch, compare and publish; False if the name was taken meanwhile."""
        self._recover(sha256)
        self._fetch(sha256)
        if sha256 is not None and self.sha256 != sha256 and self._is_pieced:
            self._tell("the pieces do not make the expected file: fetching it once more, whole")
            self._restart()
            self._fetch(sha256)
        wanted = (sha256 or self.sha256, self.num_bytes if num_bytes is None else num_bytes)
        if (self.sha256, self.num_bytes) != wanted:
            arrived = f"{self.num_bytes:,} bytes with sha256 {self.sha256}"
            self._restart()
            raise DamageError(
                f"{shown(self._url)}: {arrived} arrived, expected sha256 {sha256}; "
                "nothing was kept",
                hint="the file has changed at its source, or something on the way changes it",
            )
        is_new = publish_new(self._part, self._target)
        sync_folder(self._target.parent)
        return is_new

    @property
    def sha256(self) -> str:
        """The hash of what has arrived."""
        return self._digest.hexdigest()

    def _fetch(self, sha256: str | None) -> None:
        """Read until the file is complete, over as many connections as it takes."""
        if self._total is not None and self.num_bytes == self._total:
            return  # an earlier attempt was killed just before the file got its name
        with_retries(
            lambda: self._read_answer(sha256), told=self._tell, so_far=lambda: self.num_bytes
        )

    def _read_answer(self, sha256: str | None) -> None:
        headers = {"If-Range": self._validator} if self.num_bytes and self._validator else {}
        with self._open(headers) as response:
            if self.num_bytes and response.start == 0:
                self._restart()  # it cannot go on, or the file is another one now
            self._accept(response, sha256)
            file = OutputFile(self._part, keep_bytes=self.num_bytes)
            try:
                while data := response.read(_READ_BYTES):
                    self._append(file, data)
                file.finish()
            except BaseException:
                file.sync()
                raise
            finally:
                file.close()
                self._save()
        if self._total is not None and self.num_bytes < self._total:
            raise TransientError(
                f"{shown(self._url)}: the connection was cut at {self.num_bytes:,} "
                f"of {self._total:,} bytes",
                hint="run the same command again: it continues",
            )

    def _open(self, headers: dict[str, str]) -> Response:
        try:
            return open_url(self._url, start=self.num_bytes, headers=headers)
        except RangeRefusedError:
            if not self.num_bytes:
                raise
            self._restart()  # what is here is longer than the file, or the server miscounts
            return open_url(self._url)

    def _accept(self, response: Response, sha256: str | None) -> None:
        """Take note of what the server says of the file."""
        if response.total is None and not response.ends_by_itself and sha256 is None:
            raise StorageError(
                f"{shown(self._url)}: the server does not say how long the file is, "
                "so a part could not be told from the whole",
                hint="give --sha256, by which it can be",
            )
        etag = response.headers.get("ETag", "")
        strong = etag if not etag.startswith("W/") else ""
        self._validator = strong or response.headers.get("Last-Modified", "")
        self._total = response.total
        self._is_pieced |= self.num_bytes > 0
        if not self.num_bytes:
            self._part.unlink(missing_ok=True)
        self._tell_progress()

    def _append(self, file: OutputFile, data: bytes) -> None:
        file.write(data)
        self._digest.update(data)
        before, self.num_bytes = self.num_bytes, self.num_bytes + len(data)
        if self._total is not None and self.num_bytes > self._total:
            raise StorageError(f"{shown(self._url)}: more than {self._total:,} bytes arrive")
        if before // SYNC_BYTES != self.num_bytes // SYNC_BYTES:
            file.sync()
            self._save()
        self._tell_progress()

    # -- what survives

    def _recover(self, sha256: str | None) -> None:
        """Take over what an earlier attempt left, if it can be continued safely."""
        try:
            state = msgspec.json.decode(self._state_path.read_bytes(), type=_State)
            size = self._part.stat().st_size
        except (FileNotFoundError, msgspec.DecodeError):
            return
        provable = bool(state.validator or sha256)
        if state.url != self._url or not provable or size < state.num_bytes:
            return
        with self._part.open("rb") as file:
            left = state.num_bytes
            while left and (data := file.read(min(left, _READ_BYTES))):
                self._digest.update(data)
                left -= len(data)
        self.num_bytes, self._validator, self._total = (
            state.num_bytes,
            state.validator,
            state.total,
        )

    def _save(self) -> None:
        """Record how much has arrived; the bytes themselves are on disk by now."""
        state = _State(self._url, self._validator, self.num_bytes, self._total)
        with atomic_write(self._state_path) as file:
            file.write(msgspec.json.encode(state))

    def _restart(self) -> None:
        self.num_bytes, self._validator, self._total = 0, "", None
        self._is_pieced = False
        self._digest = hashlib.sha256()
        self._state_path.unlink(missing_ok=True)
        self._part.unlink(missing_ok=True)

    def _tell(self, message: str) -> None:
        self._report(Event(stage="fetch", message=message))

    def _tell_progress(self) -> None:
        self._report(Event(stage="fetch", done=self.num_bytes, total=self._total or 0))


def _resolve(name_or_url: str, sha256: str | None) -> tuple[str, str | None, int | None]:
    """Return the address, and the hash and size if they are known."""
    if sha256 is not None:
        sha256 = sha256.lower().removeprefix("sha256:")
        if _SHA256.fullmatch(sha256) is None:
            raise ConfigError(f"sha256 is {sha256!r}, expected 64 hexadecimal digits")
    known = WELL_KNOWN.get(name_or_url.lower())
    if known is not None:
        return known.url, sha256 or known.sha256, None if sha256 else known.num_bytes
    if "://" not in name_or_url:
        raise ConfigError(
            f"{name_or_url!r}: neither a well-known text nor an address",
            hint=f"known are {', '.join(WELL_KNOWN)}; an address begins with https://",
        )
    return name_or_url, sha256, None


def _target(url: str, path: str | Path | None) -> Path:
    """Return where the file is to be: a path, or its own name in a folder."""
    own_name = unquote(urlsplit(url).path).rstrip("/").rpartition("/")[2]
    if path is None or Path(path).is_dir() or str(path).endswith("/"):
        if not own_name or own_name.startswith("."):
            raise ConfigError(f"{shown(url)}: has no name of its own", hint="say one with -o")
        return Path(path or ".") / own_name
    return Path(path)


def _hash(path: Path) -> tuple[int, str]:
    try:
        with path.open("rb") as file:
            return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise storage_error(error, path) from error
