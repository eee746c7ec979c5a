"""One shard as the reader sees it: ids whose bytes are proved before they are served."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenmill.store.cached_file import CachedShard, TableFile, cached_shard, cached_table
from tokenmill.store.format import (
    BLOCK_BYTES,
    BLOCKS_DTYPE,
    BLOCKS_FOLDER,
    HEADER_BYTES,
    npy_header,
    num_blocks,
    shard_name,
)
from tokenmill.store.metadata import Metadata, ShardEntry
from tokenmill.store.remote_cache import RemoteCache
from tokenmill.store.stored_object import AnyFile, file_of_store
from tokenmill.store.tokens_file import ids_file

_KEPT_TABLES: Final = 128  # of 24 KB each for the usual shard of 200 MB


def blocks_file(folder: str, split: str, *, index: int, entry: ShardEntry) -> AnyFile:
    """Return the file of the block checksums of a shard."""
    header = npy_header(BLOCKS_DTYPE, num_blocks(entry.shard.bytes))
    name = f"{BLOCKS_FOLDER}/{shard_name(split, index)}"
    return file_of_store(folder, name, num_bytes=entry.blocks.bytes, header=header)


class Shard:
    """Reads the ids of one shard; with `check_blocks`, each block is hashed before its first use.

    A block that passed is not hashed again in this process. What is served of an unproved block is
    the very memory that was hashed, not a second read of it.
    """

    __slots__ = ("_blocks", "_blocks_sha256", "_checked", "_file", "_itemsize")

    def __init__(
        self,
        folder: str,
        split: str,
        *,
        index: int,
        metadata: Metadata,
        check_blocks: bool,
        cache: RemoteCache | None = None,
    ) -> None:
        entry = metadata.splits[split].shards[index]
        blocks = blocks_file(folder, split, index=index, entry=entry)
        self._blocks = cached_table(blocks, entry.blocks.sha256, cache=cache, is_proved=True)
        self._file = cached_shard(
            ids_file(folder, split, index=index, metadata=metadata),
            entry.shard.sha256,
            cache=cache,
            sums=partial(_load_sums, self._blocks, entry.blocks.sha256) if check_blocks else None,
        )
        self._blocks_sha256 = entry.blocks.sha256
        self._itemsize = metadata.token_dtype.itemsize
        # One byte a block, 1 when proved; None when nothing is left to prove.
        self._checked = bytearray(num_blocks(entry.shard.bytes)) if check_blocks else None

    def read_into(self, out: memoryview, first: int) -> None:
        """Fill `out`, a view of bytes, with the ids from number `first` of the shard on."""
        start = HEADER_BYTES + first * self._itemsize
        self._file.read_into(out, start)
        checked = self._checked
        if checked is not None:
            first_block, stop_block = start // BLOCK_BYTES, num_blocks(start + len(out))
            if checked.find(0, first_block, stop_block) >= 0:
                self._check(out, start, checked=checked)

    def _check(self, out: memoryview, start: int, *, checked: bytearray) -> None:
        """Prove the blocks under `out`, which holds the file's bytes from `start` on."""
        sums = _load_sums(self._blocks, self._blocks_sha256)
        stop = start + len(out)
        for block in range(start // BLOCK_BYTES, num_blocks(stop)):
            if checked[block]:
                continue
            block_start = block * BLOCK_BYTES
            block_stop = min(block_start + BLOCK_BYTES, self._file.num_bytes)
            low, high = max(start, block_start), min(stop, block_stop)
            if start <= block_start and block_stop <= stop:
                data = out[block_start - start : block_stop - start]
            else:
                data = memoryview(self._file.read(block_start, block_stop))
                out[low - start : high - start] = data[low - block_start : high - block_start]
            if xxhash.xxh3_64_intdigest(data) != int(sums[block]):
                data = self._second_look(block, block_start, block_stop)
                out[low - start : high - start] = data[low - block_start : high - block_start]
            checked[block] = 1
        if 0 not in checked:
            self._checked = None

    def _second_look(self, block: int, start: int, stop: int) -> memoryview:
        """Return a block in place of a copy that is spoiled; if there is no other, raise."""
        if not isinstance(self._file, CachedShard):
            place = f"block {block} (bytes {start} to {stop})"
            raise self._file.damage(f"{place} does not match its checksum")
        return memoryview(self._file.read_again(start, stop))  # proved on its way


@lru_cache(maxsize=_KEPT_TABLES)
def _load_sums(file: TableFile, sha256: str) -> NDArray[np.uint64]:
    """Return the proved block checksums of a shard; the tables used last are kept."""
    data = file.read_all(sha256)
    file.forget()
    return np.frombuffer(data, dtype=BLOCKS_DTYPE)
