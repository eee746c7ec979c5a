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
from copy import copy
from uuid import uuid4

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from tokenmill.errors import DamageError, Interrupted
from tokenmill.folder import Draft, Folder
from tokenmill.pipeline.order import in_val
from tokenmill.sources import Reject
from tokenmill.store import RUN_FOLDER

PARTS_FOLDER = f"{RUN_FOLDER}/parts"
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
    rejects_bytes: int = 0
    """Length of the list of rejects."""
    rejects_hash: int
    seconds: float

    @property
    def num_rejected(self) -> int:
        """Count the rejected documents."""
        return sum(self.rejects.values())

    @property
    def name(self) -> str:
        """Name the file of the receipt itself."""
        return receipt_name(self.unit)

    @property
    def part_name(self) -> str:
        """Name the file with tokens and document table."""
        return f"{PARTS_FOLDER}/{self.unit:06d}.{self.attempt}.part"

    @property
    def rejects_name(self) -> str:
        """Name the file with the rejected documents; it exists if there are any."""
        return f"{PARTS_FOLDER}/{self.unit:06d}.{self.attempt}.rejects"

    def part_bytes(self, dtype: np.dtype) -> int:
        """Return how long the file with tokens and document table is."""
        docs_bytes = self.num_documents * PART_DOCS_DTYPE.itemsize
        return self.num_tokens * dtype.itemsize + docs_bytes


_RECEIPTS = msgspec.json.Decoder(Receipt)  # made once: first use by two threads is not safe


class PartWriter:
    """Writes one attempt at a unit; nothing counts until `publish`, and `discard` removes it."""

    def __init__(
        self, folder: Folder, unit: int, *, dtype: np.dtype, sort: bool, piece_tokens: int
    ) -> None:
        self._folder, self._unit, self._dtype, self._sort = folder, unit, dtype, sort
        self._piece_tokens = piece_tokens
        self._attempt = uuid4().hex[:12]
        self._own_name = f"{PARTS_FOLDER}/{unit:06d}.{self._attempt}"
        self._file = folder.create(f"{self._own_name}.part")
        self._pieces: list[tuple[int, int]] = []
        self._docs: list[Docs] = []
        self._runs: list[int] = []
        self._rejects: Counter[str] = Counter()
        self._rejects_by_source: Counter[int] = Counter()
        self._rejects_file: Draft | None = None
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
            self._rejects_file = self._folder.create(f"{self._own_name}.rejects")
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
            self._rejects_file.publish(sync=False)
        docs = np.concatenate(self._docs) if self._docs else np.empty(0, dtype=PART_DOCS_DTYPE)
        self._file.write(docs.view(np.uint8).data)
        self._file.publish(sync=False)
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
            rejects_bytes=0 if self._rejects_file is None else self._rejects_file.num_bytes,
            rejects_hash=self._rejects_hash.intdigest(),
            seconds=round(seconds, 3),
        )
        if self._folder.size(receipt.part_name) is None:
            where = self._folder.where(receipt.part_name)
            raise Interrupted(f"{where}: removed by a newer run, which does this unit")
        data = msgspec.json.encode(receipt)
        if self._folder.write_new(receipt.name, data):
            return receipt
        other = read_receipt(self._folder, self._unit)
        if self._folder.size(other.part_name) is None:  # left by a process that outlived its run
            self._folder.write(receipt.name, data, sync=False)
            return receipt
        self.discard()
        return other

    def discard(self) -> None:
        """Remove this attempt's files."""
        self._file.close()
        if self._rejects_file is not None:
            self._rejects_file.close()
        self._folder.remove(*(f"{self._own_name}.{suffix}" for suffix in ("part", "rejects")))

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


