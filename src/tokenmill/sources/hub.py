"""Datasets on a hub: their files are listed at one commit and read by ranges, never run.

    hf://org/name                  the main branch
    hf://org/name@v1.0             a branch, tag or commit
    hf://org/name:en               the configuration `en`
    hf://org/name@<commit>/data/train-00000-of-00002.parquet      one file, as stores record it

HF_ENDPOINT names another hub, HF_TOKEN (or the file that `hf auth login` writes) opens what is not
public; the token goes to the hub alone, not to where it redirects. HF_HUB_OFFLINE=1 forbids it all.
"""

from __future__ import annotations

import io
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin

import msgspec

from tokenmill.errors import ConfigError, DamageError, StorageError, TokenmillError
from tokenmill.files import FileInfo
from tokenmill.sources.http import Response, TransientError, open_url, shown, with_retries

logger = logging.getLogger(__name__)

SCHEME = "hf://"
_ENDPOINT = "https://huggingface.co"
_PLACE = re.compile(
    r"hf://(?:datasets/)?(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^:@]+))?(?::(?P<config>.+))?"
)
_FILE = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)@(?P<commit>[0-9a-f]{40})/(?P<path>.+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SMALL_READ_BYTES = 1 << 16
_LARGEST_ANSWER_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A dataset on a hub, as a user names it."""

    repo: str
    revision: str
    config: str | None


class _Revision(msgspec.Struct):
    sha: str


class _LargeFile(msgspec.Struct):
    oid: str
    size: int


class _Entry(msgspec.Struct):
    type: str
    path: str
    oid: str = ""
    size: int = 0
    lfs: _LargeFile | None = None


def parse_place(place: str) -> HubPlace:
    """Read `hf://org/name[@revision][:config]`."""
    match = _PLACE.fullmatch(place)
    if match is None:
        raise ConfigError(
            f"{place}: not a dataset on the hub",
            hint="expected hf://org/name, hf://org/name@revision or hf://org/name:configuration",
        )
    return HubPlace(match["repo"], match["revision"] or "main", match["config"])


def list_repository(place: HubPlace) -> list[FileInfo]:
    """Return every file of a dataset at the commit that its revision stands for now."""
    api = f"{_endpoint()}/api/datasets/{place.repo}"
    revision = _decode(_get(f"{api}/revision/{quote(place.revision, safe='')}"), _Revision)
    if _COMMIT.fullmatch(revision.sha) is None:
        raise StorageError(f"{api}: the commit is {revision.sha!r}, expected 40 hexadecimal digits")
    logger.info("%s@%s is commit %s", place.repo, place.revision, revision.sha)
    root = f"{SCHEME}{place.repo}@{revision.sha}"
    found = [
        FileInfo(
            path=f"{root}/{entry.path}",
            size=entry.size if entry.lfs is None else entry.lfs.size,
            version=entry.oid if entry.lfs is None else entry.lfs.oid,
        )
        for entry in _entries(f"{api}/tree/{revision.sha}?recursive=true&expand=false")
        if entry.type == "file"
    ]
    return sorted(found, key=lambda info: info.path)


def path_in_repository(path: str) -> str:
    """Return the path of a file of the hub inside its repository.

    >>> path_in_repository("hf://org/name@" + "0" * 40 + "/data/a.parquet")
    'data/a.parquet'
    """
    match = _FILE.fullmatch(path)
    assert match is not None, path
    return match["path"]


def read_whole(info: FileInfo) -> bytes:
    """Return the content of a small file."""
    with HubFile(info.path, info.size) as file:
        return file.read()


class HubFile(io.RawIOBase):
    """A file of the hub as a seekable stream of bytes.

    A read that follows the one before it keeps one connection open to the end of the file; a read
    elsewhere asks for its own range. What fails is asked for again from where it stopped.
    """

    def __init__(self, path: str, size: int) -> None:
        match = _FILE.fullmatch(path)
        if match is None:
            raise ConfigError(f"{path}: not a file of the hub")
        place = f"{match['commit']}/{quote(match['path'])}"
        self._url = f"{_endpoint()}/datasets/{match['repo']}/resolve/{place}"
        self._path = path
        self._size = size
        self._position = 0
        self._stream: Response | None = None
        self._stream_at = -1
        self._expected_next = -1
        self._held = b""  # of a small read, more is fetched than asked for
        self._held_at = 0

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def tell(self) -> int:
        """Return where the next read begins."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a place in the file."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as the file goes, and return how many bytes that are."""
        view = memoryview(buffer).cast("B")
        data = self._read(min(len(view), max(self._size - self._position, 0)))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """Return everything up to the end."""
        return self._read(max(self._size - self._position, 0))

    def close(self) -> None:
        """Let go of the connection."""
        self._drop_stream()
        super().close()

    def _read(self, size: int) -> bytes:
        if not size:
            return b""
        start = self._position
        inside = start - self._held_at
        if inside >= 0 and inside + size <= len(self._held):
            data = self._held[inside : inside + size]
        elif start == self._expected_next:
            data = self._read_on(start, size)
        else:
            data = self._read_range(start, size)
        self._position = self._expected_next = start + size
        return data

    def _read_range(self, start: int, size: int) -> bytes:
        """Read bytes with a request of their own."""
        self._drop_stream()
        stop = min(start + max(size, _SMALL_READ_BYTES), self._size)
        parts = bytearray()

        def fetch_rest() -> None:
            with self._open(start + len(parts), stop) as response:
                self._take(response, parts, stop - start)

        with_retries(fetch_rest, told=logger.warning, so_far=parts.__len__)
        if stop - start > size:
            self._held, self._held_at = bytes(parts), start
        return bytes(parts[:size])

    def _read_on(self, start: int, size: int) -> bytes:
        """Read bytes from the connection that stays open."""
        parts = bytearray()

        def fetch_rest() -> None:
            at = start + len(parts)
            if self._stream is None or self._stream_at != at:
                self._drop_stream()
                self._stream = self._open(at, None)
            try:
                self._take(self._stream, parts, size)
            except TransientError:
                self._drop_stream()
                raise
            self._stream_at = start + len(parts)

        with_retries(fetch_rest, told=logger.warning, so_far=parts.__len__)
        return bytes(parts)

    def _open(self, start: int, stop: int | None) -> Response:
        try:
            response = open_url(self._url, start=start, stop=stop, headers=_headers())
        except TokenmillError as error:
            error.message = f"{self._path}: {error.message}"
            raise
        if response.start != start:
            response.close()
            raise StorageError(f"{shown(response.url)}: the server gives no ranges of files")
        if response.total not in {None, self._size}:
            response.close()
            raise DamageError(
                f"{self._path}: has {response.total} bytes, the hub listed {self._size}",
                hint="run the same command again; if it stays so, tell those who run the hub",
            )
        return response

    def _take(self, response: Response, parts: bytearray, size: int) -> None:
        """Append to `parts` until they are `size` bytes; a body that ends before is a cut."""
        while len(parts) < size:
            data = response.read(size - len(parts))
            if not data:
                raise TransientError(f"{self._path}: the connection was cut")
            parts += data

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _entries(url: str) -> Iterator[_Entry]:
    """Yield the files and folders of a listing, page by page."""
    while url:
        response = _get(url)
        yield from _decode(response, list[_Entry])
        url = _next_page(response, url)


def _next_page(answer: _Answer, url: str) -> str:
    match = re.search(r'<([^>]+)>\s*;\s*rel="?next"?', answer.link)
    if match is None:
        return ""
    following = urljoin(url, match[1])
    if not following.startswith(f"{_endpoint()}/"):  # the token would go there too
        raise StorageError(f"{shown(url)}: its next page is elsewhere: {shown(following)}")
    return following


@dataclass(frozen=True, slots=True)
class _Answer:
    url: str
    body: bytes
    link: str


def _get(url: str) -> _Answer:
    """Return the answer of the hub's API, asking again when that may help."""
    _check_online()

    def ask() -> _Answer:
        with open_url(url, headers=_headers()) as response:
            parts = bytearray()
            while data := response.read(1 << 20):
                parts += data
                if len(parts) > _LARGEST_ANSWER_BYTES:
                    raise StorageError(f"{shown(url)}: the answer is too long")
            if response.total not in {None, len(parts)}:
                raise TransientError(f"{shown(url)}: the connection was cut")
            return _Answer(url, bytes(parts), response.headers.get("Link", ""))

    try:
        return with_retries(ask, told=logger.warning)
    except ConfigError as error:
        error.hint = "check the name of the dataset and its revision; a private one needs HF_TOKEN"
        raise


def _decode(answer: _Answer, kind: Any) -> Any:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError as error:
        raise StorageError(
            f"{shown(answer.url)}: the answer is not what a hub says: {error}",
            hint="check HF_ENDPOINT",
        ) from error


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")


def _check_online() -> None:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise StorageError("HF_HUB_OFFLINE is set: the hub is not to be asked", hint="unset it")


def _headers() -> dict[str, str]:
    """Return what tells the hub who asks, if the user has a token."""
    token = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or _token_file()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _token_file() -> str:
    named = os.environ.get("HF_TOKEN_PATH")
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    try:
        return (Path(named) if named else Path(home) / "token").expanduser().read_text().strip()
    except OSError:
        return ""
