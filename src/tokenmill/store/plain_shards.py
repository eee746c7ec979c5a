"""Folders of plain `train_000000.npy` without our metadata: find the shards, read them, keep notes.

What is known of the consolidated files of such a folder is in `consolidated.json` beside them.
"""

from __future__ import annotations

import hashlib
import os
import re
from bisect import bisect_right
from collections.abc import Collection, Iterator
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from tokenmill.errors import ConfigError, DamageError
from tokenmill.files import atomic_write, storage_error
from tokenmill.store.format import TOKEN_DTYPES, is_split_name
from tokenmill.store.metadata import ConsolidatedEntry, consolidated_problems

RECORD_NAME: Final = "consolidated.json"

_SHARD_NAME: Final = re.compile(r"(?P<split>.+)_(?P<number>[0-9]+)\.npy")
_MAX_HEADER_BYTES: Final = 1 << 12


class PlainShard(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One .npy file of token ids."""

    name: str
    num_tokens: Annotated[int, Meta(ge=0)]
    offset: Annotated[int, Meta(ge=0)]
    """First byte behind the header."""
    version: str = ""
    """A mark that changes when the file does."""


class PlainSplit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The shards of a split, and the files that were made from them."""

    dtype: str
    shards: tuple[PlainShard, ...]
    consolidated: ConsolidatedEntry

    @property
    def num_tokens(self) -> int:
        """Tokens in all shards."""
        return sum(shard.num_tokens for shard in self.shards)


class PlainRecord(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of `consolidated.json`."""

    checksum: str = ""
    """SHA-256 of the file as it is when this text is empty."""
    splits: dict[str, PlainSplit]


class PlainShards:
    """The ids of a split, read across its .npy files; one of them is open at a time."""

    def __init__(self, folder: Path, split: str, *, shards: tuple[PlainShard, ...], dtype: str):
        self.split = split
        self.shards = shards
        self.dtype = TOKEN_DTYPES[dtype]
        self._folder = folder
        self._starts = list(accumulate((s.num_tokens for s in shards), initial=0))
        self.num_tokens = self._starts[-1]
        self._open: tuple[int, int] | None = None  # number of the shard, descriptor

    @property
    def identity(self) -> str:
        """Return a name that changes when a shard does."""
        return hashlib.sha256(msgspec.json.encode(self.shards)).hexdigest()

    def read_into(self, out: NDArray[Any], start: int) -> None:
        """Fill `out` with the ids from token `start` on."""
        view, done, size = out.view(np.uint8).data, 0, self.dtype.itemsize
        while done < len(view):
            number = bisect_right(self._starts, start) - 1
            piece = view[done : done + (self._starts[number + 1] - start) * size]
            shard = self.shards[number]
            self._read(piece, number, shard.offset + (start - self._starts[number]) * size)
            done += len(piece)
            start += len(piece) // size

    def close(self) -> None:
        """Let go of the file that is open."""
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _read(self, out: memoryview, number: int, offset: int) -> None:
        path = self._folder / self.shards[number].name
        try:
            if self._open is None or self._open[0] != number:
                self.close()
                self._open = number, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            done = 0
            while done < len(out):
                got = os.preadv(self._open[1], (out[done:],), offset + done)
                if not got:
                    raise DamageError(f"{path}: ends at byte {offset + done}: it was cut")
                done += got
        except OSError as error:
            raise storage_error(error, path) from error


def find_plain_shards(folder: Path, *, without: Collection[str] = ()) -> dict[str, PlainShards]:
    """Return the splits of a folder of .npy shards, each in the order of their numbers.

    Shards are named by a split, `_` and a number. A number that is missing between two others, or
    there twice, is an error: nothing is left out in silence.
    """
    found: dict[str, dict[int, str]] = {}
    for name in sorted(path.name for path in folder.iterdir()):
        match = _SHARD_NAME.fullmatch(name)
        if match is None or not is_split_name(match["split"]) or match["split"] in without:
            continue
        numbers = found.setdefault(match["split"], {})
        number = int(match["number"])
        if number in numbers:
            raise ConfigError(f"{folder / name}: has the same number as {numbers[number]}")
        numbers[number] = name
    splits: dict[str, PlainShards] = {}
    for split, numbers in found.items():
        missing = set(range(min(numbers), max(numbers))) - set(numbers)
        if missing:
            raise DamageError(
                f"{folder}: shard {min(missing)} of {split} is missing: "
                f"there are {len(numbers)} from {min(numbers)} to {max(numbers)}",
                hint="restore it from a copy, or write the shards again",
            )
        paths = [folder / numbers[number] for number in sorted(numbers)]
        inspected = [_inspect(path) for path in paths]
        dtype = inspected[0][0]
        for path, (other, _) in zip(paths, inspected, strict=True):
            if other != dtype:
                raise ConfigError(f"{path}: its ids are {other}, those of {paths[0].name} {dtype}")
        shards = tuple(shard for _, shard in inspected)
        splits[split] = PlainShards(folder, split, shards=shards, dtype=dtype)
    return splits


def read_record(folder: Path) -> PlainRecord | None:
    """Return what is known of the consolidated files of a plain folder; None if it has none."""
    path = folder / RECORD_NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage_error(error, path) from error
    try:
        record = msgspec.json.decode(data, type=PlainRecord)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise _damage(path, str(error)) from error
    if data != _encode(record):
        raise _damage(path, "its checksum does not match its content")
    problem = next(_problems(record), None)
    if problem is not None:
        raise _damage(path, problem)
    return record


def write_record(folder: Path, record: PlainRecord) -> None:
    """Write `consolidated.json`, atomically."""
    with atomic_write(folder / RECORD_NAME) as file:
        file.write(_encode(record))


def _encode(record: PlainRecord) -> bytes:
    blank = msgspec.structs.replace(record, checksum="")
    checksum = hashlib.sha256(_json(blank)).hexdigest()
    return _json(msgspec.structs.replace(record, checksum=f"sha256:{checksum}"))


def _json(record: PlainRecord) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record, order="deterministic"), indent=2) + b"\n"


def _problems(record: PlainRecord) -> Iterator[str]:
    for name, split in record.splits.items():
        if not is_split_name(name):
            yield f"{name!r}: not a name for a split"
        elif split.dtype not in TOKEN_DTYPES:
            yield f"split {name}: dtype is {split.dtype!r}"
        else:
            for shard in split.shards:
                if _SHARD_NAME.fullmatch(shard.name) is None or "/" in shard.name:
                    yield f"split {name}: {shard.name!r} is not a name for a shard"
            dtype = TOKEN_DTYPES[split.dtype]
            yield from consolidated_problems(split.consolidated, split.num_tokens, dtype=dtype)


def _damage(path: Path, problem: str) -> DamageError:
    return DamageError(
        f"{path}: damaged: {problem}",
        hint="move it away and consolidate again, or restore it from a copy",
    )


def _inspect(path: Path) -> tuple[str, PlainShard]:
    """Return the type of the ids in an .npy file and where they are; nothing in it is run."""
    try:
        with path.open("rb") as file:
            head = BytesIO(file.read(_MAX_HEADER_BYTES))
            status = os.fstat(file.fileno())
    except OSError as error:
        raise storage_error(error, path) from error
    try:
        version = np.lib.format.read_magic(head)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, _, dtype = read(head)
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{path}: not an .npy file: {error}",
            hint="if it holds ids without a header, `tokenmill adopt` reads it",
        ) from error
    name = next((name for name, known in TOKEN_DTYPES.items() if known == dtype), None)
    if name is None or len(shape) != 1:
        raise ConfigError(
            f"{path}: an array of {dtype} {shape}, "
            "expected one dimension of uint16 or uint32, little-endian"
        )
    expected = head.tell() + shape[0] * dtype.itemsize
    if status.st_size != expected:
        raise DamageError(f"{path}: is {status.st_size} bytes long, its header says {expected}")
    shard = PlainShard(
        name=path.name, num_tokens=shape[0], offset=head.tell(), version=str(status.st_mtime_ns)
    )
    return name, shard
