"""Objects of an S3-compatible store: found, read by ranges, written whole or not at all.

A place is a URL `s3://bucket/key`; it stays a string, for `pathlib` makes one slash of two. The
endpoint, the region and the credentials come from the environment or the usual files of AWS, and
appear in no message. What fails for a moment is tried again, with longer and longer pauses; what
stays wrong is a `StorageError` that names the URL. A missing object is `FileNotFoundError`.

Names are loaded when they are first used: who stays on the disk does not pay for the network.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenmill.remote.client import is_forked
    from tokenmill.remote.objects import (
        delete_objects,
        has_objects,
        list_objects,
        object_info,
        put_object,
        read_object,
        read_range,
    )
    from tokenmill.remote.stream import RemoteFile, open_object
    from tokenmill.remote.uploads import UploadTag, abort_uploads, upload_file
    from tokenmill.remote.urls import FileInfo, is_remote, join, split_url

_HOMES = {
    "FileInfo": "urls",
    "RemoteFile": "stream",
    "UploadTag": "uploads",
    "abort_uploads": "uploads",
    "delete_objects": "objects",
    "has_objects": "objects",
    "is_forked": "client",
    "is_remote": "urls",
    "join": "urls",
    "list_objects": "objects",
    "object_info": "objects",
    "open_object": "stream",
    "put_object": "objects",
    "read_object": "objects",
    "read_range": "objects",
    "split_url": "urls",
    "upload_file": "uploads",
}

__all__ = [
    "FileInfo",
    "RemoteFile",
    "UploadTag",
    "abort_uploads",
    "delete_objects",
    "has_objects",
    "is_forked",
    "is_remote",
    "join",
    "list_objects",
    "object_info",
    "open_object",
    "put_object",
    "read_object",
    "read_range",
    "split_url",
    "upload_file",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenmill.remote' has no attribute {name!r}")
    return getattr(import_module(f"tokenmill.remote.{_HOMES[name]}"), name)
