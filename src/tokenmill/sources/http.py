"""GET over HTTP: ranges, redirects, and faults told apart: try again, or say what is wrong.

What fetching files and reading from a hub share. Proxies come from the usual variables of the
environment. An `Authorization` header never follows a redirect to another host.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tokenmill.errors import ConfigError, StorageError

T = TypeVar("T")

TIMEOUT_SECONDS = 30.0
MAX_TRIES = 6
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 20.0

_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_GONE = {404, 410}
_FORBIDDEN = {401, 403}
_PARTIAL_CONTENT = 206
_RANGE_REFUSED = 416
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class TransientError(StorageError):
    """A request failed in a way that another try may mend."""

    retry_after: float | None = None
    """Seconds that the server asks to wait."""
    max_tries: int = MAX_TRIES


class RangeRefusedError(StorageError):
    """The server has no bytes in the range that was asked for, or answers with other ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """An answer whose body is still to be read."""

    url: str
    """Where it came from in the end, after redirects."""
    headers: Message
    start: int
    """Place in the file of the first byte of the body."""
    total: int | None
    """Size of the whole file; None if the server does not say."""
    ends_by_itself: bool
    """Whether the end of the body can be told from a connection that was cut."""
    _raw: Any

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`, none at the end; a cut is `TransientError`."""
        try:
            return self._raw.read1(size)  # a cut then loses nothing that has arrived
        except (OSError, http.client.HTTPException) as error:
            raise _transient(self.url, error) from error

    def close(self) -> None:
        """Let go of the connection."""
        self._raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_url(
    url: str, *, start: int = 0, stop: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Ask for a file from byte `start` on, up to `stop` if given; one try.

    A server without ranges answers with the whole file: look at `Response.start`.
    """
    if urlsplit(url).scheme not in {"http", "https"}:
        raise ConfigError(f"{shown(url)}: not an address of the web: expected http:// or https://")
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity"})
    for name, value in (headers or {}).items():
        request.add_header(name, value)
    if start or stop is not None:
        request.add_header("Range", f"bytes={start}-{'' if stop is None else stop - 1}")
    opener = urllib.request.build_opener(_Redirects)
    try:
        raw = opener.open(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        with error:
            raise _refusal(url, error) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _transient(url, error) from error
    return _response(raw, start)


def with_retries(
    function: Callable[[], T],
    *,
    told: Callable[[str], None] | None = None,
    so_far: Callable[[], int] = int,
) -> T:
    """Call `function` until it works, pausing longer each time; the last failure is raised.

    Failures count from zero again whenever `so_far`, what has arrived until now, has grown.
    """
    failures = 0
    while True:
        before = so_far()
        try:
            return function()
        except TransientError as error:
            failures = 1 if so_far() > before else failures + 1
            pause(error, failures, told=told)


def pause(
    error: TransientError, failures: int, *, told: Callable[[str], None] | None = None
) -> None:
    """Wait before another try after `failures` in a row; raise the error if those were enough."""
    if failures >= error.max_tries:
        raise error
    seconds = FIRST_PAUSE_SECONDS * 2 ** (failures - 1)
    if error.retry_after is not None:
        seconds = max(seconds, error.retry_after)
    seconds = min(seconds, LONGEST_PAUSE_SECONDS)
    if told is not None:
        told(f"{error.message}; trying again in {seconds:.1f}s")
    time.sleep(seconds)


def shown(url: str) -> str:
    """Return an address without what may be secret in it: user, password and query.

    >>> shown("https://me:secret@host/file?signature=1")
    'https://host/file'
    """
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, without the secret to other hosts and never to a less safe scheme."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request for the new address."""
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in {"http", "https"} or (old.scheme, new.scheme) == ("https", "http"):
            raise StorageError(
                f"{shown(req.full_url)}: redirects to {shown(newurl)}, which is not safe to follow"
            )
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None and old.netloc != new.netloc:
            found.remove_header("Authorization")
        return found


def _response(raw: Any, start: int) -> Response:
    headers: Message = raw.headers
    encoding = headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raw.close()
        raise StorageError(f"{shown(raw.url)}: sent as {encoding}, which was not asked for")
    length = headers.get("Content-Length")
    total, first = None, 0
    if raw.status == _PARTIAL_CONTENT:
        match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if match is None or int(match[1]) != start:
            raw.close()
            raise RangeRefusedError(f"{shown(raw.url)}: answers with another range than asked for")
        total, first = None if match[3] == "*" else int(match[3]), start
    elif length is not None and length.isdecimal():
        total = int(length)
    chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
    return Response(
        url=raw.url,
        headers=headers,
        start=first,
        total=total,
        ends_by_itself=chunked or length is not None,
        _raw=raw,
    )


def _refusal(url: str, error: urllib.error.HTTPError) -> StorageError | ConfigError:
    what = f"{shown(url)}: the server says {error.code} {error.reason}"
    if error.code == _RANGE_REFUSED:
        return RangeRefusedError(what)
    if error.code in _GONE:
        return ConfigError(what, hint="check the spelling: there is no such file")
    if error.code in _FORBIDDEN:
        return StorageError(what, hint="the file is not public; a hub asks for a token in HF_TOKEN")
    if error.code in _AGAIN:
        found = TransientError(what, hint="the server is busy or broken: try again later")
        after = error.headers.get("Retry-After", "")
        found.retry_after = float(after) if after.isdecimal() else None
        return found
    return StorageError(what)


def _transient(url: str, error: Exception) -> StorageError:
    reason: Any = error.reason if isinstance(error, urllib.error.URLError) else error
    what = f"{shown(url)}: {_words(reason)}"
    if isinstance(reason, ssl.SSLCertVerificationError):
        return StorageError(what, hint="check the clock of this machine and its certificates")
    found = TransientError(what, hint="check the network, then run the same command again")
    if isinstance(reason, socket.gaierror):
        found = TransientError(
            f"{shown(url)}: the host cannot be found: {_words(reason)}",
            hint="check the spelling and the network; without one, bring the file by other means",
        )
        found.max_tries = 2  # without a network, waiting longer mends nothing
    return found


def _words(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, http.client.IncompleteRead):
        return "the connection was cut"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return str(reason) or type(reason).__name__
