from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenmill.store import (
    DOCS_DTYPE,
    Counts,
    Metadata,
    ShardEntry,
    ShardWriter,
    SourceEntry,
    SplitEntry,
    TokenizerEntry,
    choose_dtype,
    hash_file,
    num_shards,
    write_metadata,
    write_tokenizer,
)

BuildStore = Callable[..., Metadata]


@pytest.fixture
def without_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing wait for the disk, for tests that tell nothing of a power loss."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="session")
def build_store() -> BuildStore:
    """Give tests a function that makes a store from documents of ids, by the shortest way."""
    return make_store


def make_store(
    folder: Path,
    splits: dict[str, Sequence[Sequence[int]]],
    *,
    shard_tokens: int = 10,
    num_ids: int = 100,
    rejects: bytes | None = None,
    **changes: Any,
) -> Metadata:
    folder.mkdir(parents=True, exist_ok=True)
    definition = write_tokenizer(folder, "tokenizer.json", data=b'{"model": "test"}')
    if rejects is not None:
        (folder / "rejects.jsonl").write_bytes(rejects)
    entries: dict[str, SplitEntry] = {}
    number = 0
    for name, documents in splits.items():
        shards = write_shards(
            folder,
            name,
            documents=documents,
            shard_tokens=shard_tokens,
            num_ids=num_ids,
            number=number,
        )
        number += len(documents)
        entries[name] = SplitEntry(
            num_tokens=sum(map(len, documents)),
            num_documents=len(documents),
            num_bytes=3 * sum(map(len, documents)),
            shards=shards,
        )
    all_documents = [document for documents in splits.values() for document in documents]
    values: dict[str, Any] = {
        "created": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "versions": {"tokenmill": "0.1.0"},
        "dtype": choose_dtype(num_ids).name,
        "bos_id": None,
        "eos_id": None,
        "shard_tokens": shard_tokens,
        "tokenizer": TokenizerEntry(
            name="test",
            fingerprint=f"sha256:{'5' * 64}",
            num_ids=num_ids,
            file="tokenizer.json",
            bytes=definition.bytes,
            sha256=definition.sha256,
        ),
        "counts": Counts(rejected={} if rejects is None else {"bad-json": rejects.count(b"\n")}),
        "settings": {"sources": ["a.txt", "b.txt"]},
        "rejects": None if rejects is None else hash_file(folder / "rejects.jsonl"),
        "splits": entries,
        "sources": source_entries(all_documents),
    }
    return write_metadata(folder, Metadata(**(values | changes)))


def source_entries(documents: Sequence[Sequence[int]]) -> tuple[SourceEntry, ...]:
    """Two sources; the second has all but the first document."""
    numbers = [(documents[:1], "a.txt"), (documents[1:], "b.txt")]
    return tuple(
        SourceEntry(
            path=path,
            size=1000,
            format="text",
            num_documents=len(part),
            num_tokens=sum(map(len, part)),
        )
        for part, path in numbers
    )


def write_shards(
    folder: Path,
    split: str,
    *,
    documents: Sequence[Sequence[int]],
    shard_tokens: int,
    num_ids: int,
    number: int,
) -> tuple[ShardEntry, ...]:
    """Write the documents of a split, the first of which is document `number` of the input."""
    dtype = choose_dtype(num_ids)
    ids = np.array([token for document in documents for token in document], dtype=dtype)
    docs = np.zeros(len(documents), dtype=DOCS_DTYPE)
    docs["end"] = np.cumsum([len(document) for document in documents])
    docs["source"] = np.arange(number, number + len(documents)) > 0
    docs["position"] = 100 * np.arange(len(documents))
    entries: list[ShardEntry] = []
    for index in range(num_shards(len(ids), len(docs), shard_tokens=shard_tokens)):
        start, stop = index * shard_tokens, (index + 1) * shard_tokens
        part = ids[start:stop]
        inside = (docs["end"] > (start if index else -1)) & (docs["end"] <= stop)
        with ShardWriter(folder, split, index=index, dtype=dtype, num_tokens=len(part)) as writer:
            writer.write(part)
            entries.append(writer.finish(docs[inside], sync=False))
    return tuple(entries)
