from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenmill.dataset import best_fit, best_fit_block
from tokenmill.dataset.best_fit import BestFitRows
from tokenmill.dataset.token_source import StoreSource
from tokenmill.store import open_store

BuildStore = Callable[..., Any]


@pytest.fixture
def source(tmp_path: Path, build_store: BuildStore) -> StoreSource:
    lengths = np.random.default_rng(0).integers(0, 25, size=300).tolist()
    documents = [[*[2 + i % 90] * length, 1] for i, length in enumerate(lengths)]
    build_store(tmp_path, documents, shard_tokens=700)
    return StoreSource(open_store(tmp_path))


@pytest.mark.parametrize("block_documents", [1, 7, 64, 1000])
def test_blocks_cover_every_token_once(
    block_documents: int, source: StoreSource, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(best_fit, "BLOCK_DOCUMENTS", block_documents)
    monkeypatch.setattr(best_fit_block, "BLOCK_DOCUMENTS", block_documents)
    rows = BestFitRows(source, seq_len=16)
    spans = [span for i in range(rows.num_rows) for span in rows.documents(i)]
    tokens = np.concatenate([np.arange(span.start, span.stop) for span in spans])
    assert sorted(tokens.tolist()) == list(range(source.num_tokens))
    for document in range(source.num_documents):
        found = [i for i in rows.rows_of(document) if document_in(rows, i, document)]
        assert found == rows.rows_of(document).tolist()


def document_in(rows: BestFitRows, index: int, document: int) -> bool:
    return document in {span.document for span in rows.documents(index)}


def test_blocks_are_let_go_and_come_back_the_same(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(best_fit, "BLOCK_DOCUMENTS", 16)
    monkeypatch.setattr(best_fit_block, "BLOCK_DOCUMENTS", 16)
    rows = BestFitRows(source, seq_len=16)
    everything = rows.read(np.arange(rows.num_rows))
    assert len(rows._kept) == -(-300 // 16)
    monkeypatch.setattr(best_fit, "MAX_KEPT_BYTES", 500)
    few = BestFitRows(source, seq_len=16)
    order = np.random.default_rng(1).permutation(rows.num_rows)
    for i in order.tolist():
        assert np.array_equal(few.read(np.array([i])).labels[0], everything.labels[i])
        assert few._num_kept_bytes() <= 500 or len(few._kept) == 1


def test_the_packing_never_changes(source: StoreSource):
    # Runs are resumed with later versions and on other machines: this must stay for ever.
    rows = BestFitRows(source, seq_len=16)
    text = repr([[(s.document, s.start, s.stop) for s in rows.documents(i)] for i in range(50)])
    assert (rows.num_rows, hashlib.sha256(text.encode()).hexdigest()[:16]) == (
        256,
        "d0fce10a107c7580",
    )


def test_a_pickled_packing_is_not_counted_again(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
):
    rows = BestFitRows(source, seq_len=16)
    rows.read(np.array([3]))
    monkeypatch.delattr(best_fit, "count_block")
    other = pickle.loads(pickle.dumps(rows))
    assert other.num_rows == rows.num_rows
    assert np.array_equal(other.read(np.array([5])).token_ids, rows.read(np.array([5])).token_ids)


def test_little_is_padded(tmp_path: Path, build_store: BuildStore):
    lengths = np.random.default_rng(0).integers(1, 400, size=2000).tolist()
    build_store(tmp_path, [[3] * length for length in lengths], shard_tokens=100_000)
    account = BestFitRows(StoreSource(open_store(tmp_path)), seq_len=256).accounting()
    assert account.num_padded < 0.005 * account.num_tokens
    assert (account.num_dropped, account.num_truncated) == (0, 0)
