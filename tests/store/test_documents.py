from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tokenmill.errors import DamageError
from tokenmill.store import Metadata, hash_file, open_store, write_metadata
from tokenmill.store import format as layout

BuildStore = Callable[..., Metadata]


def test_look_ups_in_a_table_of_many_groups_are_exact(tmp_path: Path, build_store: BuildStore):
    lengths = np.random.default_rng(5).integers(0, 3, size=3_000).tolist()
    build_store(tmp_path, {"train": [[1] * n for n in lengths]}, shard_tokens=1_000)
    split = open_store(tmp_path).splits["train"]
    ends = np.cumsum(lengths)
    for token in range(0, split.num_tokens, 7):
        assert split.document_at(token) == np.searchsorted(ends, token, side="right")
    for start in range(0, split.num_tokens, 331):
        for stop in range(start, split.num_tokens, 517):
            expected = ends[(ends > start) & (ends <= stop)]
            assert split.document_ends(start, stop).tolist() == expected.tolist()
    for index in range(0, 3_000, 13):
        assert split.document_span(index) == (ends[index] - lengths[index], ends[index])


def test_tables_of_a_store_with_wrong_entries_are_refused(tmp_path: Path, build_store: BuildStore):
    """Someone who can compute hashes can write such tables; they must not lead out of bounds."""
    for ends, match in [((2, 9), "out of range"), ((2, 4), "ends at 4, not at 5")]:
        metadata = build_store(tmp_path, {"train": [[1, 2], [3, 4, 5]]}, shard_tokens=5)
        rewrite_docs(tmp_path, metadata, ends=ends, source=1)
        with pytest.raises(DamageError, match=match):
            open_store(tmp_path).document(0)
    metadata = build_store(tmp_path, {"train": [[1, 2], [3, 4, 5]]}, shard_tokens=5)
    rewrite_docs(tmp_path, metadata, ends=(5, 2), source=1)
    with pytest.raises(DamageError, match="out of order"):
        open_store(tmp_path).document(0)
    metadata = build_store(tmp_path, {"train": [[1, 2], [3, 4, 5]]}, shard_tokens=5)
    rewrite_docs(tmp_path, metadata, ends=(2, 5), source=2)
    with pytest.raises(DamageError, match="not in the metadata"):
        open_store(tmp_path).document(0)


@pytest.mark.parametrize("end", [0, 3])
def test_a_table_with_documents_of_the_shard_before_is_refused(
    tmp_path: Path, build_store: BuildStore, end: int
):
    metadata = build_store(tmp_path, {"train": [[1, 2, 3], [4], [5, 6]]}, shard_tokens=3)
    rewrite_docs(tmp_path, metadata, ends=(end, 6), source=1)
    with pytest.raises(DamageError, match="out of range"):
        open_store(tmp_path).document(1)


def rewrite_docs(folder: Path, metadata: Metadata, *, ends: tuple[int, ...], source: int) -> None:
    """Replace the table of the last shard and bring the metadata in line with it."""
    *others, last = metadata.splits["train"].shards
    path = layout.docs_path(folder, "train", index=len(others))
    table = np.load(path)
    table["end"], table["source"] = ends, source
    np.save(path, table)
    shards = (*others, msgspec.structs.replace(last, docs=hash_file(path)))
    split = msgspec.structs.replace(metadata.splits["train"], shards=shards)
    write_metadata(folder, msgspec.structs.replace(metadata, splits={"train": split}))
