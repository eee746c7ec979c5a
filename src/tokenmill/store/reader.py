"""Open a finished store and read from it: tokens by position, documents by number."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import ConfigError, DamageError
from tokenmill.remote import is_forked
from tokenmill.store.cached_file import cached_table
from tokenmill.store.documents import DocumentTable, docs_file
from tokenmill.store.format import METADATA_NAME, REJECTS_NAME
from tokenmill.store.metadata import ConsolidatedEntry, Metadata, read_metadata
from tokenmill.store.place import Place, find_place, is_remote_place, remote_sizes
from tokenmill.store.remote_cache import CacheSettings, RemoteCache, open_cache
from tokenmill.store.shard import Shard, blocks_file
from tokenmill.store.stored_object import file_of_store
from tokenmill.store.summary import store_html, store_line, store_text
from tokenmill.store.tokens_file import IdsFile, consolidated_files, ids_file

if TYPE_CHECKING:
    from tokenmill.tokenizer import Tokenizer

Verify = Literal["blocks", "size", "off"]


def open_store(
    path: str | Path, *, verify: Verify = "blocks", cache: CacheSettings | None = None
) -> Store:
    """Open the store in folder `path`: read its metadata and compare the sizes of its files.

    `verify` says how much a read proves: "blocks" (each 64 KiB by its checksum and each document
    table by its SHA-256, once a process), "size" (sizes and headers), or "off" (headers alone).

    A store at `s3://bucket/prefix` is read through a cache on this machine, and compared with one
    listing. `cache` says where that is; without it, the variables TOKENMILL_CACHE_* do.
    """
    if verify not in get_args(Verify):
        raise ConfigError(f"verify is {verify!r}, expected one of {', '.join(get_args(Verify))}")
    place = find_place(path)
    remote_cache = open_cache(cache) if is_remote_place(place) else None
    store = Store(place, read_metadata(place), verify=verify, cache=remote_cache)
    if verify != "off" and not (remote_cache and is_forked()):
        sizes = remote_sizes(place)  # a forked process can read, not list: there, as it reads
        for file in store_files(place, store.metadata):
            file.check_size(sizes)
    return store


def store_files(place: Place, metadata: Metadata) -> list[IdsFile]:
    """Return every file that the metadata lists, `metadata.json` itself excepted."""
    root = str(place)
    tokenizer = metadata.tokenizer
    files: list[IdsFile] = [file_of_store(root, tokenizer.file, num_bytes=tokenizer.bytes)]
    if metadata.rejects is not None:
        files.append(file_of_store(root, REJECTS_NAME, num_bytes=metadata.rejects.bytes))
    for name, split in metadata.splits.items():
        files += consolidated_files(root, name, metadata=metadata)
        for index, entry in enumerate(split.shards):
            if not split.shards_deleted:
                files.append(ids_file(root, name, index=index, metadata=metadata))
            files.append(docs_file(root, name, index=index, entry=entry))
            files.append(blocks_file(root, name, index=index, entry=entry))
    return files


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a split: its ids (BOS and EOS included) and where its text came from."""

    index: int
    start: int
    """Position of its first token in the split."""
    ids: NDArray[Any]
    source: str
    """Path of the input file."""
    position: int
    """Byte offset or row in the input file."""


