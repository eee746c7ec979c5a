from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from fake_sources import fake_plan, plans, source, weights
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tokenmill.dataset.plan import Plan
from tokenmill.dataset.plan_settings import Amendment, Source, Stage
from tokenmill.errors import ConfigError


def same(first: Plan, second: Plan, step: int, other: int | None = None) -> bool:
    """Tell whether two plans have the same batch at a step, or at two different steps."""
    left, right = first.batch(step), second.batch(step if other is None else other)
    return all(np.array_equal(left[name], right[name]) for name in left)


def check_epochs(plan: Plan, steps: range) -> None:
    """Check that no source repeats anything before the end of its epoch, or loses anything."""
    seen: dict[int, list[tuple[int, int]]] = {}
    for step in steps:
        found = plan.indices(step)
        tokens = plan.batch(step).token_ids.tolist()
        samples = zip(found.sources.tolist(), found.epochs.tolist(), tokens, strict=True)
        for number, epoch, row in samples:
            seen.setdefault(number, []).extend((epoch, token) for token in row)
    lengths = {segment.seq_len for segment in plan.timeline.segments}
    for number, pairs in seen.items():
        assert len(pairs) == len(set(pairs)), "read twice in an epoch"
        counts = Counter(epoch for epoch, _ in pairs)
        num_tokens = int(plan.all_sources[number].path)
        # A batch is in any order, so that only epochs before the last two are sure to be over.
        for epoch in sorted(counts)[:-1]:
            if epoch > min(counts):
                slack = max(lengths) * (1 + len(plan.timeline.segments))
                assert num_tokens - counts[epoch] <= slack, "an epoch has holes"


@settings(max_examples=150, deadline=None)
@given(plans(max_batch=24), st.integers(0, 10**9), st.integers(1, 6), st.integers(1, 4))
def test_ranks_and_micro_batches_share_a_global_batch_exactly(
    plan: Plan, step: int, world_size: int, factor: int
):
    size = plan.batch_size * world_size * factor
    plan = fake_plan(sources=plan.sources, seq_len=plan.seq_len, batch_size=size)
    whole = plan.batch(step)
    parts = [plan.batch(step, rank=r, world_size=world_size) for r in range(world_size)]
    for name in whole:
        assert np.array_equal(np.concatenate([part[name] for part in parts]), whole[name])


@settings(max_examples=120, deadline=None)
@given(plans())
def test_every_row_of_every_source_comes_once_an_epoch(plan: Plan):
    drawn: dict[tuple[int, int], list[int]] = {}
    order: dict[int, list[int]] = {}
    for step in range(40):
        found = plan.indices(step)
        for number, epoch, row in zip(*map(np.ndarray.tolist, found[:3]), strict=True):
            drawn.setdefault((number, epoch), []).append(row)
            order.setdefault(number, []).append(epoch)
    for (number, epoch), rows in drawn.items():
        num_rows = plan.rows(number, plan.seq_len).num_rows
        assert len(rows) == len(set(rows))
        if epoch < max(order[number]):
            assert sorted(rows) == list(range(num_rows))


@settings(max_examples=120, deadline=None)
@given(plans(), st.integers(0, 10**9))
def test_a_batch_has_the_share_of_each_source(plan: Plan, step: int):
    segment = plan.timeline.segment(step)
    counts = np.bincount(plan.indices(step).sources, minlength=len(plan.sources))
    for count, weight in zip(counts, segment.mixture.weights, strict=True):
        assert abs(int(count) - weight * plan.batch_size) < 1


@settings(max_examples=100, deadline=None)
@given(plans(), st.integers(0, 10**9))
def test_a_batch_depends_on_plan_and_step_alone(plan: Plan, step: int):
    again = fake_plan(**plan.__getstate__())
    assert same(plan, again, step)
    assert plan.digest == again.digest


def test_any_step_costs_the_same():
    plan = fake_plan(sources=[source(10**12, "a", 1), source(10**9, "b", 2)], seq_len=1024,
                     batch_size=64)  # fmt: skip
    far = plan.batch(10**9)
    assert far.token_ids.shape == (64, 1024)
    assert plan.timeline.segments[0].cursors(10**9).sum() == 64 * 10**9


@settings(max_examples=120, deadline=None)
@given(plans(), st.integers(0, 15), st.integers(1, 9), weights, st.integers(13, 60))
def test_an_amended_plan_keeps_the_past_and_repeats_nothing_early(
    plan: Plan, at_step: int, batch_size: int, weight: float, num_tokens: int
):
    changed = dict.fromkeys(plan.names, 1.0) | {"new": weight}
    amended = plan.amend(
        at_step,
        weights=changed,
        batch_size=batch_size,
        sources=[source(num_tokens, "new")],
        stages=(),
    )
    assert all(same(plan, amended, step) for step in range(at_step))
    assert amended.digest != plan.digest
    check_epochs(amended, range(at_step + 15))


