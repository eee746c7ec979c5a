from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenmill.store import (
    DOCS_DTYPE,
    Metadata,
    ShardEntry,
    ShardWriter,
    SourceEntry,
    SplitEntry,
    TokenizerEntry,
    choose_dtype,
    num_shards,
    write_metadata,
    write_tokenizer,
)

Documents = Sequence[Sequence[int]]
BuildStore = Callable[..., Metadata]


@pytest.fixture(scope="session")
def build_store() -> BuildStore:
    """Give tests a function that makes a store from documents of ids, their EOS included."""
    return make_store


def make_store(
    folder: Path,
    splits: dict[str, Documents] | Documents,
    *,
    shard_tokens: int = 10,
    num_ids: int = 100,
    eos_id: int | None = 1,
    pad_id: int | None = None,
) -> Metadata:
    folder.mkdir(parents=True, exist_ok=True)
    definition = write_tokenizer(folder, "tokenizer.json", data=b'{"model": "test"}')
    if not isinstance(splits, dict):
        splits = {"train": splits}
    entries = {
        name: SplitEntry(
            num_tokens=sum(map(len, documents)),
            num_documents=len(documents),
            num_bytes=3 * sum(map(len, documents)),
            shards=write_shards(
                folder, name, documents, shard_tokens=shard_tokens, num_ids=num_ids
            ),
        )
        for name, documents in splits.items()
    }
    tokenizer = TokenizerEntry(
        name="test",
        fingerprint=f"sha256:{'5' * 64}",
        num_ids=num_ids,
        eos_id=eos_id,
        pad_id=pad_id,
        file="tokenizer.json",
        bytes=definition.bytes,
        sha256=definition.sha256,
    )
    source = SourceEntry(
        path="a.txt",
        size=1000,
        format="text",
        num_documents=sum(entry.num_documents for entry in entries.values()),
        num_tokens=sum(entry.num_tokens for entry in entries.values()),
    )
    metadata = Metadata(
        created=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        versions={"tokenmill": "0.1.0"},
        dtype=choose_dtype(num_ids).name,
        bos_id=None,
        eos_id=eos_id,
        shard_tokens=shard_tokens,
        tokenizer=tokenizer,
        splits=entries,
        sources=(source,),
    )
    return write_metadata(folder, metadata)


def write_shards(
    folder: Path, split: str, documents: Documents, *, shard_tokens: int, num_ids: int
) -> tuple[ShardEntry, ...]:
    dtype = choose_dtype(num_ids)
    ids = np.array([token for document in documents for token in document], dtype=dtype)
    docs: Any = np.zeros(len(documents), dtype=DOCS_DTYPE)
    docs["end"] = np.cumsum([len(document) for document in documents])
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
