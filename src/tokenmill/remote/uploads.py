"""Files become objects: large ones in parts, and what was left of cut uploads is removed."""

from __future__ import annotations

import hashlib
import re
import time
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from tokenmill.errors import StorageError
from tokenmill.remote.client import (
    ChangedError,
    FaultError,
    call,
    call_once,
    current_account,
    fail,
    library,
    pause,
    with_retries,
)
from tokenmill.remote.faults import Fault
from tokenmill.remote.objects import object_info, put_object
from tokenmill.remote.plain import open_signed, opened
from tokenmill.remote.urls import SCHEME, join, split_url

SINGLE_BYTES = 8 << 20  # up to this a file is held in memory and sent at once
_PART_BYTES = 16 << 20
_MOST_PARTS = 9_000  # servers take 10,000
_PARTS_AT_ONCE = 4
_LARGEST_PUT_BYTES = 5 << 30  # of one request, by the rules of S3
_BLOCK_BYTES = 1 << 20
_MD5_DIGITS = 32
_SIGNED_FOR = timedelta(hours=6)


def upload_file(
    path: Path, url: str, *, new: bool = False, on_bytes: Callable[[int], None] | None = None
) -> bool:
    """Make an object of a file; it is visible whole or not at all. Return whether this call did it.

    Memory stays below 100 MiB. With `new` an object that is there stays, and of several attempts
    one wins: such a file is one request, for servers decide nothing about the parts of others.
    Above 5 GiB, where parts are a must, two attempts at the same moment may both win. `on_bytes` is
    told, from any thread, how many more bytes of a large file were read; what fails counts twice.
    """
    size = path.stat().st_size
    if size <= SINGLE_BYTES:
        return put_object(url, path.read_bytes(), new=new)
    if new and object_info(url) is not None:
        return False
    if new and size <= _LARGEST_PUT_BYTES:
        return _put_new(path, size, url)
    return _put_parts(path, size, url, on_bytes=on_bytes)


def _put_parts(path: Path, size: int, url: str, *, on_bytes: Callable[[int], None] | None) -> bool:
    def once(store: Any, key: str) -> None:
        library().put(
            store,
            key,
            _blocks(path, on_bytes),
            use_multipart=True,
            chunk_size=_part_bytes(size),
            max_concurrency=_PARTS_AT_ONCE,
        )

    call(url, once, retries_parts=True)
    return True


def _put_new(path: Path, size: int, url: str) -> bool:
    """Send a file as one request that fails if the object is there."""
    digest = _md5(path)
    headers = {
        "If-None-Match": "*",
        "Content-MD5": b64encode(digest).decode(),  # the server compares
        "Content-Length": str(size),
        "Content-Type": "application/octet-stream",
    }
    failures = 0
    while True:
        target = call_once(url, _signed_for_put)
        request = urllib.request.Request(target, _blocks(path), headers, method="PUT")
        try:
            with opened(request, url):
                return True
        except ChangedError:
            return failures > 0 and _is_ours(url, size, digest)
        except FaultError as error:
            failures += 1
            # A server that refuses may cut the connection before it has read all of a large body.
            if error.fault.status is None and object_info(url) is not None:
                return _is_ours(url, size, digest)
            if error.fault.is_missing:  # nothing can be missing but the bucket
                fail(url, Fault(404, "NoSuchBucket"))
            pause(url, error.fault, failures)


def _signed_for_put(store: Any, key: str) -> str:
    return library().sign(store, "PUT", key, _SIGNED_FOR)


def _is_ours(url: str, size: int, digest: bytes) -> bool:
    """Tell whether an object has our content: a lost answer may have been a success."""
    info = object_info(url)
    return info is not None and info.size == size and info.version.strip('"') == digest.hex()


def _md5(path: Path) -> bytes:
    digest = hashlib.md5(usedforsecurity=False)
    for block in _blocks(path):
        digest.update(block)
    return digest.digest()


def _blocks(path: Path, on_bytes: Callable[[int], None] | None = None) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            if on_bytes is not None:
                on_bytes(len(block))
            yield block