@settings(max_examples=120, deadline=None)
@given(plans(max_batch=5), st.lists(st.tuples(st.integers(0, 8), st.integers(1, 12)), max_size=3))
def test_so_does_one_with_other_sequence_lengths(plan: Plan, changes: list[tuple[int, int]]):
    step, amended = 0, plan
    for later, seq_len in changes:
        step += later
        before, amended = amended, amended.amend(step, seq_len=seq_len)
        assert all(same(before, amended, past) for past in range(step))
    check_epochs(amended, range(step + 20))


@settings(max_examples=150, deadline=None)
@given(plans(), st.integers(0, 20), st.integers(1, 20))
def test_a_skip_passes_over_the_data_of_its_steps(plan: Plan, start: int, num_steps: int):
    assume(all(stage.from_step <= start for stage in plan.stages if stage.from_step))
    skipped = plan.skip(start, start + num_steps)
    assert all(same(plan, skipped, step) for step in range(start))
    for step in range(start, start + 5):
        assert same(skipped, plan, step, step + num_steps)


@settings(max_examples=100, deadline=None)
@given(plans(), st.integers(1, 10**9), st.integers(1, 10**9))
def test_the_length_of_the_run_never_changes_the_order(plan: Plan, short: int, long: int):
    first = fake_plan(**plan.__getstate__() | {"num_steps": short})
    second = first.amend(0, num_steps=long)
    assert first.digest == second.digest == plan.digest
    assert same(first, second, min(short, long) - 1)
    assert second.total_steps == long


@settings(max_examples=100, deadline=None)
@given(st.integers(13, 60), st.integers(1, 30), st.integers(1, 5), st.integers(1, 5))
def test_the_first_repeat_is_where_a_row_comes_again(
    num_tokens: int, other: int, batch_size: int, weight: int
):
    plan = fake_plan(
        sources=[source(num_tokens, "a", 1), source(100 * other, "b", weight)],
        seq_len=3,
        batch_size=batch_size,
        stages=[Stage(from_step=4, weights={"a": 2, "b": weight})],
    )
    step, repeated = -1, False
    while not repeated:
        step += 1
        found = plan.indices(step)
        repeated = bool(((found.sources == 0) & (found.epochs > 0)).any())
    assert plan.first_repeat("a") == step


def test_the_same_store_twice_is_read_in_different_orders():
    plan = fake_plan(sources=[source(1000, "a", 1), source(1000, "b", 1)], seq_len=4, batch_size=64)
    found = plan.indices(0)
    rows = [found.rows[found.sources == number].tolist() for number in (0, 1)]
    assert sorted(rows[0]) != sorted(rows[1])


