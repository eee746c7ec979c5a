from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenmill.dataset.batch import IGNORED
from tokenmill.dataset.plan import Plan
from tokenmill.dataset.plan_settings import Source
from tokenmill.errors import ConfigError


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, build_store: Any) -> Path:
    folder = tmp_path_factory.mktemp("held-out") / "store"
    documents = [[*range(2 + i % 5, 9 + i % 7), 1] for i in range(40)]
    build_store(folder, documents)
    return folder


def plan_of(store: Path, hold_out: int, packing: Any = "concat") -> Plan:
    sources = (Source(path=str(store), hold_out=hold_out),)
    return Plan(sources=sources, seq_len=8, batch_size=4, packing=packing, seed=3)


@pytest.mark.parametrize("packing", ["concat", "best-fit"])
def test_rows_that_are_held_out_are_in_no_batch_and_all_others_are(store: Path, packing: str):
    whole = plan_of(store, 0, packing).rows(0, 8)
    plan = plan_of(store, 5, packing)
    steps = -(-(whole.num_rows - 5) // 4)
    found = np.concatenate([plan.indices(step).rows for step in range(steps)])
    epochs = np.concatenate([plan.indices(step).epochs for step in range(steps)])
    assert sorted(found[epochs == 0].tolist()) == list(range(whole.num_rows - 5))
    batch = plan.batch(0)
    assert np.array_equal(batch.token_ids, whole.read(plan.indices(0).rows).token_ids)


@pytest.mark.parametrize("packing", ["concat", "best-fit"])
def test_the_accounting_without_held_out_rows_adds_up(store: Path, packing: str):
    rows = plan_of(store, 5, packing).rows(0, 8)
    told = rows.accounting()
    assert told.num_used + told.num_dropped + told.num_truncated == told.num_tokens
    labels = rows.read(np.arange(rows.num_rows)).labels
    assert told.num_targets == np.count_nonzero(labels != IGNORED)
    assert told.num_targets + told.num_masked + told.num_padded == labels.size


def test_holding_rows_out_makes_another_plan(store: Path, tmp_path: Path):
    digests = {plan_of(store, number).digest for number in (0, 5, 6)}
    assert len(digests) == 3
    plan_of(store, 5).save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").digest == plan_of(store, 5).digest


def test_a_row_that_is_held_out_is_not_named_as_one_of_a_document(store: Path):
    rows = plan_of(store, 5).rows(0, 8)
    last = plan_of(store, 0).rows(0, 8).documents(rows.num_rows)[-1].document
    assert all(row < rows.num_rows for row in rows.rows_of(last))
    with pytest.raises(IndexError):
        rows.documents(rows.num_rows)


@pytest.mark.parametrize(("hold_out", "packing"), [(10_000, "concat"), (2, "pad"), (-1, "concat")])
def test_rows_that_cannot_be_held_out_are_refused(store: Path, hold_out: int, packing: str):
    with pytest.raises(ConfigError):
        plan_of(store, hold_out, packing).check()
