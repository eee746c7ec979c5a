"""URLs of objects: `s3://bucket/key`, kept as strings; and what is known of a file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tokenmill.errors import ConfigError

SCHEME = "s3://"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_USER = re.compile(r"s3://[^/]*@")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file or object: where it is, how long, and a mark that changes when its content does."""

    path: str
    size: int
    version: str


def is_remote(place: str) -> bool:
    """Tell whether a place is in an object store rather than on a disk."""
    return place.startswith(SCHEME)


def join(url: str, *names: str) -> str:
    """Return the URL of something below `url`.

    >>> join("s3://bucket/store/", "docs", "train_000000.npy")
    's3://bucket/store/docs/train_000000.npy'
    """
    return "/".join([url.rstrip("/"), *(name.strip("/") for name in names)])


def split_url(url: str) -> tuple[str, str]:
    """Return bucket and key of a URL; slashes at the end do not count.

    >>> split_url("s3://bucket/data/en/")
    ('bucket', 'data/en')
    """
    if _USER.match(url):
        raise ConfigError(
            "an s3:// URL with a user or password in it: it would end up in logs and metadata",
            hint="put the keys into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile",
        )
    bucket, _, key = url.removeprefix(SCHEME).partition("/")
    if not is_remote(url) or not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"{url}: not the URL of an object", hint="expected s3://bucket/key")
    key = key.rstrip("/")
    if any(part in {"", ".", ".."} for part in key.split("/")) and key:
        raise ConfigError(
            f"{url}: the key has an empty part, `.` or `..`", hint="write it without them"
        )
    return bucket, key
