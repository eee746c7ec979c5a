"""Opens a file of a source, wherever it is."""

from __future__ import annotations

from typing import BinaryIO, cast

from tokenmill.files import open_input
from tokenmill.sources.hub import SCHEME, HubFile
from tokenmill.sources.settings import SourceFile


def open_file(file: SourceFile) -> BinaryIO:
    """Open a file to read bytes from, unbuffered and seekable."""
    if file.path.startswith(SCHEME):
        return cast("BinaryIO", HubFile(file.path, file.size))
    return open_input(file.path)
