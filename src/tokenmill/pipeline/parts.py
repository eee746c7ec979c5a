"""Parts: the tokens of one unit, as a task leaves them for the assembly.

    _run/parts/000007.9f2c41d0a3b7.part   token ids back to back, then the document table
    _run/parts/000007.9f2c41d0a3b7.rejects   one JSON line for each rejected document, if any
    _run/parts/000007.json                the receipt: what is in them, with checksums

A part belongs to an attempt and has a unique name. The receipt names the attempt and is published
create-only, so of two attempts at one unit exactly one counts. Parts are not synced to disk: the
receipt's checksums tell after a power loss which ones survived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenmill.errors import DamageError, Interrupted
from tokenmill.files import OutputFile, atomic_write, partial_path, publish_new
from tokenmill.pipeline.order import in_val
from tokenmill.sources import Reject

PART_DOCS_DTYPE = np.dtype(
    [
        ("end", "<u8"),  # in tokens, counted from the start of the part
        ("num_bytes", "<u8"),  # of UTF-8 text
        ("source", "<u4"),
        ("position", "<u8"),
        ("content", "<u8"),  # content hash; 0 unless a split needs it
        ("key", "<u8"),  # place in the shuffled order; 0 unless shuffled
    ]
)
PIECE_TOKENS = 1 << 20
SMALL_PIECE_TOKENS = 1 << 15
"""Tokens under one checksum: small where parts are read in slices (sorted, or with a split)."""
RUN_TOKENS = 1 << 24
"""Tokens sorted in memory at a time: bounds the memory of a shuffled run."""

_COPY_BYTES = 1 << 20

Ids = NDArray[np.unsignedinteger]
Docs = NDArray[np.void]  # of PART_DOCS_DTYPE


class SourceCount(msgspec.Struct, frozen=True):
    """Documents of one source file in one split."""

    source: int
    split: str
    num_documents: int
    num_tokens: int
    num_bytes: int


class Receipt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Proof of a finished unit."""

    unit: int
    attempt: str
    num_tokens: int
    num_documents: int
    pieces: list[tuple[int, int]]
    """(tokens, xxh3) of each stretch of the token section."""
    runs: list[int]
    """Documents in each sorted run, when shuffled."""
    docs_hash: int
    counts: list[SourceCount]
    num_blank: int
    rejects: dict[str, int]
    """Rejected documents by reason."""
    rejects_by_source: dict[int, int]
    rejects_hash: int
    seconds: float

    @property
    def num_rejected(self) -> int:
        """Count the rejected documents."""
        return sum(self.rejects.values())

    @property
    def part_name(self) -> str:
        """Name the file with tokens and document table."""
        return f"{self.unit:06d}.{self.attempt}.part"

    @property
    def rejects_name(self) -> str:
        """Name the file with the rejected documents; it exists if there are any."""
        return f"{self.unit:06d}.{self.attempt}.rejects"


_RECEIPTS = msgspec.json.Decoder(Receipt)  # made once: first use by two threads is not safe


