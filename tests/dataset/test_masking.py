from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.dataset.batch import IGNORED, PADDING, Batch
from tokenmill.dataset.loader import split_batch
from tokenmill.dataset.masking import augmentation, dynamic_masking
from tokenmill.errors import ConfigError

MASK, NUM_IDS = 4, 1000
SPECIAL = (1, 2, 3, MASK)


def make_batch(num_rows: int = 8, seq_len: int = 101) -> Batch:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, NUM_IDS, size=(num_rows, seq_len))
    ids[:, ::10] = 1
    documents = np.zeros((num_rows, seq_len), dtype=np.int32)
    documents[:, -5:] = PADDING
    return Batch(token_ids=ids, labels=ids + 1, document_ids=documents, position_ids=documents)


mask = partial(dynamic_masking, seed=7, mask_id=MASK, num_ids=NUM_IDS, special_ids=SPECIAL)


def test_specials_and_padding_are_never_masked():
    batch = make_batch()
    masked = mask(batch, step=3, probability=1.0)
    free = ~np.isin(batch.token_ids, SPECIAL) & (batch.document_ids != PADDING)
    assert ((masked.labels != IGNORED) == free).all()
    assert (masked.token_ids[~free] == batch.token_ids[~free]).all()
    assert (masked.labels[free] == batch.token_ids[free]).all()


def test_the_parts_are_those_of_bert():
    batch = make_batch(400, 512)
    masked = mask(batch, step=1)
    free = ~np.isin(batch.token_ids, SPECIAL) & (batch.document_ids != PADDING)
    chosen = masked.labels != IGNORED
    assert abs(chosen.sum() / free.sum() - 0.15) < 0.005
    inputs, labels = masked.token_ids[chosen], masked.labels[chosen]
    assert abs((inputs == MASK).mean() - 0.8) < 0.015
    assert abs((inputs == labels).mean() - 0.1) < 0.01
    others = inputs[(inputs != MASK) & (inputs != labels)]
    assert others.min() < 20
    assert others.max() > NUM_IDS - 20


@given(
    seed=st.integers(0, 2**64 - 1), step=st.integers(0, 2**40), parts=st.sampled_from([1, 2, 4, 8])
)
@settings(max_examples=60, deadline=None)
def test_ranks_mask_what_one_process_would(seed: int, step: int, parts: int):
    batch = make_batch()
    whole = mask(batch, seed=seed, step=step)
    pieces = [
        mask(part, seed=seed, step=step, first_row=number * (8 // parts))
        for number, part in enumerate(split_batch(batch, parts))
    ]
    for name in ("token_ids", "labels"):
        assert (np.concatenate([piece[name] for piece in pieces]) == whole[name]).all()


def test_each_seed_and_step_masks_anew_and_leaves_the_batch_alone():
    batch = make_batch()
    before = batch.token_ids.copy()
    labels = [mask(batch, seed=s, step=t).labels for s, t in ((1, 1), (1, 2), (2, 1), (1, 1))]
    assert (labels[0] != labels[1]).any()
    assert (labels[0] != labels[2]).any()
    assert (labels[0] == labels[3]).all()
    assert (batch.token_ids == before).all()


@pytest.mark.parametrize("wrong", [{"probability": 1.5}, {"mask_id": NUM_IDS}, {"mask_id": -1}])
def test_settings_without_meaning_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ConfigError):
        mask(make_batch(), step=0, **wrong)


def test_augmentations_do_the_same_for_any_number_of_ranks():
    def drop_tokens(row: Batch, rng: np.random.Generator) -> Batch:
        row.token_ids[rng.random(len(row.token_ids)) < 0.2] = 0
        return row

    transform = augmentation(drop_tokens, seed=5)
    batch = make_batch()
    before = batch.token_ids.copy()
    whole = transform(batch, step=9, first_row=0)
    halves = [
        transform(part, step=9, first_row=4 * number)
        for number, part in enumerate(split_batch(batch, 2))
    ]
    assert (np.concatenate([half.token_ids for half in halves]) == whole.token_ids).all()
    assert (whole.token_ids != before).any()
    assert (batch.token_ids == before).all()
    assert (transform(batch, step=10, first_row=0).token_ids != whole.token_ids).any()
