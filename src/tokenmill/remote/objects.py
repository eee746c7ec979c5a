"""Single objects: list, look, read, write, delete."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from tokenmill.errors import DamageError, StorageError
from tokenmill.remote.client import (
    ChangedError,
    ExistsError,
    FaultError,
    ForbiddenError,
    call,
    call_once,
    fail,
    is_forked,
    library,
    missing,
    pause,
)
from tokenmill.remote.faults import Fault
from tokenmill.remote.plain import head_plainly, is_tag, read_plainly
from tokenmill.remote.urls import SCHEME, FileInfo, split_url

WHOLE_BYTES = 16 << 20  # more than this is read and written in pieces
_DELETE_MANY = 1000
_RANGE_REFUSED = 416


def list_objects(prefix: str) -> list[FileInfo]:
    """Return the objects below a prefix as below a folder, sorted by their URLs.

    `s3://b/p` gives `s3://b/p/x`, but not `s3://b/pq`. The empty objects that some programs make
    to stand for folders are left out.
    """
    bucket, root = split_url(prefix)

    def once(store: Any, key: str) -> list[Any]:
        return [item for page in library().list(store, prefix=key or None) for item in page]

    found = call(prefix, once)
    folders = {root, *(folder for item in found for folder in _folders(item["path"]))}
    infos = [
        _info(f"{SCHEME}{bucket}/{item['path']}", item)
        for item in found
        if item["size"] or item["path"] not in folders
    ]
    return sorted(infos, key=lambda info: info.path)


def has_objects(prefix: str) -> bool:
    """Tell whether there is any object below a prefix, without listing them all."""
    obstore = library()

    def once(store: Any, key: str) -> bool:
        return any(page for page in obstore.list(store, prefix=key or None, chunk_size=1))

    return call(prefix, once)


def _folders(key: str) -> Iterable[str]:
    parts = key.split("/")
    return ("/".join(parts[:stop]) for stop in range(1, len(parts)))


def _info(url: str, item: Any) -> FileInfo:
    version = item["e_tag"] or item["last_modified"].isoformat()
    return FileInfo(path=url, size=item["size"], version=version)


def object_info(url: str) -> FileInfo | None:
    """Return size and version of an object, or None if there is none; no bucket is an error."""
    try:
        if is_forked():
            return FileInfo(url, *head_plainly(url))
        return _info(url, call(url, library().head))
    except FileNotFoundError:
        _check_bucket(url)
        return None
    except ForbiddenError:
        _check_bucket(url)  # an answer without a body says less than this one
        raise


def _check_bucket(url: str) -> None:
    """Raise what is wrong with the bucket, if anything is: HEAD answers do not tell."""
    if not is_forked():
        call(url, lambda store, _: library().list_with_delimiter(store, prefix="-/-"))


def read_object(url: str) -> bytes:
    """Return the content of an object; a missing one is `FileNotFoundError`."""
    if is_forked():
        return read_plainly(url)

    def once(store: Any, key: str) -> tuple[int, str | None, bytes]:
        answer = library().get(store, key)
        size, version = answer.meta["size"], answer.meta["e_tag"]
        return size, version, b"" if size > WHOLE_BYTES else bytes(answer.bytes())

    size, version, data = call(url, once)
    if size > WHOLE_BYTES:
        pieces = range(0, size, WHOLE_BYTES)
        ends = ((start, min(start + WHOLE_BYTES, size)) for start in pieces)
        data = b"".join(read_range(url, start, stop, version=version) for start, stop in ends)
    if len(data) != size:
        raise DamageError(f"{url}: {len(data)} bytes arrived of {size}")
    return data


def read_range(url: str, start: int, stop: int, *, version: str | None = None) -> bytes:
    """Return the bytes [start, stop) of an object; a shorter object is `DamageError`.

    With `version` (that of `FileInfo`), an object that was replaced meanwhile is `StorageError`.
    """
    if stop <= start:
        return b""
    try:
        if is_forked():
            data = read_plainly(url, start, stop, version=version)
        else:
            data = call(url, lambda store, key: _get_range(store, key, (start, stop), version))
    except ChangedError:
        raise changed(url) from None
    except _RangeError:
        data = b""
    if len(data) != stop - start:
        raise DamageError(
            f"{url}: {len(data)} bytes at byte {start}, expected {stop - start}: it is too short",
            hint="was it replaced, or never complete? write it again",
        )
    return data


class _RangeError(Exception):
    """The object has no bytes in the range."""


def _get_range(store: Any, key: str, span: tuple[int, int], version: str | None) -> bytes:
    options: dict[str, Any] = {"range": span}
    if is_tag(version):
        options["if_match"] = version
    try:
        return bytes(library().get(store, key, options=options).bytes())
    except library().exceptions.BaseError as error:
        if f"status code: {_RANGE_REFUSED}" in str(error):
            raise _RangeError(key) from None
        raise


def changed(url: str) -> StorageError:
    """Return the error for an object that is not what it was."""
    return StorageError(
        f"{url}: was replaced after it was listed",
        hint="the input changes while it is read: wait until it is complete, then run again",
    )


def put_object(url: str, data: bytes, *, new: bool = False) -> bool:
    """Write an object at once, replacing what was there; return whether this call did it.

    With `new` it is written only if there is none, however many try at once: one of them wins. A
    lost answer makes it uncertain who won; then the one whose content is there has.
    """
    if not new:
        call(url, lambda store, key: library().put(store, key, data, use_multipart=False))
        return True
    failures = 0
    while True:
        try:
            call_once(url, lambda store, key: library().put(store, key, data, mode="create"))
        except FaultError as error:
            if error.fault.is_missing:  # nothing can be missing but the bucket
                fail(url, Fault(404, "NoSuchBucket"))
            failures += 1
            pause(url, error.fault, failures)
        except ExistsError:
            return failures > 0 and _holds(url, data)
        else:
            return True


def _holds(url: str, data: bytes) -> bool:
    try:
        return read_object(url) == data
    except FileNotFoundError:
        return False


def delete_objects(urls: Iterable[str]) -> None:
    """Delete objects; those that are not there are fine."""
    by_bucket = groupby(sorted(urls), key=lambda url: split_url(url)[0])
    for bucket, group in by_bucket:
        keys = [split_url(url)[1] for url in group]
        if not all(keys):
            raise missing(f"{SCHEME}{bucket}")
        for start in range(0, len(keys), _DELETE_MANY):
            some = keys[start : start + _DELETE_MANY]
            call(f"{SCHEME}{bucket}", lambda store, _, some=some: library().delete(store, some))
