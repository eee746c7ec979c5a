from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenmill.dataset.mixture import Mixture, normalize
from tokenmill.errors import ConfigError

weight = st.one_of(
    st.integers(1, 10).map(Fraction),
    st.floats(1e-6, 1.0).map(lambda value: Fraction(str(value))),
    st.just(Fraction(0)),
)
weight_lists = st.lists(weight, min_size=1, max_size=8).filter(any)
mixtures = st.builds(Mixture, weight_lists, st.integers(1, 300))
batches = st.one_of(st.integers(0, 40), st.integers(0, 10**9), st.integers(0, 1 << 50))


def is_rounded(count: int, share: Fraction) -> bool:
    return abs(int(count) - share) < 1


@settings(max_examples=400, deadline=None)
@given(mixtures, batches)
def test_every_batch_has_the_share_of_each_source_rounded_down_or_up(mixture: Mixture, batch: int):
    counts = mixture.counts(batch)
    assert counts.sum() == mixture.batch_size
    for count, weight in zip(counts, mixture.weights, strict=True):
        assert is_rounded(count, weight * mixture.batch_size)


@settings(max_examples=400, deadline=None)
@given(mixtures, st.integers(0, 30), st.integers(0, 1 << 18))
def test_so_has_every_aligned_run_of_a_power_of_two_of_batches(
    mixture: Mixture, exponent: int, number: int
):
    size = 1 << exponent
    counts = mixture.before((number + 1) * size) - mixture.before(number * size)
    for count, weight in zip(counts, mixture.weights, strict=True):
        # Bounds have 60 bits: over a long run, one may be off by this little.
        assert abs(int(count) - weight * mixture.batch_size * size) < 1 + Fraction(size, 1 << 58)


@settings(max_examples=400, deadline=None)
@given(mixtures, batches)
def test_the_closed_form_is_the_sum_over_batches(mixture: Mixture, batch: int):
    assert (mixture.before(batch) + mixture.counts(batch) == mixture.before(batch + 1)).all()
    assert not mixture.before(0).any()


@settings(max_examples=300, deadline=None)
@given(mixtures, batches)
def test_the_order_of_a_batch_names_every_sample_once(mixture: Mixture, batch: int):
    sources, numbers = mixture.order(batch)
    assert len(sources) == mixture.batch_size
    for source, count in enumerate(mixture.counts(batch)):
        assert sorted(numbers[sources == source]) == list(range(count))


@settings(max_examples=300, deadline=None)
@given(st.lists(weight, min_size=2, max_size=5).filter(any), st.integers(1, 8), st.integers(1, 8))
def test_every_rank_has_nearly_its_share_of_each_source(
    weights: list[Fraction], world_size: int, rank_size: int
):
    mixture = Mixture(weights, world_size * rank_size)
    sources, _ = mixture.order(5)
    counts = mixture.counts(5)
    for rank in range(world_size):
        part = sources[rank * rank_size : (rank + 1) * rank_size]
        for source, count in enumerate(counts):
            share = count / world_size
            assert abs(np.count_nonzero(part == source) - share) <= len(weights)


@settings(max_examples=300, deadline=None)
@given(mixtures, batches, st.data())
def test_a_sample_is_found_in_the_batch_that_holds_it(
    mixture: Mixture, batch: int, data: st.DataObject
):
    counts = mixture.counts(batch)
    source = data.draw(st.sampled_from(np.flatnonzero(counts).tolist()))
    number = data.draw(st.integers(0, int(counts[source]) - 1))
    assert mixture.find(source, int(mixture.before(batch)[source]) + number) == batch


@settings(deadline=None)
@given(weight_lists, st.integers(1, 100))
@example([Fraction("0.1"), Fraction("0.2"), Fraction("0.7")], 10)
def test_only_the_proportion_of_weights_counts(weights: list[Fraction], factor: int):
    scaled = [weight * factor for weight in weights]
    assert Mixture(weights, 7) == Mixture(scaled, 7)
    assert (Mixture(weights, 7).before(99) == Mixture(scaled, 7).before(99)).all()


def test_batches_that_cannot_be_counted_are_refused():
    with pytest.raises(IndexError, match="outside"):
        Mixture([Fraction(1)], 1 << 30).before(1 << 31)


def test_weights_are_taken_as_written():
    mixture = Mixture([Fraction("0.7"), Fraction("0.2"), Fraction("0.1")], 10)
    assert all(mixture.counts(batch).tolist() == [7, 2, 1] for batch in range(1000))


def test_a_source_that_is_rarer_than_a_batch_is_not_forgotten():
    mixture = Mixture([Fraction(999), Fraction(1)], 1)
    assert mixture.before(10_000)[1] == pytest.approx(10, abs=1)


def test_batches_of_one_alternate():
    mixture = Mixture([Fraction(1), Fraction(1)], 1)
    assert [mixture.order(batch)[0][0] for batch in range(6)] == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize("weights", [[], [Fraction(0)], [Fraction(2), Fraction(-1)]])
def test_weights_that_mean_nothing_are_refused(weights: list[Fraction]):
    with pytest.raises(ConfigError, match="weights"):
        normalize(weights)
