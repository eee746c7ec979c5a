"""Plain files of token ids, read as one sequence: `.npy` with its header, `.bin` without any."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenmill.errors import ConfigError, DamageError, NotAStoreError
from tokenmill.files import storage_error

SUFFIXES: Final = (".npy", ".bin")
MAX_OPEN_FILES: Final = 256
_NPY_MAGIC: Final = b"\x93NUMPY"
_LLM_C_MAGICS: Final = {20240520, 20240801}
_LLM_C_BYTES: Final = 1024
_MAX_HEADER_BYTES: Final = 1 << 16


class TokenFiles:
    """Files with ids of one type, one after the other; sizes and headers are checked at once.

    Threads and forked processes may share it; a pickled one opens its files again.
    """

    def __init__(self, paths: list[Path], *, dtype: DTypeLike | None = None) -> None:
        if not paths:
            raise ConfigError("no files of token ids were given")
        self.paths = [path.absolute() for path in paths]
        found = [_inspect(path, dtype) for path in self.paths]
        self.dtype = found[0][0]
        for path, (other, _, _) in zip(self.paths, found, strict=True):
            if other != self.dtype:
                raise ConfigError(f"{path}: its ids are {other}, those of {paths[0]} {self.dtype}")
        self._offsets = [offset for _, offset, _ in found]
        self._starts = np.cumsum([0, *(size for _, _, size in found)]).tolist()
        self.num_tokens: int = self._starts[-1]
        self._descriptors: dict[int, _Descriptor] = {}

    def read_into(self, out: NDArray[Any], start: int) -> None:
        """Fill `out`, a contiguous array of `dtype`, with the ids from token `start` on."""
        if out.dtype != self.dtype or not out.flags.c_contiguous:
            raise TypeError(f"out is {out.dtype}, expected a contiguous array of {self.dtype}")
        if not 0 <= start <= start + out.size <= self.num_tokens:
            raise IndexError(
                f"tokens {start} to {start + out.size} are outside [0, {self.num_tokens}]"
            )
        view, done = out.data.cast("B") if out.size else memoryview(b""), 0
        while done < len(view):
            number = bisect_right(self._starts, start) - 1
            available = (self._starts[number + 1] - start) * out.itemsize
            piece = view[done : done + available]
            offset = self._offsets[number] + (start - self._starts[number]) * out.itemsize
            self._fill(piece, number, offset)
            done += len(piece)
            start += len(piece) // out.itemsize

    def read_windows(self, out: NDArray[Any], starts: NDArray[np.int64]) -> None:
        """Fill row `k` of `out` with the ids from `starts[k]` on."""
        for row, start in zip(out, starts.tolist(), strict=True):
            self.read_into(row, start)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.paths, self.dtype, self.num_tokens)

    def _fill(self, out: memoryview, number: int, offset: int) -> None:
        path = self.paths[number]
        try:
            # The local name keeps the file open should another thread let go of it meanwhile.
            descriptor = self._descriptors.get(number) or self._open(number)
            done = 0
            while done < len(out):
                got = os.preadv(descriptor.number, [out[done:]], offset + done)
                if not got:
                    raise DamageError(f"{path}: ends at byte {offset + done}; it was longer before")
                done += got
        except OSError as error:
            raise storage_error(error, path) from error

    def _open(self, number: int) -> _Descriptor:
        while len(self._descriptors) >= MAX_OPEN_FILES:
            self._descriptors.pop(next(iter(self._descriptors)), None)
        descriptor = self._descriptors[number] = _Descriptor(self.paths[number])
        return descriptor


def find_token_files(folder: Path, split: str) -> list[Path]:
    """Return the files of token ids of a split in a folder without metadata, in numeric order.

    These are `train_000000.npy` and the like, or `train.bin` alone; where no file bears the name of
    a split, all files of one suffix are `train`.
    """
    for suffix in SUFFIXES:
        files = [path for path in folder.iterdir() if path.suffix == suffix and path.is_file()]
        files = [path for path in files if not path.name.endswith("sample_ids.bin")]
        own = [path for path in files if re.fullmatch(rf"{re.escape(split)}([_-].*)?", path.stem)]
        if not own and split == "train" and not any(_NAMED.match(path.stem) for path in files):
            own = files
        if own:
            return sorted(own, key=_numeric_order)
    raise NotAStoreError(
        f"{folder}: neither a store nor a folder with files of token ids for {split!r}",
        hint=f"expected metadata.json, {split}_000000.npy or {split}.bin",
    )


_NAMED: Final = re.compile(r"(train|val|validation|test)([_-]|$)")


def _numeric_order(path: Path) -> list[tuple[int, str]]:
    """Put part 10 after part 9: not all writers fill their numbers up with zeros."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