def _part_bytes(size: int) -> int:
    return max(_PART_BYTES, -(-size // _MOST_PARTS))


class UploadTag:
    """The tag that a server gives to the bytes that pass through here.

    It is the MD5 of an object that was sent at once, or of the MD5s of its parts; `like` is the tag
    it shall be compared with, by default that of `upload_file`. Servers that encrypt objects, and
    programs that cut them elsewhere, have tags of another kind: `can_tell` is False where that
    shows, and a tag that differs proves nothing.
    """

    def __init__(self, size: int, *, like: str | None = None) -> None:
        self._part_bytes = _part_bytes(size) if size > SINGLE_BYTES else 0
        self._room = self._part_bytes
        self._part = hashlib.md5(usedforsecurity=False)
        self._parts: list[bytes] = []
        tag, _, num_parts = (like or "").strip('"').partition("-")
        if like is not None and not num_parts:
            self._part_bytes = 0
        expected = str(-(-size // self._part_bytes)) if self._part_bytes else ""
        self.can_tell = like is None or (len(tag) == _MD5_DIGITS and num_parts == expected)

    def update(self, data: bytes) -> None:
        """Take the next bytes."""
        view = memoryview(data)
        while self._part_bytes and len(view) >= self._room:
            self._part.update(view[: self._room])
            view = view[self._room :]
            self._parts.append(self._part.digest())
            self._part = hashlib.md5(usedforsecurity=False)
            self._room = self._part_bytes
        self._part.update(view)
        self._room -= len(view)

    def tag(self) -> str:
        """Return the tag of all bytes, as `FileInfo.version` has it."""
        if not self._part_bytes:
            return f'"{self._part.hexdigest()}"'
        parts = list(self._parts)
        if self._room < self._part_bytes:
            parts.append(self._part.digest())
        whole = hashlib.md5(b"".join(parts), usedforsecurity=False)
        return f'"{whole.hexdigest()}-{len(parts)}"'


def abort_uploads(prefix: str, *, older_than_seconds: float) -> int:
    """Remove what uploads below a prefix left that began so long ago and never ended.

    Such parts are invisible, but they take space. Return how many uploads were removed. An upload
    that is still going on fails if it is aborted: choose an age that none of them reaches.
    """
    bucket, key = split_url(prefix)
    place = f"{SCHEME}{bucket}"
    before = time.time() - older_than_seconds
    old = [
        (name, upload)
        for name, upload, begun in _unfinished(place, f"{key}/" if key else "")
        if begun <= before
    ]
    for name, upload in old:
        query = f"uploadId={quote(upload, safe='')}"
        try:
            _ask("DELETE", join(place, name), query)
        except FileNotFoundError:
            continue  # it ended meanwhile
    return len(old)


def _unfinished(place: str, prefix: str) -> Iterator[tuple[str, str, float]]:
    """Yield key, number and time of the beginning of uploads that have not ended."""
    markers: dict[str, str] = {}
    while True:
        query = urlencode({"uploads": "", "prefix": prefix, **markers}, quote_via=quote)
        text = _ask("GET", place, query)
        for item in re.findall(r"<Upload>(.*?)</Upload>", text, re.DOTALL):
            begun = datetime.fromisoformat(_field(item, "Initiated")).timestamp()
            yield _field(item, "Key"), _field(item, "UploadId"), begun
        if _field(text, "IsTruncated") != "true":
            return
        markers = {
            "key-marker": _field(text, "NextKeyMarker"),
            "upload-id-marker": _field(text, "NextUploadIdMarker"),
        }


def _field(text: str, name: str) -> str:
    match = re.search(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)
    return unescape(match[1]) if match else ""


def _ask(method: str, url: str, query: str) -> str:
    def once() -> str:
        with open_signed(method, url, query=query) as answer:
            return answer.read().decode()

    try:
        return with_retries(url, once)
    except ChangedError:  # no request of ours has a condition
        raise StorageError(f"{url}: {current_account().shown} gives an odd answer") from None
