from __future__ import annotations

from fake_sources import fake_plan, source

from tokenmill.dataset.plan_settings import Stage


def test_a_segment_finds_only_samples_that_it_draws():
    plan = fake_plan(sources=[source(900, "a", 2), source(900, "b", 1)], seq_len=3, batch_size=5)
    first, second, last = plan.amend(4, batch_size=7).skip(6, 9).timeline.segments
    for segment, steps in ((first, range(4)), (second, range(4, 6)), (last, range(6, 12))):
        for step in steps:
            for number in (0, 1):
                cursors, after = segment.cursors(step), segment.cursors(step + 1)
                for sample in range(int(cursors[number]), int(after[number])):
                    assert segment.find(number, sample) == step
    assert first.find(0, int(first.cursors(4)[0])) is None
    assert second.find(0, int(second.cursors(4)[0]) - 1) is None
    skipped = range(int(second.cursors(6)[0]), int(last.cursors(6)[0]))
    assert skipped
    assert all(segment.find(0, s) is None for segment in (first, second, last) for s in skipped)


def test_tokens_are_counted_through_all_changes():
    plan = fake_plan(
        sources=[source(900, "a")],
        seq_len=3,
        batch_size=5,
        stages=[Stage(from_step=2, batch_size=6), Stage(from_step=7, seq_len=4)],
    ).skip(5, 6)
    timeline = plan.timeline
    expected = [15] * 2 + [18] * 5 + [24] * 3
    assert [timeline.num_tokens(step) for step in range(11)] == [
        sum(expected[:step]) for step in range(11)
    ]


def test_a_change_that_changes_nothing_makes_no_segment():
    plan = fake_plan(
        sources=[source(900, "a", 1), source(900, "b", 1)],
        seq_len=3,
        batch_size=5,
        stages=[Stage(from_step=9, weights={"a": 4, "b": 4})],
    )
    assert len(plan.amend(3, batch_size=5, seq_len=3).timeline.segments) == 1


def test_stages_after_an_amendment_come_at_their_step():
    plan = fake_plan(
        sources=[source(900, "a", 1), source(900, "b", 1)],
        seq_len=3,
        batch_size=4,
        stages=[Stage(from_step=9, weights={"a": 3, "b": 1})],
    ).amend(5, weights={"a": 1, "b": 0})
    shares = [[float(w) for w in segment.mixture.weights] for segment in plan.timeline.segments]
    assert [segment.start for segment in plan.timeline.segments] == [0, 5, 9]
    assert shares == [[0.5, 0.5], [1, 0], [0.75, 0.25]]
