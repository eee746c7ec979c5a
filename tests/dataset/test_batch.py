from __future__ import annotations

import copy
import pickle

import numpy as np

from tokenmill.dataset.batch import Batch, concatenate


def make_batch(*rows: list[int], padded: bool = False) -> Batch:
    ids = np.array(rows, dtype=np.int64)
    batch = Batch(token_ids=ids, labels=ids + 1)
    if padded:
        batch.attention_mask = ids > 0
    return batch


def test_arrays_are_found_by_key_and_by_attribute():
    batch = make_batch([1, 2], [3, 4])
    assert batch["token_ids"] is batch.token_ids
    assert batch.attention_mask is None
    batch.weights = np.ones(2)
    assert list(batch) == ["token_ids", "labels", "weights"]
    assert "weights" in dir(batch)
    assert repr(batch) == (
        "Batch(token_ids: int64 (2, 2), labels: int64 (2, 2), weights: float64 (2,))"
    )


def test_copies_and_pickles_are_batches():
    batch = make_batch([1, 2])
    for other in (copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))):
        assert type(other) is Batch
        assert other.labels.tolist() == [[2, 3]]


def test_rows_are_views():
    batch = make_batch([1, 2], [3, 4])
    batch.row(1).token_ids[0] = 9
    assert batch.token_ids.tolist() == [[1, 2], [9, 4]]


def test_batches_are_joined_row_after_row():
    joined = concatenate([make_batch([1, 2]), make_batch([3, 0], padded=True)])
    assert joined.token_ids.tolist() == [[1, 2], [3, 0]]
    assert joined.attention_mask is not None
    assert joined.attention_mask.tolist() == [[True, True], [True, False]]
    assert concatenate([make_batch([1, 2])] * 2).attention_mask is None
