"""Objects of an S3-compatible store: found, read by ranges, written whole or not at all.

A place is a URL `s3://bucket/key`; it stays a string, for `pathlib` makes one slash of two. The
endpoint, the region and the credentials come from the environment or the usual files of AWS, and
appear in no message. What fails for a moment is tried again, with longer and longer pauses; what
stays wrong is a `StorageError` that names the URL. A missing object is `FileNotFoundError`.
"""

from __future__ import annotations

from tokenmill.remote.client import is_forked
from tokenmill.remote.objects import (
    FileInfo,
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
from tokenmill.remote.urls import is_remote, join, split_url

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