class _Descriptor:
    """An open file, closed when the last reader lets go of it."""

    def __init__(self, path: Path) -> None:
        self.number = -1
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


def _inspect(path: Path, dtype: DTypeLike | None) -> tuple[np.dtype[Any], int, int]:
    """Return the type of the ids in a file, the place of the first and their number."""
    try:
        with path.open("rb") as file:
            head = file.read(_MAX_HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise storage_error(error, path) from error
    if head.startswith(_NPY_MAGIC):
        found, offset, length = _parse_npy(path, head)
        if dtype is not None and np.dtype(dtype) != found:
            raise ConfigError(f"{path}: its ids are {found}, not {np.dtype(dtype)}")
        if size != offset + length * found.itemsize:
            expected = offset + length * found.itemsize
            raise DamageError(f"{path}: is {size} bytes long, its header says {expected}")
        return found, offset, length
    if path.suffix == ".npy":
        raise ConfigError(
            f"{path}: has no .npy header",
            hint="if it holds nothing but ids, name it .bin and give their dtype",
        )
    return _inspect_bin(path, head, size=size, dtype=dtype)


def _inspect_bin(
    path: Path, head: bytes, *, size: int, dtype: DTypeLike | None
) -> tuple[np.dtype[Any], int, int]:
    if dtype is None:
        raise ConfigError(
            f"{path}: nothing in the file tells the type of its ids",
            hint='give it, for example dtype="uint16"',
        )
    if len(head) >= _LLM_C_BYTES and int.from_bytes(head[:4], "little") in _LLM_C_MAGICS:
        raise ConfigError(
            f"{path}: begins with a header of llm.c, which would be read as tokens",
            hint="`tokenmill adopt` reads such files",
        )
    found = _checked_dtype(path, np.dtype(dtype))
    if size % found.itemsize:
        raise ConfigError(f"{path}: {size} bytes are not a whole number of {found} ids")
    return found, 0, size // found.itemsize


def _parse_npy(path: Path, head: bytes) -> tuple[np.dtype[Any], int, int]:
    """Read an .npy header without running anything that is in it."""
    file = BytesIO(head)
    try:
        version = np.lib.format.read_magic(file)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = read(file)
    except (ValueError, KeyError) as error:
        raise DamageError(f"{path}: its .npy header cannot be read: {error}") from error
    if len(shape) != 1:
        raise ConfigError(f"{path}: an array of shape {shape}, expected one dimension of token ids")
    return _checked_dtype(path, dtype), file.tell(), int(shape[0])


def _checked_dtype(path: Path, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in "iu" or dtype.itemsize == 1 or not dtype.isnative:
        raise ConfigError(f"{path}: its ids are {dtype}, expected uint16, uint32 or a signed type")
    return dtype


def _reopen(paths: list[Path], dtype: np.dtype[Any], num_tokens: int) -> TokenFiles:
    files = TokenFiles(paths, dtype=dtype)
    if files.num_tokens != num_tokens:
        raise DamageError(
            f"{paths[0]}: {files.num_tokens} tokens in its files, {num_tokens} before",
            hint="let nothing write to the files while they are read",
        )
    return files
