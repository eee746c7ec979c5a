from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from fake_sources import fake_plan, source

from tokenmill.dataset.packing import Packing
from tokenmill.dataset.plan import Plan
from tokenmill.dataset.plan_settings import Source

if TYPE_CHECKING:
    from conftest import BuildStore


@pytest.mark.parametrize("seq_len", [1, 2, 5, 9, 14, 25])
def test_rows_joined_after_a_change_of_length_are_numbered_like_any_row(seq_len: int):
    plan = fake_plan(sources=[source(400, "a")], seq_len=6, batch_size=5).amend(3, seq_len=seq_len)
    num_joined = 0
    for step in range(3, 8):
        batch = plan.batch(step)
        for place in np.flatnonzero(plan.indices(step).are_rest):
            num_joined += 1
            tokens, labels = batch.token_ids[place], batch.labels[place]
            documents, positions = batch.document_ids[place], batch.position_ids[place]
            assert (labels == tokens + 1).all()
            begins = np.append(True, np.diff(documents) > 0)
            assert documents.tolist() == (np.cumsum(begins) - 1).tolist()
            starts = np.maximum.accumulate(np.where(begins, np.arange(seq_len), 0))
            assert positions.tolist() == (np.arange(seq_len) - starts).tolist()
            apart = np.diff(tokens, prepend=tokens[0] - 1) != 1
            assert begins[apart].all()  # tokens that were not neighbours are no document
    assert num_joined


@pytest.mark.parametrize("packing", ["concat", "best-fit", "pad", "sliding"])
def test_every_packing_of_real_stores_survives_a_change_of_length(
    packing: Packing, build_store: BuildStore, tmp_path: Path
):
    """Inputs of an epoch are the same whether or not the sequence length changes in it."""
    lengths = np.random.default_rng(3).integers(1, 9, 40).tolist()
    ends = np.cumsum(lengths).tolist()
    documents = [list(range(2 + e - n, 2 + e)) for e, n in zip(ends, lengths, strict=True)]
    build_store(tmp_path / "a", documents[:25], num_ids=1000, eos_id=None)
    build_store(tmp_path / "b", documents[25:], num_ids=1000, eos_id=None)
    plan = Plan(
        sources=(Source(path=str(tmp_path / "a")), Source(path=str(tmp_path / "b"))),
        seq_len=9,
        batch_size=3,
        packing=packing,
    )
    changed = plan.amend(2, seq_len=12).amend(4, seq_len=10)

    def inputs(chosen: Plan) -> list[tuple[int, int]]:
        seen: list[tuple[int, int]] = []
        for step in range(60):
            batch, found = chosen.batch(step), chosen.indices(step)
            padded = np.zeros(batch.token_ids.shape, dtype=np.bool_)
            real = ~padded if batch.attention_mask is None else batch.attention_mask
            for row, mask in zip(batch.document_ids, real, strict=True):
                last = int(np.flatnonzero(mask).max(initial=-1)) + 1
                assert (row[last:] == -1).all()
                assert (np.diff(row[:last]) >= 0).all()  # in order, as block masks rely on
            for place in np.flatnonzero(found.epochs == 0):
                ids = batch.token_ids[place][real[place]].tolist()
                seen += [(int(found.sources[place]), token) for token in ids]
        return sorted(seen)

    dropped = len(inputs(plan)) - len(inputs(changed))
    if packing == "sliding":
        assert dropped >= 0
        return
    assert len(set(inputs(changed))) == len(inputs(changed))
    assert set(inputs(changed)) <= set(inputs(plan))
    assert 0 <= dropped <= 2 * (12 + 10)
