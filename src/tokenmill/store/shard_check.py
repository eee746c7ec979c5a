"""Check one shard and its tables: the part of verification that reads the tokens."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenmill.errors import DamageError, TokenmillError
from tokenmill.store.documents import docs_file
from tokenmill.store.format import BLOCK_BYTES, BLOCKS_DTYPE, HEADER_BYTES, num_blocks
from tokenmill.store.metadata import Metadata
from tokenmill.store.reader import Split
from tokenmill.store.shard import blocks_file
from tokenmill.store.stored_object import AnyFile
from tokenmill.store.tokens_file import ids_file

_PIECE_BYTES: Final = 16 * BLOCK_BYTES  # fits the cache of a core
_SHOWN_BLOCKS: Final = 8


@dataclass(slots=True)
class Findings:
    """What checks have found so far; those of several threads are merged at the end."""

    problems: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """File inside the store, and what is wrong with it."""
    num_files: int = 0
    num_bytes: int = 0
    documents_by_source: Counter[int] = field(default_factory=Counter[int])

    def merge(self, other: Findings) -> None:
        """Add what another check found."""
        self.problems += other.problems
        self.num_files += other.num_files
        self.num_bytes += other.num_bytes
        self.documents_by_source.update(other.documents_by_source)

    def add(self, file: str, problem: str | TokenmillError) -> None:
        """Add a problem with a file; errors name it with its path, which is left out here."""
        text = problem.message if isinstance(problem, TokenmillError) else problem
        _, separator, rest = text.partition(f"{file}: ")
        self.problems.append((file, rest if separator else text))


class ShardCheck:
    """The three levels of checks for shard `index` of a split."""

    def __init__(
        self,
        folder: str,
        split: Split,
        *,
        index: int,
        metadata: Metadata,
        on_bytes: Callable[[int], None],
    ) -> None:
        entry = metadata.splits[split.name].shards[index]
        self._ids = ids_file(folder, split.name, index=index, metadata=metadata)
        self._docs = docs_file(folder, split.name, index=index, entry=entry)
        self._blocks = blocks_file(folder, split.name, index=index, entry=entry)
        self._entry = entry
        self._split = split
        self._index = index
        self._metadata = metadata
        self._on_bytes = on_bytes

    def structure(self) -> Findings:
        """Compare the sizes and headers of the three files."""
        found = Findings(num_files=3)
        for file in (self._ids, self._docs, self._blocks):
            try:
                file.open()
            except TokenmillError as error:
                found.add(file.name, error)
            finally:
                file.forget()
        return found

    def sample(self, rng: np.random.Generator, *, max_blocks: int) -> Findings:
        """Check both tables, and the blocks that `rng` picks with the documents ending in them."""
        found = Findings(num_files=3)
        has_table, sums = self._check_table(found), self._load_sums(found)
        total = num_blocks(self._entry.shard.bytes)
        chosen = np.sort(rng.choice(total, size=min(total, max_blocks), replace=False)).tolist()
        bad: list[int] = []
        try:
            for block in chosen:
                start = block * BLOCK_BYTES
                data = memoryview(
                    self._ids.read(start, min(start + BLOCK_BYTES, self._entry.shard.bytes))
                )
                self._count(found, len(data))
                if self._bad_blocks(data, block, sums=sums):
                    bad.append(block)
                elif wrong := self._wrong_ids(data, start, has_table=has_table):
                    self._add(found, wrong)
                    break
        except TokenmillError as error:
            found.add(self._ids.name, error)
        if bad:
            self._add(found, f"{_list_blocks(bad)} of those looked at: wrong checksum")
        return found

    def full(self) -> Findings:
        """Check every byte of the three files, and that ids and documents make sense."""
        found = Findings(num_files=3)
        has_table, sums = self._check_table(found), self._load_sums(found)
        if has_table:
            self._count_sources(found)
        try:
            self._check_ids(found, sums, has_table=has_table)
        except TokenmillError as error:
            found.add(self._ids.name, error)
        return found

    def _check_ids(
        self, found: Findings, sums: NDArray[np.uint64] | None, *, has_table: bool
    ) -> None:
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(min(_PIECE_BYTES, self._entry.shard.bytes)))
        bad: list[int] = []
        wrong = ""
        for start in range(0, self._entry.shard.bytes, _PIECE_BYTES):
            piece = buffer[: min(_PIECE_BYTES, self._entry.shard.bytes - start)]
            self._ids.read_into(piece, start)
            digest.update(piece)
            bad += self._bad_blocks(piece, start // BLOCK_BYTES, sums=sums)
            if not bad and not wrong:  # in a damaged shard they would only repeat the damage
                wrong = self._wrong_ids(piece, start, has_table=has_table)
            self._count(found, len(piece))
        if digest.hexdigest() != self._entry.shard.sha256:
            where = f"; {_list_blocks(bad)}" if bad else ""
            self._add(found, f"its SHA-256 is not the one in the metadata{where}")
        elif bad:
            found.add(self._blocks.name, f"{_list_blocks(bad)}: not the checksum of the shard's")
        elif wrong:
            self._add(found, wrong)

    def _add(self, found: Findings, problem: str) -> None:
        found.add(self._ids.name, f"{self._ids.note}{problem}")

    def _check_table(self, found: Findings) -> bool:
        try:
            self._split.table(self._index).check()
        except TokenmillError as error:
            found.add(self._docs.name, error)
            return False
        self._count(found, self._entry.docs.bytes)
        return True

    def _load_sums(self, found: Findings) -> NDArray[np.uint64] | None:
        try:
            data = self._blocks.read_all(self._entry.blocks.sha256)
        except TokenmillError as error:
            found.add(self._blocks.name, error)
            return None
        finally:
            self._blocks.forget()
        self._count(found, self._entry.blocks.bytes)
        return np.frombuffer(data, dtype=BLOCKS_DTYPE)

    def _count_sources(self, found: Findings) -> None:
        for rows in self._split.table(self._index).pieces():
            sources, counts = np.unique(rows["source"], return_counts=True)
            pairs = zip(sources.tolist(), counts.tolist(), strict=True)
            found.documents_by_source.update(dict(pairs))

    def _bad_blocks(
        self, data: memoryview, first_block: int, *, sums: NDArray[np.uint64] | None
    ) -> list[int]:
        """Return which of the blocks in `data` do not match their checksums."""
        if sums is None:
            return []
        expected = sums[first_block : first_block + num_blocks(len(data))].tolist()
        return [
            first_block + k
            for k, value in enumerate(expected)
            if xxhash.xxh3_64_intdigest(data[k * BLOCK_BYTES : (k + 1) * BLOCK_BYTES]) != value
        ]

    def _wrong_ids(self, data: memoryview, start: int, *, has_table: bool) -> str:
        """Say what is wrong with the ids in `data`, the bytes of the shard from `start` on."""
        ids = np.frombuffer(data[max(HEADER_BYTES - start, 0) :], dtype=self._split.dtype)
        if not len(ids):
            return ""
        skipped = max(start - HEADER_BYTES, 0) // self._split.dtype.itemsize
        first = self._index * self._metadata.shard_tokens + skipped
        num_ids = self._metadata.tokenizer.num_ids
        if int(ids.max()) >= num_ids:
            place = first + int(np.argmax(ids >= num_ids))
            return f"token {place} has an id that the tokenizer, with {num_ids} ids, does not have"
        if not has_table or not (self._metadata.add_bos or self._metadata.add_eos):
            return ""
        try:
            return self._wrong_edges(ids, first)
        except DamageError:  # the table of the shard before: its own check reports it
            return ""

    def _wrong_edges(self, ids: NDArray[np.unsignedinteger], first: int) -> str:
        """Say at which document an id that should open or close it is not there."""
        stop = first + len(ids)
        starts = self._split.document_ends(max(first - 1, 0), stop)
        ends = starts[starts > first]
        starts = starts[starts < stop]
        if np.any(ends[1:] == ends[:-1]):
            return "a document has no tokens, though BOS or EOS is added to each"
        if first == 0:
            starts = np.insert(starts, 0, 0)
        bos_id, eos_id = self._metadata.bos_id, self._metadata.eos_id
        if bos_id is not None and np.any(missing := ids[starts - np.uint64(first)] != bos_id):
            place = int(starts[np.argmax(missing)])
            return f"the document that starts at token {place} does not start with BOS {bos_id}"
        is_cut = self._metadata.splits[self._split.name].last_document_cut
        if is_cut and stop == self._split.num_tokens:
            ends = ends[:-1]
        if eos_id is not None and np.any(missing := ids[ends - np.uint64(first + 1)] != eos_id):
            place = int(ends[np.argmax(missing)])
            return f"the document that ends at token {place} does not end with EOS {eos_id}"
        return ""

    def _count(self, found: Findings, num_bytes: int) -> None:
        found.num_bytes += num_bytes
        self._on_bytes(num_bytes)


def check_hash(file: AnyFile, sha256: str) -> Findings:
    """Compare the hash of a whole file."""
    found = Findings(num_files=1)
    try:
        found.num_bytes = sum(len(piece) for piece in file.pieces(sha256))
    except TokenmillError as error:
        found.add(file.name, error)
    finally:
        file.forget()
    return found


def _list_blocks(blocks: list[int]) -> str:
    more = f" and {len(blocks) - _SHOWN_BLOCKS} more" if len(blocks) > _SHOWN_BLOCKS else ""
    return f"block {', '.join(map(str, blocks[:_SHOWN_BLOCKS]))}{more}"