def test_epochs_and_seeds_have_orders_of_their_own():
    orders: list[list[int]] = []
    for seed in (0, 1):
        plan = fake_plan(sources=[source(401, "a")], seq_len=4, batch_size=100, seed=seed)
        orders += [plan.indices(step).rows.tolist() for step in (0, 1)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4


def test_without_weights_all_sources_end_together():
    plan = fake_plan(sources=[source(301, "a"), source(101, "b")], seq_len=1, batch_size=4)
    assert plan.first_repeat("a") == plan.first_repeat("b") == 100


def test_a_stage_can_begin_after_a_number_of_tokens_also_when_the_batch_changes():
    plan = fake_plan(
        sources=[source(1000, "a", 1), source(1000, "b", 0)],
        seq_len=10,
        batch_size=4,
        stages=[Stage(from_tokens=390, weights={"a": 0, "b": 1})],
    )
    assert [segment.start for segment in plan.timeline.segments] == [0, 10]
    amended = plan.amend(5, batch_size=8)
    assert [segment.start for segment in amended.timeline.segments] == [0, 5, 8]
    assert not amended.indices(7).sources.any()
    assert amended.indices(8).sources.all()


def test_a_source_that_is_used_up_is_an_error_with_the_step():
    sources = [source(101, "a", 1, max_epochs=2), source(10_000, "b", 1)]
    plan = fake_plan(sources=sources, seq_len=10, batch_size=2, num_steps=21)
    with pytest.raises(ConfigError, match="'a' is used up at step 20"):
        plan.batch(0)
    assert fake_plan(**plan.__getstate__() | {"num_steps": 20}).batch(19)


def test_a_run_without_end_goes_on_until_a_source_is_used_up():
    sources = [source(101, "a", 1, max_epochs=2), source(10_000, "b", 1)]
    plan = fake_plan(sources=sources, seq_len=10, batch_size=2)
    assert plan.batch(19)
    for step in (20, 21):
        with pytest.raises(ConfigError, match="'a' is used up at step 20"):
            plan.batch(step)


def test_steps_outside_the_run_are_refused():
    plan = fake_plan(sources=[source(100, "a")], seq_len=4, batch_size=2, num_steps=10)
    for step in (-1, 10):
        with pytest.raises(IndexError, match="outside"):
            plan.batch(step)


def test_ranks_that_do_not_divide_a_batch_are_refused_with_both_numbers():
    plan = fake_plan(sources=[source(100, "a")], seq_len=4, batch_size=6)
    with pytest.raises(ConfigError, match=r"6 rows .* 4 ranks"):
        plan.batch(0, rank=0, world_size=4)
    with pytest.raises(ConfigError, match="rank is 2"):
        plan.batch(0, rank=2, world_size=2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sources": []}, "at least one source"),
        ({"seq_len": 0}, "seq_len must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"num_steps": 0}, "num_steps must be at least 1"),
        ({"sources": [source(99, "a", 1), source(99, "b")]}, "'b' has no weight"),
        ({"sources": [source(99, "a", 1), source(99, "a", 1)]}, "two sources are called 'a'"),
        ({"stages": [Stage(from_step=2, weights={"x": 1})]}, "weight is given for 'x'"),
        ({"stages": [Stage(from_step=5), Stage(from_step=2, batch_size=3)]}, None),
        (
            {"stages": [Stage(from_step=5, batch_size=3), Stage(from_step=2, batch_size=4)]},
            "begins before step 5",
        ),
        (
            {"amendments": [Amendment(at_step=5), Amendment(at_step=4)]},
            "amendment 2 is at step 4, the one before it at 5",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], message: str | None):
    given = {"sources": [source(100, "a", 1)], "seq_len": 4, "batch_size": 2} | fields
    if message is None:
        fake_plan(**given).check()
        return
    with pytest.raises(ConfigError, match=message):
        fake_plan(**given).check()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: source(9, "a", -1), "weight of 'a' is -1"),
        (lambda: source(9, "a", float("nan")), "weight of 'a' is nan"),
        (lambda: source(9, "a", max_epochs=0), "max_epochs must be at least 1"),
        (lambda: Source(path=""), "empty path"),
        (lambda: Stage(weights={"a": 1}), "either from_step or from_tokens"),
        (lambda: Stage(from_step=1, from_tokens=1), "either from_step or from_tokens"),
        (lambda: Stage(from_step=1, weights={"a": 0}), "all weights are 0"),
        (lambda: Amendment(at_step=-1), "at_step must be at least 0"),
        (lambda: Amendment(at_step=1, sources=[source(9, "a")]), "gives no weights"),
    ],
)
def test_parts_of_a_plan_check_themselves(build: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        build()


def test_amendments_come_in_the_order_of_their_steps():
    plan = fake_plan(sources=[source(100, "a")], seq_len=4, batch_size=2).skip(50, 60)
    with pytest.raises(ConfigError, match="step 40 cannot be amended after step 50"):
        plan.amend(40, batch_size=4)
    assert plan.rewind(40).amend(40, batch_size=4).amendments[0].at_step == 40


def test_a_skip_across_a_stage_is_refused():
    plan = fake_plan(
        sources=[source(100, "a")], seq_len=4, batch_size=2,
        stages=[Stage(from_step=10, batch_size=4)],
    )  # fmt: skip
    with pytest.raises(ConfigError, match="a stage begins at step 10"):
        plan.skip(5, 11)
    assert plan.skip(5, 10).timeline.segment(12).batch_size == 4


def test_the_digest_names_what_decides_batches_and_nothing_else():
    def digest(**fields: Any) -> str:
        given: dict[str, Any] = {
            "sources": [source(100, "a", 1), source(200, "b", 3)],
            "seq_len": 4,
            "batch_size": 2,
            "stages": [Stage(from_step=9, weights={"a": 1, "b": 4})],
        }
        return fake_plan(**given | fields).digest

    renamed = [source(100, "x", 0.25, max_epochs=5), source(200, "y", 0.75)]
    stages = [Stage(from_step=9, weights={"y": 0.8, "x": 0.2})]
    assert digest(sources=renamed, stages=stages, num_steps=3) == digest()
    changes: list[dict[str, Any]] = [
        {"seed": 1},
        {"seq_len": 5},
        {"batch_size": 3},
        {"stages": ()},
        {"mask_boundaries": True},
        {"pad_last": True},
        {"packing": "best-fit"},
        {"sources": [source(101, "a", 1), source(200, "b", 3)]},
        {"sources": [source(100, "a", 1), source(200, "b", 2)]},
        {"sources": [source(100, "a", 1, split="val"), source(200, "b", 3)]},
        {"amendments": [Amendment(at_step=3, skip_steps=2)]},
    ]
    assert len({digest(), *(digest(**change) for change in changes)}) == 1 + len(changes)


def test_a_plan_can_be_pickled():
    plan = Plan(sources=(source(100, "a"),), seq_len=4, batch_size=2)
    fake = fake_plan(**plan.__getstate__())
    fake.check()
    assert pickle.loads(pickle.dumps(fake)) == plan