class Split:
    """The tokens and documents of one split, numbered from zero across its shards.

    Threads may share it; forked processes too. A pickled split opens its store again by path, and
    refuses one that has been replaced by another.
    """

    def __init__(
        self,
        place: Place,
        name: str,
        *,
        metadata: Metadata,
        verify: Verify,
        cache: RemoteCache | None = None,
    ) -> None:
        entry = metadata.splits[name]
        self.name = name
        self.num_tokens = entry.num_tokens
        self.num_documents = entry.num_documents
        self.num_bytes = entry.num_bytes
        self.num_shards = len(entry.shards)
        self.dtype = metadata.token_dtype
        self._place = place
        self._cache = cache
        self._metadata = metadata
        self._verify: Verify = verify
        self._shards: dict[int, Shard] = {}
        self._tables: dict[int, DocumentTable] = {}
        counts = (shard.num_documents for shard in entry.shards)
        self._first_documents = list(itertools.accumulate(counts, initial=0))

    @property
    def consolidated(self) -> ConsolidatedEntry | None:
        """What is known of the split's tokens file and sample ids; None if it has none."""
        return self._metadata.splits[self.name].consolidated or None

    def __len__(self) -> int:
        return self.num_tokens

    def __repr__(self) -> str:
        return (
            f"Split({self.name!r}: {self.num_tokens:,} tokens in {self.num_shards:,} shards, "
            f"{self.num_documents:,} documents)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        opened = self._place, self._verify, self._metadata.digest, self._cache
        return _reopen_split, (*opened, self.name)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the ids of the tokens from `start` to `stop` as a new array, across shards."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start} to {stop} are outside [0, {self.num_tokens}]")
        ids = np.empty(stop - start, dtype=self.dtype)
        self._fill(ids.data.cast("B"), start)
        return ids

    def read_into(self, out: NDArray[Any], start: int) -> None:
        """Fill `out`, a contiguous array of the split's dtype, with the ids from `start` on."""
        if out.dtype != self.dtype or not out.flags.c_contiguous:
            raise TypeError(f"out is {out.dtype}, expected a contiguous array of {self.dtype}")
        if not 0 <= start <= start + out.size <= self.num_tokens:
            raise IndexError(
                f"tokens {start} to {start + out.size} are outside [0, {self.num_tokens}]"
            )
        self._fill(out.data.cast("B"), start)

    def read_windows(self, out: NDArray[Any], starts: NDArray[np.int64]) -> None:
        """Fill row `k` of `out`, a contiguous (B, length) array, with the ids from `starts[k]` on.

        The same as `read_into` for each row, in two thirds of the time.
        """
        num_rows, length = out.shape
        if out.dtype != self.dtype or not out.flags.c_contiguous or num_rows != len(starts):
            raise TypeError(
                f"out is {out.dtype} {out.shape}, "
                f"expected {len(starts)} contiguous rows of {self.dtype}"
            )
        if not out.size:
            return
        if starts.min() < 0 or starts.max() + length > self.num_tokens:
            raise IndexError(f"windows of {length} tokens reach out of [0, {self.num_tokens}]")
        view, shards = out.data.cast("B"), self._shards
        shard_tokens, num_bytes, done = self._metadata.shard_tokens, length * out.itemsize, 0
        for start in starts.tolist():
            shard, first = divmod(start, shard_tokens)
            row = view[done : done + num_bytes]
            if shard in shards and first + length <= shard_tokens:
                shards[shard].read_into(row, first)
            else:
                self._fill(row, start)
            done += num_bytes

    def read_runs(self, out: NDArray[Any], runs: Iterable[tuple[int, int, int]]) -> None:
        """Fill places of `out`, a contiguous array: each run is a place, a start and a length.

        The same as `read_into` for each run of tokens, with less work for each.
        """
        if out.dtype != self.dtype or not out.flags.c_contiguous or out.ndim != 1:
            raise TypeError(f"out is {out.dtype} {out.shape}, expected one of {self.dtype}")
        view, size = out.data.cast("B") if out.size else memoryview(b""), out.itemsize
        for place, start, length in runs:
            if not (0 <= place <= place + length <= out.size and start >= 0):
                raise IndexError(f"places {place} to {place + length} are outside the array")
            if start + length > self.num_tokens:
                raise IndexError(f"{length} tokens from {start} on are not in the split")
            self._fill(view[place * size : (place + length) * size], start)

    def document(self, index: int) -> Document:
        """Return document `index` of the split with its ids and its provenance."""
        start, row = self._start(index), self._row(index)
        return Document(
            index=index,
            start=start,
            ids=self.read(start, int(row["end"])),
            source=self._metadata.sources[int(row["source"])].path,
            position=int(row["position"]),
        )

    @property
    def digest(self) -> str:
        """The name of the content of the store that it is part of."""
        return self._metadata.digest

    def document_origin(self, index: int) -> tuple[str, int]:
        """Return the input file of document `index` and its position there, without its ids."""
        row = self._row(index)
        return self._metadata.sources[int(row["source"])].path, int(row["position"])

    def document_span(self, index: int) -> tuple[int, int]:
        """Return the first token of document `index` and the one after its last."""
        return self._start(index), int(self._row(index)["end"])

    def document_at(self, token: int) -> int:
        """Return the number of the document that token `token` belongs to."""
        if not 0 <= token < self.num_tokens:
            raise IndexError(f"token {token} is outside [0, {self.num_tokens})")
        shard = token // self._metadata.shard_tokens
        return self._first_documents[shard] + self.table(shard).find(token, token)[0]

    def document_ends(self, start: int, stop: int) -> NDArray[np.uint64]:
        """Return the positions in (start, stop] at which documents end, in order.

        For a window of the tokens `start` to `stop`: the k-th end is that of document
        `document_at(start) + k`. A document without tokens repeats the end before it.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start} to {stop} are outside [0, {self.num_tokens}]")
        if start == stop:
            return np.empty(0, dtype=np.uint64)
        shard_tokens = self._metadata.shard_tokens
        shards = range(start // shard_tokens, (stop - 1) // shard_tokens + 1)
        parts = [self.table(shard).find(start, stop)[1] for shard in shards]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def table(self, index: int) -> DocumentTable:
        """Return the document table of shard `index`; nothing is read before it is asked."""
        table = self._tables.get(index)
        if table is None:
            entry = self._metadata.splits[self.name].shards[index]
            start = index * self._metadata.shard_tokens
            is_proved = self._verify == "blocks"
            file = docs_file(str(self._place), self.name, index=index, entry=entry)
            table = self._tables[index] = DocumentTable(
                cached_table(file, entry.docs.sha256, cache=self._cache, is_proved=is_proved),
                entry.num_documents,
                tokens=range(start, start + entry.num_tokens),
                is_last=index == self.num_shards - 1,
                num_sources=len(self._metadata.sources),
                sha256=entry.docs.sha256 if is_proved else None,
            )
        return table

    def _fill(self, out: memoryview, start: int) -> None:
        shard_tokens, size, done = self._metadata.shard_tokens, self.dtype.itemsize, 0
        while done < len(out):
            shard, first = divmod(start, shard_tokens)
            piece = out[done : done + (shard_tokens - first) * size]
            self._shard(shard).read_into(piece, first)
            done += len(piece)
            start += len(piece) // size

    def _start(self, index: int) -> int:
        """Return the first token of document `index`: the end of the one before it."""
        return int(self._row(index - 1)["end"]) if index else 0

    def _row(self, index: int) -> Any:
        """Return the row of document `index` in the table of the shard in which it ends."""
        if not 0 <= index < self.num_documents:
            raise IndexError(f"document {index} is outside [0, {self.num_documents})")
        shard = bisect_right(self._first_documents, index) - 1
        row = index - self._first_documents[shard]
        return self.table(shard).rows(row, row + 1)[0]

    def _shard(self, index: int) -> Shard:
        shard = self._shards.get(index)
        if shard is None:
            shard = self._shards[index] = Shard(
                str(self._place),
                self.name,
                index=index,
                metadata=self._metadata,
                check_blocks=self._verify == "blocks",
                cache=self._cache,
            )
        return shard


class Store:
    """A finished store: a folder of token ids that can prove what it holds.

    `num_tokens` and `num_documents` count all splits; `splits["train"]` is one of them. `path` is
    a `Path`, or the URL of a remote store, which is read through `cache`.
    """

    def __init__(
        self,
        path: Place,
        metadata: Metadata,
        *,
        verify: Verify,
        cache: RemoteCache | None = None,
    ) -> None:
        self.path = path
        self.cache = cache
        self.metadata = metadata
        self.verify: Verify = verify
        self.splits: Mapping[str, Split] = MappingProxyType(
            {
                name: Split(path, name, metadata=metadata, verify=verify, cache=cache)
                for name in metadata.splits
            }
        )

    @property
    def num_tokens(self) -> int:
        """Tokens in all splits."""
        return self.metadata.num_tokens

    @property
    def num_documents(self) -> int:
        """Documents in all splits."""
        return self.metadata.num_documents

    @property
    def digest(self) -> str:
        """The name of the content: equal for equal content, wherever and however it was made."""
        return self.metadata.digest

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the ids."""
        return self.metadata.token_dtype

    def split(self, name: str) -> Split:
        """Return a split by name."""
        try:
            return self.splits[name]
        except KeyError:
            known = ", ".join(self.splits) or "none"
            raise ConfigError(f"{self.path}: no split {name!r}; the store has {known}") from None

    def read(self, start: int, stop: int, *, split: str = "train") -> NDArray[Any]:
        """Return the ids of the tokens from `start` to `stop` of a split as a new array."""
        return self.split(split).read(start, stop)

    def document(self, index: int, split: str = "train") -> Document:
        """Return one document of a split with its ids and its provenance."""
        return self.split(split).document(index)

    def tokenizer_definition(self) -> tuple[str, bytes]:
        """Return the name and the bytes of the tokenizer file, after comparing its hash."""
        entry = self.metadata.tokenizer
        file = file_of_store(str(self.path), entry.file, num_bytes=entry.bytes)
        copy = cached_table(file, entry.sha256, cache=self.cache, is_proved=True)
        return entry.file, copy.read_all(entry.sha256)

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer that made the ids."""
        # Here, so that reading ids loads no tokenizer.
        from tokenmill.tokenizer import SpecialIds, load_definition

        name, data = self.tokenizer_definition()
        entry = self.metadata.tokenizer
        special_ids = SpecialIds(bos=entry.bos_id, eos=entry.eos_id, pad=entry.pad_id)
        tokenizer = load_definition(data, name, special_ids=special_ids)
        expected = entry.fingerprint
        if tokenizer.fingerprint != expected:
            raise DamageError(
                f"{self.path}/{name}: its fingerprint is {tokenizer.fingerprint[:19]}, "
                f"the metadata says {expected[:19]}",
                hint="read the store with the version of tokenmill that wrote it",
            )
        return tokenizer

    def describe(self) -> str:
        """Return what the store holds in a few lines of text."""
        return store_text(self.path, self.metadata)

    def __repr__(self) -> str:
        return store_line(self.path, self.metadata)

    def _repr_html_(self) -> str:
        return store_html(self.path, self.metadata)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.path, self.verify, self.digest, self.cache)


def _reopen(path: Place, verify: Verify, digest: str, cache: RemoteCache | None) -> Store:
    """Open a store in another process; it must still be the same one."""
    # The first process compared the sizes; each file is compared again when it is opened.
    metadata = read_metadata(path)
    if metadata.digest != digest:
        raise DamageError(
            f"{path}/{METADATA_NAME}: replaced by a store with other content since it was opened",
            hint="open the store again, and let no run write to it meanwhile",
        )
    return Store(path, metadata, verify=verify, cache=cache)


def _reopen_split(
    path: Place, verify: Verify, digest: str, cache: RemoteCache | None, name: str
) -> Split:
    return _reopen(path, verify, digest, cache).splits[name]
