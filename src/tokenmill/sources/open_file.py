"""Opens a file of a source, wherever it is."""

from __future__ import annotations

from typing import BinaryIO, cast

from tokenmill.files import FileInfo, open_input
from tokenmill.remote import is_remote, open_object
from tokenmill.sources.hub import SCHEME, HubFile
from tokenmill.sources.settings import SourceFile


def open_file(file: SourceFile, *, span: tuple[int, int] | None = None) -> BinaryIO:
    """Open a file to read bytes from, unbuffered and seekable.

    `span` tells which bytes will be read in order: from far away they are fetched ahead.
    """
    if file.path.startswith(SCHEME):
        return cast("BinaryIO", HubFile(file.path, file.size))
    if is_remote(file.path):
        info = FileInfo(file.path, file.size, file.version)
        return open_object(file.path, info=info, span=span)
    return open_input(file.path)