class PartWriter:
    """Writes one attempt at a unit; nothing counts until `publish`, and `discard` removes it."""

    def __init__(
        self, folder: Path, unit: int, *, dtype: np.dtype, sort: bool, piece_tokens: int
    ) -> None:
        self._folder, self._unit, self._dtype, self._sort = folder, unit, dtype, sort
        self._piece_tokens = piece_tokens
        self._attempt = uuid4().hex[:12]
        self._file = OutputFile(folder / f"{unit:06d}.{self._attempt}.part")
        self._pieces: list[tuple[int, int]] = []
        self._docs: list[Docs] = []
        self._runs: list[int] = []
        self._rejects: Counter[str] = Counter()
        self._rejects_by_source: Counter[int] = Counter()
        self._rejects_file: OutputFile | None = None
        self._rejects_hash = xxhash.xxh3_64()
        self._num_tokens = 0
        self._held: list[tuple[Ids, Docs]] = []  # of the current run, only when sorting
        self._held_tokens = 0
        self._num_blank = 0

    def add(self, ids: Ids, docs: Docs) -> None:
        """Append documents; `docs["end"]` counts within `ids`."""
        if self._sort:
            self._held.append((ids, docs))
            self._held_tokens += len(ids)
            if self._held_tokens >= RUN_TOKENS:
                self._flush_run()
            return
        docs["end"] += self._num_tokens
        self._docs.append(docs)
        self._write(ids)

    def add_long(self, pieces: Iterator[Ids], doc: Docs) -> None:
        """Append one document that arrives in pieces; `doc` is its row, without the end."""
        if self._sort:
            ids = np.concatenate(list(pieces))
            doc["end"] = len(ids)
            self.add(ids, doc)
            return
        before = self._num_tokens
        for ids in pieces:
            self._write(ids)
        doc["end"] = self._num_tokens
        if self._num_tokens > before:
            self._docs.append(doc)
        else:
            self.add_blank(1)

    def add_rejects(self, rejects: list[Reject], path: str) -> None:
        """Record documents of the file `path` that were not tokenized."""
        if self._rejects_file is None:
            name = f"{self._unit:06d}.{self._attempt}.rejects"
            self._rejects_file = OutputFile(self._folder / name)
        self._rejects.update(reject.reason for reject in rejects)
        self._rejects_by_source.update(reject.file for reject in rejects)
        lines = b"".join(_reject_line(reject, path) for reject in rejects)
        self._rejects_hash.update(lines)
        self._rejects_file.write(lines)

    def add_blank(self, number: int) -> None:
        """Count documents without text, which are passed over."""
        self._num_blank += number

    def publish(self, *, threshold: int, seconds: float) -> Receipt:
        """Finish the files and put the receipt in place; return the receipt that counts.

        If another attempt was first, this one is removed and the other's receipt returned.
        """
        self._flush_run()
        if self._rejects_file is not None:
            self._rejects_file.finish(sync=False)
        docs = np.concatenate(self._docs) if self._docs else np.empty(0, dtype=PART_DOCS_DTYPE)
        self._file.write(docs.view(np.uint8).data)
        self._file.finish(sync=False)
        receipt = Receipt(
            unit=self._unit,
            attempt=self._attempt,
            num_tokens=self._num_tokens,
            num_documents=len(docs),
            pieces=self._pieces,
            runs=self._runs,
            docs_hash=xxhash.xxh3_64_intdigest(docs.view(np.uint8).data),
            counts=count_documents(docs, lengths(docs), threshold=threshold),
            num_blank=self._num_blank,
            rejects=dict(self._rejects),
            rejects_by_source=dict(self._rejects_by_source),
            rejects_hash=self._rejects_hash.intdigest(),
            seconds=round(seconds, 3),
        )
        if not self._file.path.exists():
            raise Interrupted(f"{self._file.path}: removed by a newer run, which does this unit")
        path = self._folder / f"{self._unit:06d}.json"
        if write_new(path, msgspec.json.encode(receipt)):
            return receipt
        other = read_receipt(path)
        if not (self._folder / other.part_name).exists():  # left by a process that outlived its run
            with atomic_write(path, sync=False) as file:
                file.write(msgspec.json.encode(receipt))
            return receipt
        self.discard()
        return other

    def discard(self) -> None:
        """Remove this attempt's files."""
        self._file.close()
        if self._rejects_file is not None:
            self._rejects_file.close()
        for suffix in ("part", "rejects"):
            path = self._folder / f"{self._unit:06d}.{self._attempt}.{suffix}"
            path.unlink(missing_ok=True)

    def _write(self, ids: Ids) -> None:
        if ids.dtype != self._dtype:
            raise TypeError(f"ids are {ids.dtype}, the part is {self._dtype}")
        for start in range(0, len(ids), self._piece_tokens):
            piece = ids[start : start + self._piece_tokens].view(np.uint8).data
            self._pieces.append((len(piece) // ids.itemsize, xxhash.xxh3_64_intdigest(piece)))
            self._file.write(piece)
        self._num_tokens += len(ids)

    def _flush_run(self) -> None:
        """Sort the held documents by key and write them; equal keys keep the order of the input."""
        if not self._held:
            return
        offset = 0
        for ids, docs in self._held:
            docs["end"] += offset
            offset += len(ids)
        ids = np.concatenate([ids for ids, _ in self._held])
        docs = np.concatenate([docs for _, docs in self._held])
        self._held, self._held_tokens = [], 0
        starts = np.concatenate([np.zeros(1, dtype=np.uint64), docs["end"][:-1]])
        order = np.argsort(docs["key"], kind="stable")
        stretches = [ids[a:b] for a, b in zip(starts[order], docs["end"][order], strict=True)]
        docs = docs[order]
        docs["end"] = self._num_tokens + np.cumsum([len(stretch) for stretch in stretches])
        self._docs.append(docs)
        self._runs.append(len(docs))
        self._write(np.concatenate(stretches))


class Part:
    """A finished part, read with its checksums verified."""

    def __init__(self, folder: Path, receipt: Receipt, *, dtype: np.dtype) -> None:
        self.receipt = receipt
        self.path = folder / receipt.part_name
        self.dtype = dtype
        self._last_piece: tuple[int, int, Ids] = (-1, 0, np.empty(0, dtype=dtype))
        self._stops = np.cumsum([tokens for tokens, _ in receipt.pieces], dtype=np.int64)
        table = self._read_bytes(receipt.num_tokens * dtype.itemsize, self._docs_bytes)
        if xxhash.xxh3_64_intdigest(table) != receipt.docs_hash:
            raise damaged_part(self.path, "document table")
        self.docs: Docs = np.frombuffer(table, dtype=PART_DOCS_DTYPE)

    @property
    def _docs_bytes(self) -> int:
        return self.receipt.num_documents * PART_DOCS_DTYPE.itemsize

    def tokens(self, start: int, stop: int) -> Iterator[Ids]:
        """Yield the ids of [start, stop) in verified pieces."""
        piece = int(np.searchsorted(self._stops, start, side="right"))
        while start < stop:
            first, ids = self._piece(piece)
            yield ids[start - first : stop - first]
            start = first + len(ids)
            piece += 1

    def _piece(self, index: int) -> tuple[int, Ids]:
        """Return a piece and the number of its first token; the one read last is kept."""
        last_index, first, ids = self._last_piece
        if last_index != index:
            num_tokens, expected = self.receipt.pieces[index]
            first = int(self._stops[index]) - num_tokens
            data = self._read_bytes(first * self.dtype.itemsize, num_tokens * self.dtype.itemsize)
            if xxhash.xxh3_64_intdigest(data) != expected:
                raise damaged_part(self.path, f"tokens {first:,} to {first + num_tokens:,}")
            ids = np.frombuffer(data, dtype=self.dtype)
            self._last_piece = index, first, ids
        return first, ids

    def check(self) -> None:
        """Read and verify everything."""
        for _ in self.tokens(0, self.receipt.num_tokens):
            pass

    def _read_bytes(self, start: int, num_bytes: int) -> bytes:
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(start)
                data = file.read(num_bytes)
        except FileNotFoundError:
            raise damaged_part(self.path, "file, which is missing") from None
        if len(data) != num_bytes:
            raise damaged_part(self.path, f"length: {len(data)} of {num_bytes} bytes at {start}")
        return data


def lengths(docs: Docs) -> NDArray[np.uint64]:
    """Return the number of tokens of each document of a part."""
    return np.diff(docs["end"], prepend=np.uint64(0))


def count_documents(
    docs: Docs, num_tokens: NDArray[np.uint64], *, threshold: int
) -> list[SourceCount]:
    """Count documents, tokens and bytes for each source file and split."""
    counts: list[SourceCount] = []
    val = in_val(docs["content"], threshold) if threshold else np.zeros(len(docs), dtype=np.bool_)
    for split, mask in (("train", ~val), ("val", val)):
        if not mask.any():
            continue
        sources, inverse = np.unique(docs["source"][mask], return_inverse=True)
        columns = (num_tokens[mask], docs["num_bytes"][mask])
        tokens, num_bytes = (np.bincount(inverse, weights=column) for column in columns)
        documents = np.bincount(inverse)
        counts.extend(
            SourceCount(int(s), split, int(d), int(t), int(b))
            for s, d, t, b in zip(sources, documents, tokens, num_bytes, strict=True)
        )
    return counts


def read_receipt(path: Path) -> Receipt:
    """Read a receipt; one that was cut short by a power loss is `DamageError`."""
    try:
        return _RECEIPTS.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise DamageError(f"{path}: not a whole receipt: {error}") from error


def read_rejects(folder: Path, receipt: Receipt) -> Iterator[bytes]:
    """Yield the reject lines of a unit in pieces; damage shows at the end."""
    path, check = folder / receipt.rejects_name, xxhash.xxh3_64()
    try:
        with path.open("rb") as lines:
            while piece := lines.read(_COPY_BYTES):
                check.update(piece)
                yield piece
    except FileNotFoundError:
        raise damaged_part(path, "list of rejects, which is missing") from None
    if check.intdigest() != receipt.rejects_hash:
        raise damaged_part(path, "list of rejects")


def write_new(path: Path, data: bytes) -> bool:
    """Publish a small file create-only; return False if the name was taken."""
    partial = partial_path(path)
    file = OutputFile(partial)
    try:
        file.write(data)
        file.finish(sync=False)
        return publish_new(partial, path)
    finally:
        file.close()
        partial.unlink(missing_ok=True)


def damaged_part(path: Path, what: str) -> DamageError:
    """Build the error for a part that is not what its receipt says."""
    return DamageError(
        f"{path}: damaged {what}",
        hint="run the same command again: it checks the parts and makes this one anew",
    )


def _reject_line(reject: Reject, path: str) -> bytes:
    return msgspec.json.encode({"source": path, **msgspec.to_builtins(reject)}) + b"\n"
