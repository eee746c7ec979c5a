from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fake_sources import DOCUMENT_TOKENS, fake_plan, plans, source
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.dataset.packing import Packing
from tokenmill.dataset.plan import Plan
from tokenmill.dataset.plan_settings import Source
from tokenmill.dataset.which import which_rows, which_steps
from tokenmill.errors import ConfigError

if TYPE_CHECKING:
    from conftest import BuildStore


@st.composite
def changed_plans(draw: st.DrawFn) -> Plan:
    """Plans with changes of all kinds, some of them of the sequence length."""
    plan = draw(plans(max_batch=5))
    step = 12
    for _ in range(draw(st.integers(0, 3))):
        step += draw(st.integers(0, 4))
        kind = draw(st.sampled_from(["seq_len", "batch_size", "skip"]))
        if kind == "skip":
            plan = plan.skip(step, step + draw(st.integers(1, 5)))
        elif kind == "seq_len":
            plan = plan.amend(step, seq_len=draw(st.integers(1, 12)))
        else:
            plan = plan.amend(step, batch_size=draw(st.integers(1, 5)))
    return plan


@settings(max_examples=100, deadline=None)
@given(changed_plans(), st.integers(0, 30))
def test_the_documents_of_a_row_are_its_tokens(plan: Plan, step: int):
    batch = plan.batch(step)
    for facts in which_rows(plan, step):
        row = batch.token_ids[facts.place].tolist()
        told: list[int] = []
        for part in facts.documents:
            assert part.offset == len(told)
            assert part.document == part.start // DOCUMENT_TOKENS
            told += range(part.start, part.stop)
        assert told == row


@settings(max_examples=100, deadline=None)
@given(changed_plans(), st.data())
def test_the_steps_of_a_document_are_those_whose_batches_hold_it(plan: Plan, data: st.DataObject):
    number = data.draw(st.integers(0, len(plan.names) - 1))
    num_tokens = int(plan.all_sources[number].path)
    document = data.draw(st.integers(0, (num_tokens - 1) // DOCUMENT_TOKENS))
    wanted = range(document * DOCUMENT_TOKENS, (document + 1) * DOCUMENT_TOKENS)
    expected: set[tuple[int, int, int, int]] = set()
    for step in range(30):
        indices, tokens = plan.indices(step), plan.batch(step).token_ids
        for place, row in enumerate(tokens.tolist()):
            if indices.sources[place] == number:
                epoch = int(indices.epochs[place])
                hits = [offset for offset, token in enumerate(row) if token in wanted]
                expected.update((step, place, epoch, offset) for offset in hits)
    found = which_steps(plan, document, source=plan.names[number], num_steps=30)
    assert found == sorted(found, key=lambda item: (item.step, item.place, item.offset))
    assert expected == {
        (item.step, item.place, item.epoch, item.offset + token)
        for item in found
        for token in range(item.num_tokens)
    }


def test_a_rank_sees_its_own_rows():
    plan = fake_plan(sources=[source(500, "a")], seq_len=4, batch_size=6)
    whole = which_rows(plan, 7)
    parts = [which_rows(plan, 7, rank=rank, world_size=3) for rank in range(3)]
    assert [facts for part in parts for facts in part] == whole


def test_a_run_without_end_is_searched_for_one_epoch():
    plan = fake_plan(sources=[source(71, "a")], seq_len=7, batch_size=2)
    assert len(which_steps(plan, 3)) == 1
    assert len(which_steps(plan, 3, num_steps=10)) == 2


@pytest.mark.parametrize("packing", ["concat", "best-fit", "pad", "sliding"])
def test_every_packing_of_a_store_tells_its_documents(
    packing: Packing, build_store: BuildStore, tmp_path: Path
):
    documents = [[10 * n + k for k in range(n % 5 + 1)] for n in range(1, 9)]
    build_store(tmp_path / "s", documents)
    plan = Plan(
        sources=(Source(path=str(tmp_path / "s")),), seq_len=6, batch_size=2, packing=packing
    )
    for step in range(4):
        batch = plan.batch(step)
        for facts in which_rows(plan, step):
            for part in facts.documents:
                stop = part.offset + part.stop - part.start
                ids = batch.token_ids[facts.place, part.offset : stop].tolist()
                assert set(ids) <= set(documents[part.document])
                assert (part.file, part.position) == ("a.txt", 100 * part.document)
                assert any(
                    (item.step, item.place, item.offset) == (step, facts.place, part.offset)
                    for item in which_steps(plan, part.document, num_steps=4)
                )


def test_documents_and_sources_that_do_not_exist_are_refused():
    plan = fake_plan(sources=[source(50, "a", 1), source(70, "b", 1)], seq_len=4, batch_size=2)
    with pytest.raises(ConfigError, match="the plan has 2 sources"):
        which_steps(plan, 0)
    with pytest.raises(ConfigError, match="no source is called 'c'"):
        which_steps(plan, 0, source="c")
    with pytest.raises(ConfigError, match=r"document 10 is outside \[0, 10\)"):
        which_steps(plan, 10, source="b")
