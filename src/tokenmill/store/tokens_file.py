"""The files of consolidated ids as the reader sees them, and shards that live in one of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from msgspec import UNSET

from tokenmill.errors import DamageError
from tokenmill.store.format import npy_header, sample_ids_name, shard_name, tokens_name
from tokenmill.store.metadata import ConsolidatedEntry, Metadata
from tokenmill.store.stored_object import AnyFile, StoredObject, file_of_store


class ShardInTokens:
    """A deleted shard, read from the tokens file of its split as if its .npy file were there.

    The header follows from type and length, so the checksums made for the file prove these bytes.
    """

    __slots__ = ("_start", "_tokens", "header", "name", "note", "num_bytes")

    def __init__(
        self, tokens: AnyFile, shard: str, *, start: int, num_bytes: int, header: bytes
    ) -> None:
        self.name = tokens.name
        self.note = f"{shard} in it: "
        self.num_bytes = num_bytes
        self.header = header
        self._tokens = tokens
        self._start = start

    def read_into(self, out: memoryview, offset: int) -> None:
        """Fill `out` with what would be the bytes of the shard file from `offset` on."""
        head = self.header[offset : offset + len(out)]
        out[: len(head)] = head
        if len(head) < len(out):
            place = self._start + offset + len(head) - len(self.header)
            self._tokens.read_into(out[len(head) :], place)

    def fetch(self, start: int, stop: int) -> bytes:
        """Return the same of a remote store, and keep nothing of it."""
        assert isinstance(self._tokens, StoredObject)
        head, size = self.header[start:stop], len(self.header)
        place = self._start - size
        return head + self._tokens.fetch(place + max(start, size), place + max(stop, size))

    def read(self, start: int, stop: int) -> bytearray:
        """Return what would be the bytes of the shard file from `start` to `stop`."""
        data = bytearray(stop - start)
        self.read_into(memoryview(data), start)
        return data

    def check_size(self, sizes: Mapping[str, int] | None = None) -> None:
        """Compare the size of the tokens file, without opening it."""
        self._tokens.check_size(sizes)

    def open(self) -> None:
        """Open the tokens file now, comparing its size."""
        self._tokens.open()

    def forget(self) -> None:
        """Close the tokens file, once no read is using it."""
        self._tokens.forget()

    def damage(self, problem: str) -> DamageError:
        """Return an error that names the tokens file and the shard in it."""
        return self._tokens.damage(f"{self.note}{problem}")


IdsFile = AnyFile | ShardInTokens


def ids_file(folder: str, split: str, *, index: int, metadata: Metadata) -> IdsFile:
    """Return the file of the token ids of a shard, or the part of the tokens file that holds it."""
    dtype, entry = metadata.token_dtype, metadata.splits[split].shards[index]
    header = npy_header(dtype, entry.num_tokens)
    name = shard_name(split, index)
    if not metadata.splits[split].shards_deleted:
        return file_of_store(folder, name, num_bytes=entry.shard.bytes, header=header)
    return ShardInTokens(
        consolidated_files(folder, split, metadata=metadata)[0],
        name,
        start=index * metadata.shard_tokens * dtype.itemsize,
        num_bytes=entry.shard.bytes,
        header=header,
    )


def consolidated_files(folder: str, split: str, *, metadata: Metadata) -> list[AnyFile]:
    """Return the tokens file and the sample ids of a split; nothing if it is not consolidated."""
    entry = metadata.splits[split].consolidated
    return [] if entry is UNSET else files_of_entry(folder, split, entry=entry)


def files_of_entry(folder: str, split: str, *, entry: ConsolidatedEntry) -> list[AnyFile]:
    """Return the tokens file and the sample ids that an entry speaks of."""
    remedy = f"tokenmill consolidate {shlex.quote(folder)} --seq-len {entry.seq_len}"
    again = f"`{remedy}` writes it again from the shards"
    if entry.shards_deleted:
        again = "restore it from a copy: its shards were deleted"
    return [
        file_of_store(folder, name, num_bytes=file.bytes, remedy=again)
        for name, file in (
            (tokens_name(split), entry.tokens),
            (sample_ids_name(split), entry.sample_ids),
        )
    ]
