"""Reading with the standard library alone, for processes in which obstore cannot work.

A data loader forks its workers after the parent has opened the data. obstore's threads do not
survive that, so a forked process reads with signed requests of our own: slower, but it reads.
"""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.request
from urllib.parse import quote

from tokenmill.errors import StorageError
from tokenmill.remote.client import ChangedError, FaultError, current_account, with_retries
from tokenmill.remote.faults import Fault
from tokenmill.remote.signing import signed_request
from tokenmill.remote.urls import split_url

TIMEOUT_SECONDS = 60.0
_CHANGED = 412
_RANGE_REFUSED = 416


def head_plainly(url: str) -> tuple[int, str]:
    """Return size and version of an object."""

    def once() -> tuple[int, str]:
        answer = open_signed("HEAD", url)
        with answer:
            return int(answer.headers["Content-Length"]), answer.headers.get("ETag", "")

    return with_retries(url, once)


def read_plainly(
    url: str, start: int = 0, stop: int | None = None, *, version: str | None = None
) -> bytes:
    """Return an object, or a range of its bytes, fewer if it ends before."""
    headers = {"Range": f"bytes={start}-{stop - 1}"} if stop is not None else {}
    if version is not None and is_tag(version):
        headers["If-Match"] = version

    def once() -> bytes:
        try:
            with open_signed("GET", url, headers=headers) as answer:
                return answer.read()
        except FaultError as error:
            if error.fault.status == _RANGE_REFUSED:
                return b""
            raise
        except (OSError, http.client.HTTPException) as error:
            raise FaultError(Fault(None, detail=words(error))) from None

    return with_retries(url, once)


def is_tag(version: str | None) -> bool:
    """Tell whether a version is a tag that the server can compare."""
    return version is not None and version.startswith('"')


def open_signed(
    method: str, url: str, *, query: str = "", headers: dict[str, str] | None = None
) -> http.client.HTTPResponse:
    """Send one request of our own about an object or bucket; what fails is `FaultError`."""
    account = current_account()
    bucket, key = split_url(url)
    address = account.address(bucket, quote(key, safe="/-_.~")) + (f"?{query}" if query else "")
    if account.credentials is None and not account.skip_signature:
        raise StorageError(
            f"{url}: this needs keys, and only a role of the machine was found",
            hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        )
    request = urllib.request.Request(address, method=method)
    if account.credentials is not None:
        request = signed_request(
            method, address, credentials=account.credentials, region=account.region
        )
    for name, value in (headers or {}).items():
        request.add_header(name, value)
    return opened(request, url)


def opened(request: urllib.request.Request, url: str) -> http.client.HTTPResponse:
    """Send a request; an answer that is not a success is `FaultError` or `ChangedError`."""
    try:
        return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        with error:
            text = error.read(10_000).decode(errors="replace")
        code = re.search(r"<Code>(\w+)</Code>", text)
        if error.code == _CHANGED:
            raise ChangedError(url) from None
        raise FaultError(Fault(error.code, code[1] if code else "")) from None
    except (OSError, http.client.HTTPException) as error:
        raise FaultError(Fault(None, detail=words(error))) from None


def words(error: Exception) -> str:
    """Return what an error of the network says, never the address it was about."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror
    return type(reason).__name__
