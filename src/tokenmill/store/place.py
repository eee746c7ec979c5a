"""Where a store is: a folder on this machine, or a place in an object store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tokenmill.errors import ConfigError
from tokenmill.remote import is_remote, list_objects, split_url

Place = Path | str
"""A folder as a `Path`, or a URL as a string: a `Path` would turn s3://a into s3:/a."""


def find_place(path: str | Path) -> Place:
    """Return the absolute folder, or the URL without a slash at its end."""
    text = str(path)
    if is_remote(text):
        split_url(text)  # refuses what cannot be meant, before any message repeats it
        return text.rstrip("/")
    if "://" in text or text.startswith("s3:/"):
        what = "a URL that went through a Path" if text.startswith("s3:/") else "not a place"
        raise ConfigError(
            f"{text}: {what} for a store, expected a folder or s3://bucket/prefix",
            hint="give the URL as a string",
        )
    return Path(path).absolute()


def is_remote_place(place: Place) -> bool:
    """Tell whether a place is in an object store."""
    return isinstance(place, str)


def name_of(place: str | Path) -> str:
    """Return the last part of a path or URL.

    >>> name_of("s3://bucket/stores/web"), name_of(Path("stores/web"))
    ('web', 'web')
    """
    return str(place).rstrip("/").rpartition("/")[2]


def remote_sizes(place: Place) -> Mapping[str, int] | None:
    """Return the size of every object of a remote store by its URL, from one listing.

    None for a folder: there, asking for one size after the other costs next to nothing.
    """
    if not isinstance(place, str):
        return None
    return {info.path: info.size for info in list_objects(place)}
