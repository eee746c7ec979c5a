"""The schedule of the learning rate, over its whole range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import ConfigError
from tokenmill.train.schedule import Schedule, momentum_warmup

SHAPES = ("trapezoid", "cosine", "linear", "constant")
schedules = st.builds(
    Schedule,
    shape=st.sampled_from(SHAPES),
    warmup_steps=st.integers(0, 50),
    cooldown_share=st.floats(0, 1),
    final_factor=st.floats(0, 1),
)


@given(schedules, st.integers(1, 400))
def test_it_rises_to_one_then_falls_to_the_end(schedule: Schedule, num_steps: int):
    factors = [schedule.factor(step, num_steps) for step in range(num_steps)]
    warmup = factors[: schedule.warmup_steps]
    rest = factors[schedule.warmup_steps :]
    assert all(0.0 < factor <= 1.0 for factor in factors)
    assert warmup == sorted(warmup)
    assert rest == sorted(rest, reverse=True)
    if rest:
        assert rest[0] == pytest.approx(1.0)
        assert min(rest) >= schedule.final_factor - 1e-12
        if schedule.shape != "constant":
            end = schedule.factor(num_steps, num_steps)
            assert end == pytest.approx(schedule.final_factor)
    if schedule.warmup_steps and num_steps >= schedule.warmup_steps:
        assert warmup[-1] == 1.0


@given(schedules, st.integers(1, 400), st.integers(0, 800))
def test_it_is_a_number_from_zero_to_one_at_any_step(schedule: Schedule, num_steps: int, step: int):
    assert 0.0 <= schedule.factor(step, num_steps) <= 1.0


def test_a_trapezoid_is_level_before_it_falls():
    schedule = Schedule(shape="trapezoid", warmup_steps=10, cooldown_share=0.4)
    factors = [schedule.factor(step, 100) for step in range(100)]
    assert factors[10:61] == [1.0] * 51
    assert factors[80] == pytest.approx(0.5)
    assert factors[99] == pytest.approx(1 / 40)


def test_a_cosine_is_half_way_in_the_middle():
    schedule = Schedule(shape="cosine", warmup_steps=20, final_factor=0.1)
    assert schedule.factor(70, 120) == pytest.approx(0.55)
    assert schedule.factor(119, 120) == pytest.approx(0.1, abs=1e-3)


def test_the_momentum_rises_and_stays():
    found = [
        momentum_warmup(step, start=0.85, end=0.95, num_steps=100) for step in (0, 50, 100, 9999)
    ]
    assert found == pytest.approx([0.85, 0.9, 0.95, 0.95])
    assert momentum_warmup(0, start=0.85, end=0.95, num_steps=0) == 0.95


@pytest.mark.parametrize(
    "changes", [{"warmup_steps": -1}, {"cooldown_share": 1.5}, {"final_factor": -0.1}], ids=str
)
def test_settings_out_of_range_are_refused(changes: dict[str, float]):
    with pytest.raises(ConfigError, match=next(iter(changes))):
        Schedule(**changes)  # pyright: ignore[reportArgumentType]
