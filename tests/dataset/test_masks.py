from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.dataset.batch import Batch
from tokenmill.dataset.masks import cu_seqlens, document_mask, max_seqlen


@st.composite
def document_rows(draw: st.DrawFn) -> np.ndarray:
    """Rows of document ids as packings make them: in order, padding last."""
    num_rows, seq_len = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    rows = []
    for _ in range(num_rows):
        steps = draw(st.lists(st.booleans(), min_size=seq_len, max_size=seq_len))
        row = np.cumsum([0, *steps[1:]])
        num_padded = draw(st.integers(0, seq_len))
        rows.append(np.where(np.arange(seq_len) < seq_len - num_padded, row, -1))
    return np.array(rows, dtype=np.int32)


@given(ids=document_rows())
def test_a_token_sees_its_own_document_up_to_itself(ids: np.ndarray):
    mask = document_mask(ids)
    assert mask.dtype == np.bool_
    for row, seen in zip(ids, mask, strict=True):
        for q in range(len(row)):
            assert seen[q].tolist() == [k <= q and row[k] == row[q] for k in range(len(row))]
            assert seen[q, q]  # so that no token is left without anything to attend to


@given(ids=document_rows())
def test_lengths_cut_the_rows_where_documents_begin(ids: np.ndarray):
    bounds = cu_seqlens(ids)
    assert bounds.dtype == np.int32
    assert {*range(0, ids.size + 1, ids.shape[1])} <= {*bounds.tolist()}
    assert (bounds[1:] > bounds[:-1]).all()
    pieces = np.split(ids.ravel(), bounds[1:-1])
    assert all(len(set(piece.tolist())) == 1 for piece in pieces)
    assert max(map(len, pieces)) == max_seqlen(ids)
    for place in bounds[1:-1].tolist():  # it is a new document, or a new row
        row, column = divmod(place, ids.shape[1])
        assert column == 0 or ids[row, column] != ids[row, column - 1]


def test_masks_are_computed_when_a_batch_is_asked_for_them():
    ids = np.array([[0, 0, 1], [0, 1, -1]], dtype=np.int32)
    batch = Batch(document_ids=ids)
    assert list(batch) == ["document_ids"]
    assert np.array_equal(batch.document_mask, document_mask(ids))
    assert batch.cu_seqlens.tolist() == [0, 2, 3, 4, 5, 6]
    assert batch.max_seqlen == 2
    assert batch.row(0).cu_seqlens.tolist() == [0, 2, 3]
    with pytest.raises(AttributeError, match="no 'weights'; it has document_ids"):
        batch.weights  # noqa: B018