class PartTokens:
    """The tokens of a finished part, or a stretch of them, read with their checksums verified."""

    def __init__(self, folder: Folder, receipt: Receipt, *, dtype: np.dtype) -> None:
        self.dtype = dtype
        self._folder, self._name = folder, receipt.part_name
        self._reader = folder.reader(receipt.part_name)
        self._lengths = np.array([tokens for tokens, _ in receipt.pieces], dtype=np.int64)
        self._stops = np.cumsum(self._lengths)
        self._hashes = np.array([check for _, check in receipt.pieces], dtype=np.uint64)
        self._last_piece: tuple[int, int, Ids]
        self.forget()

    def narrowed(self, start: int, stop: int) -> PartTokens:
        """Return what reads [start, stop) alone, in any order, and takes little memory."""
        pieces, narrow = self._pieces(start, stop), copy(self)
        narrow._lengths = self._lengths[pieces].copy()
        narrow._stops = self._stops[pieces].copy()
        narrow._hashes = self._hashes[pieces].copy()
        narrow._reader = self._folder.reader(self._name)
        narrow.forget()
        narrow.expect(start, stop, keep=True)
        return narrow

    def forget(self) -> None:
        """Give back the memory of the piece that was read last."""
        self._last_piece = (-1, 0, np.empty(0, dtype=self.dtype))

    def expect(self, start: int, stop: int, *, keep: bool = False) -> None:
        """Tell that tokens of [start, stop) will be read next, in order; with `keep`, in any."""
        pieces = self._pieces(start, stop)
        if pieces.start < pieces.stop:
            first = int(self._stops[pieces.start] - self._lengths[pieces.start])
            last, size = int(self._stops[pieces.stop - 1]), self.dtype.itemsize
            self._reader.expect(first * size, last * size, keep=keep)

    def read(self, start: int, stop: int) -> Iterator[Ids]:
        """Yield the ids of [start, stop) in verified pieces."""
        piece = self._pieces(start, stop).start
        while start < stop:
            first, ids = self._piece(piece)
            yield ids[start - first : stop - first]
            start = first + len(ids)
            piece += 1

    def read_bytes(self, start: int, num_bytes: int) -> bytes:
        """Return bytes of the part; fewer than there should be are damage."""
        try:
            data = self._reader.read(start, num_bytes)
        except FileNotFoundError:
            raise damaged_part(self._folder, self._name, "file, which is missing") from None
        if len(data) != num_bytes:
            what = f"length: {len(data)} of {num_bytes} bytes at {start}"
            raise damaged_part(self._folder, self._name, what)
        return data

    def _pieces(self, start: int, stop: int) -> slice:
        """Return which pieces hold the tokens of [start, stop)."""
        first = int(np.searchsorted(self._stops, start, side="right"))
        after = int(np.searchsorted(self._stops, stop, side="left")) + 1
        return slice(first, max(min(after, len(self._stops)), first) if start < stop else first)

    def _piece(self, index: int) -> tuple[int, Ids]:
        """Return a piece and the number of its first token; the one read last is kept."""
        last_index, first, ids = self._last_piece
        if last_index != index:
            num_tokens = int(self._lengths[index])
            first = int(self._stops[index]) - num_tokens
            data = self.read_bytes(first * self.dtype.itemsize, num_tokens * self.dtype.itemsize)
            if xxhash.xxh3_64_intdigest(data) != int(self._hashes[index]):
                what = f"tokens {first:,} to {first + num_tokens:,}"
                raise damaged_part(self._folder, self._name, what)
            ids = np.frombuffer(data, dtype=self.dtype)
            self._last_piece = index, first, ids
        return first, ids


class Part:
    """A finished part: its document table, and its tokens."""

    def __init__(self, folder: Folder, receipt: Receipt, *, dtype: np.dtype) -> None:
        self.receipt = receipt
        self.tokens = PartTokens(folder, receipt, dtype=dtype)
        tokens_bytes = receipt.num_tokens * dtype.itemsize
        table = self.tokens.read_bytes(tokens_bytes, receipt.part_bytes(dtype) - tokens_bytes)
        if xxhash.xxh3_64_intdigest(table) != receipt.docs_hash:
            raise damaged_part(folder, receipt.part_name, "document table")
        self.docs: Docs = np.frombuffer(table, dtype=PART_DOCS_DTYPE)

    def check(self) -> None:
        """Read and verify everything."""
        for _ in self.tokens.read(0, self.receipt.num_tokens):
            pass


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


def receipt_name(unit: int) -> str:
    """Name the file of the receipt of a unit."""
    return f"{PARTS_FOLDER}/{unit:06d}.json"


def read_receipt(folder: Folder, unit: int) -> Receipt:
    """Read a receipt; one that was cut short by a power loss is `DamageError`."""
    name = receipt_name(unit)
    try:
        return _RECEIPTS.decode(folder.read(name))
    except msgspec.DecodeError as error:
        raise DamageError(f"{folder.where(name)}: not a whole receipt: {error}") from error


def read_rejects(folder: Folder, receipt: Receipt) -> Iterator[bytes]:
    """Yield the reject lines of a unit in pieces; damage shows at the end."""
    check = xxhash.xxh3_64()
    try:
        with folder.open(receipt.rejects_name) as lines:
            while piece := lines.read(_COPY_BYTES):
                check.update(piece)
                yield piece
    except FileNotFoundError:
        what = "list of rejects, which is missing"
        raise damaged_part(folder, receipt.rejects_name, what) from None
    if check.intdigest() != receipt.rejects_hash:
        raise damaged_part(folder, receipt.rejects_name, "list of rejects")


def damaged_part(folder: Folder, name: str, what: str) -> DamageError:
    """Build the error for a part that is not what its receipt says."""
    if folder.keeps_whole:  # a run that continues trusts what is there, so this must not be
        folder.remove(name)
    return DamageError(
        f"{folder.where(name)}: damaged {what}",
        hint="run the same command again: it checks the parts and makes this one anew",
    )


def _reject_line(reject: Reject, path: str) -> bytes:
    return msgspec.json.encode({"source": path, **msgspec.to_builtins(reject)}) + b"\n"
