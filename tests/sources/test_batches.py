"""Batches: counted in UTF-8 bytes, never over their bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.sources.documents import (
    BATCH_BYTES,
    BATCH_DOCUMENTS,
    Batch,
    BatchBuilder,
    Reject,
    count_bytes,
    cut_batches,
)


@given(st.lists(st.text()))
def test_bytes_are_counted_as_utf8(texts: list[str]):
    assert count_bytes(texts) == sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize("size", [15, 16, 31, 32, 127, 128, 255, 256, 32767, 32768, 65535, 65536])
def test_bytes_are_counted_right_where_headers_change(size: int):
    for text in ("é" * size, "é" * size + "a", "x" + "語" * (size // 3)):
        assert count_bytes([text]) == len(text.encode())


def test_a_long_text_is_counted_in_slices():
    text = "😀é" * BATCH_BYTES
    assert count_bytes([text]) == 6 * BATCH_BYTES


def test_a_batch_with_too_many_documents_is_cut_evenly():
    texts = [str(number) for number in range(2 * BATCH_DOCUMENTS + 1)]
    rejects = [Reject(3, 9, "bad-json", "why")]
    whole = Batch(3, texts, np.arange(len(texts), dtype=np.uint64), 0, rejects, num_blank=4)
    parts = list(cut_batches(whole))
    assert [len(part.texts) for part in parts] == [5461, 5462, 5462]
    assert [text for part in parts for text in part.texts] == texts
    assert np.concatenate([part.positions for part in parts]).tolist() == list(range(len(texts)))
    assert [len(part.rejects) for part in parts] == [1, 0, 0]
    assert [part.num_blank for part in parts] == [4, 0, 0]
    assert all(part.num_bytes == count_bytes(part.texts) for part in parts)


def test_a_builder_keeps_batches_within_bounds():
    builder = BatchBuilder(0)
    sizes = [10, BATCH_BYTES - 10, 1, BATCH_BYTES + 1, 5, *[0] * (BATCH_DOCUMENTS + 7)]
    batches = []
    for position, size in enumerate(sizes):
        batches += builder.add("x" * size, position)
    batches += builder.flush()
    assert [len(text) for batch in batches for text in batch.texts] == sizes
    assert [batch.num_bytes for batch in batches] == [BATCH_BYTES, 1, BATCH_BYTES + 1, 5, 0]
    assert [len(batch.texts) for batch in batches] == [2, 1, 1, BATCH_DOCUMENTS, 8]
