from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from fake_sources import fake_plan, plans, source
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.dataset.explain import explain
from tokenmill.dataset.plan import Plan
from tokenmill.dataset.plan_settings import Source, Stage

if TYPE_CHECKING:
    from conftest import BuildStore


@settings(max_examples=60, deadline=None)
@given(plans(), st.integers(1, 25), st.integers(1, 12), st.integers(1, 8))
def test_what_is_told_is_what_the_batches_hold(
    plan: Plan, num_steps: int, seq_len: int, at_step: int
):
    plan = plan.amend(at_step, seq_len=seq_len)
    told = explain(plan, num_steps=num_steps)
    rows = np.zeros(len(plan.names), dtype=np.int64)
    tokens, repeats = rows.copy(), {}
    for step in range(num_steps):
        found = plan.indices(step)
        counts = np.bincount(found.sources, minlength=len(rows))
        rows += counts
        tokens += counts * plan.batch(step).token_ids.shape[1]
        for number in found.sources[found.epochs > 0].tolist():
            repeats.setdefault(number, step)
    assert [facts.num_samples for facts in told.sources] == rows.tolist()
    assert [facts.num_drawn for facts in told.sources] == tokens.tolist()
    assert told.num_tokens == tokens.sum()
    assert [facts.first_repeat for facts in told.sources] == [
        repeats.get(number) for number in range(len(rows))
    ]
    assert told.first_repeat == min(repeats.values(), default=None)
    assert sum(segment.num_tokens for segment in told.segments) == told.num_tokens


def test_a_whole_epoch_is_one_epoch():
    plan = fake_plan(sources=[source(401, "a")], seq_len=4, batch_size=10, num_steps=10)
    (facts,) = explain(plan).sources
    assert (facts.num_epochs, facts.first_repeat, facts.share) == (1.0, None, 1.0)
    assert facts.epoch.num_dropped == 0


def test_a_plan_without_end_is_explained_up_to_the_first_repeat():
    plan = fake_plan(sources=[source(401, "a")], seq_len=4, batch_size=10)
    told = explain(plan)
    assert (told.num_steps, told.has_end, told.first_repeat) == (10, False, None)
    assert "has no end" in told.text()


def test_what_skips_pass_over_and_changes_of_length_lose_is_counted():
    plan = fake_plan(sources=[source(401, "a", 1), source(401, "b", 1)], seq_len=4, batch_size=10)
    plan = plan.skip(2, 5, note="spike").amend(4, seq_len=7)
    told = explain(plan, num_steps=30)
    assert [facts.num_skipped for facts in told.sources] == [3 * 5 * 4] * 2
    rest = 400 - (4 + 3) * 5 * 4
    assert [facts.num_dropped for facts in told.sources] == [rest % 7] * 2
    assert [change.note for change in told.amendments] == ["spike", ""]
    text = told.text()
    assert "at step 2: skips the data of steps 2 to 5 (spike)" in text
    assert "60 tokens are passed over by skips" in text
    assert f"{rest % 7} tokens are lost where the sequence length changes" in text


def test_skips_at_one_step_add_up():
    plan = fake_plan(sources=[source(401, "a")], seq_len=4, batch_size=10)
    plan = plan.skip(2, 3).skip(2, 4).amend(2, batch_size=5)
    assert explain(plan, num_steps=5).sources[0].num_skipped == 3 * 10 * 4


def test_the_text_names_stages_sources_and_the_rate_of_storage(
    build_store: BuildStore, tmp_path: Path
):
    build_store(tmp_path / "web", [[2, 3, 4, 1]] * 30)
    build_store(tmp_path / "code", [[5, 6, 1]] * 30)
    plan = Plan(
        sources=(
            Source(path=str(tmp_path / "web"), weight=3),
            Source(path=str(tmp_path / "code"), weight=1, max_epochs=9),
        ),
        seq_len=8,
        batch_size=4,
        num_steps=20,
        stages=(Stage(from_step=10, weights={"web": 1, "code": 1}),),
    )
    told = explain(plan)
    assert told.bytes_per_token == 2
    assert told.bytes_per_second(1e6) == 2e6
    text = told.text(tokens_per_second=1e6)
    for part in (
        plan.digest,
        "20 steps, 640 tokens in 80 rows",
        "holds 120 tokens in 30 documents: 14 rows an epoch",
        "gives 400 tokens (62.50%) in 50 rows: 3.571 epochs, first repeat at step 4",
        "epochs of at most 9",
        "an epoch has 7 dropped",
        "10 to 20 (stage 1): batch_size 4, seq_len 8, web 0.5, code 0.5",
        "at 1.00M tokens/s, storage must deliver 2.00MB/s",
    ):
        assert part in text, text


def test_a_source_without_weight_gives_nothing():
    plan = fake_plan(sources=[source(401, "a", 1), source(401, "b", 0)], seq_len=4, batch_size=10)
    facts = explain(plan, num_steps=30).sources[1]
    assert (facts.num_samples, facts.num_epochs, facts.first_repeat) == (0, 0, None)
