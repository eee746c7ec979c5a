"""A file in the making: it has its name in the folder only once it is whole."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Self

from tokenmill.files import OutputFile


class Draft:
    """A new file that counts its bytes; `publish` gives it its name, `close` before that drops it.

    What was published under the same name is replaced.
    """

    def __init__(self, file: OutputFile, settle: Callable[[OutputFile, bool], None]) -> None:
        self._file, self._settle = file, settle

    @property
    def num_bytes(self) -> int:
        """Bytes written so far."""
        return self._file.num_bytes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append all of `data`; hand over large pieces."""
        self._file.write(data)

    def publish(self, *, sync: bool = True) -> None:
        """Check that all bytes arrived and give the file its name, to survive a power loss or not.

        Without `sync` a power loss can leave the name with other bytes, on a disk.
        """
        self._settle(self._file, sync)

    def close(self) -> None:
        """Remove what was written, unless it was published."""
        self._file.close()
        with suppress(OSError):  # what went wrong before is the news
            self._file.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
