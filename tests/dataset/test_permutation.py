from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.dataset import permutation
from tokenmill.dataset.permutation import SORTED_SIZE, permute, unpermute

SIZES = [1, 2, 3, 7, 100, SORTED_SIZE, SORTED_SIZE + 1, 5000, 2**16, 2**16 + 1, 99_991]
LARGE = [10**6, 10**7 + 19, 2**32, 2**32 + 1, 10**9, 10**12, 2**62]


def chi_square(counts: np.ndarray, *, expected: float | np.ndarray) -> float:
    """Return by how many standard deviations counts are further apart than chance makes them."""
    excess = float((((counts - expected) ** 2) / expected).sum())
    freedom = counts.size - 1
    return (excess - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("size", SIZES)
def test_every_item_has_exactly_one_place(size: int):
    places = np.arange(size)
    for seed, epoch in [(0, 0), (0, 1), (12345, 7)]:
        items = permute(places, size, seed=seed, epoch=epoch)
        assert np.array_equal(np.sort(items), places)
        assert np.array_equal(unpermute(items, size, seed=seed, epoch=epoch), places)


@pytest.mark.parametrize("sorted_size", [0, SORTED_SIZE])
def test_every_small_size_is_a_bijection(sorted_size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(permutation, "SORTED_SIZE", sorted_size)
    for size in range(1, 400):
        items = permute(np.arange(size), size, seed=size, epoch=3)
        assert sorted(items.tolist()) == list(range(size))
        assert np.array_equal(unpermute(items, size, seed=size, epoch=3), np.arange(size))


@settings(max_examples=200, deadline=None)
@given(
    size=st.one_of(st.integers(1, 10**4), st.integers(1, 10**12), st.sampled_from(LARGE)),
    seed=st.integers(-(2**63), 2**64 - 1),
    epoch=st.integers(0, 2**40),
    data=st.data(),
)
def test_the_inverse_leads_back(size: int, seed: int, epoch: int, data: st.DataObject):
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), max_size=20)), dtype=np.int64)
    items = permute(places, size, seed=seed, epoch=epoch)
    assert items.dtype == np.int64
    assert ((items >= 0) & (items < size)).all()
    assert np.array_equal(unpermute(items, size, seed=seed, epoch=epoch), places)
    assert len(set(items.tolist())) == len(set(places.tolist()))
    one_by_one = [permute(place, size, seed=seed, epoch=epoch) for place in places.tolist()]
    assert one_by_one == items.tolist()


@pytest.mark.parametrize("size", [3, 4, 5])
def test_all_orders_of_a_few_items_are_equally_likely(size: int):
    num_seeds = 12_000
    orders = Counter(
        tuple(permute(np.arange(size), size, seed=seed, epoch=0).tolist())
        for seed in range(num_seeds)
    )
    counts = np.array([orders[order] for order in permutations(range(size))])
    assert abs(chi_square(counts, expected=num_seeds / len(counts))) < 5


@pytest.mark.parametrize("size", [1000, SORTED_SIZE + 1, 10_007, *LARGE])
def test_an_item_is_equally_likely_at_every_place(size: int):
    num_bins = 100
    places = np.arange(1000) * (size // 1000)
    counts = np.zeros((10, num_bins))
    for seed in range(100):
        items = permute(places, size, seed=seed, epoch=seed % 3)
        bins = (items.astype(object) * num_bins // size).astype(np.int64)
        for part in range(10):  # early, ..., late places: each must be spread over all items
            counts[part] += np.bincount(bins[part::10], minlength=num_bins)
    for row in counts:
        assert abs(chi_square(row, expected=row.sum() / num_bins)) < 6


@pytest.mark.parametrize("size", [4000, SORTED_SIZE + 1, 10_007, 1_000_003])
@pytest.mark.parametrize("distance", [1, 2, 101])
def test_neighbours_end_up_anywhere(size: int, distance: int):
    num_bins, counts = 64, np.zeros(64)
    places = np.arange(0, min(size, 20_000) - distance)
    for seed in range(10):
        items = permute(places, size, seed=seed, epoch=0)
        others = permute(places + distance, size, seed=seed, epoch=0)
        counts += np.bincount((others - items) % size * num_bins // size, minlength=num_bins)
    assert abs(chi_square(counts, expected=counts.sum() / num_bins)) < 6


@pytest.mark.parametrize("size", [1000, 10_007])
def test_epochs_and_seeds_have_orders_of_their_own(size: int):
    orders = [
        permute(np.arange(size), size, seed=seed, epoch=epoch)
        for seed in range(5)
        for epoch in range(5)
    ]
    for i, order in enumerate(orders):
        fixed = [np.count_nonzero(order == other) for other in orders[:i]]
        assert all(number < 10 for number in fixed)  # about one by chance


def test_the_order_never_changes():
    # Runs are resumed with later versions: these numbers must stay for ever.
    assert permute(np.arange(8), 8, seed=1, epoch=0).tolist() == [0, 3, 7, 4, 6, 2, 5, 1]
    large = [394153120266, 240727810336, 593703323046, 36015342596]
    assert permute(np.arange(4), 10**12, seed=1, epoch=2).tolist() == large
    assert permute(4999, 5000, seed=-1, epoch=0) == 3616


def test_shapes_are_kept():
    places = np.arange(12).reshape(3, 4)
    for size in (12, 10**6):
        assert permute(places, size, seed=0, epoch=0).shape == (3, 4)
    assert permute(np.empty(0, dtype=np.int64), 5, seed=0, epoch=0).size == 0


@pytest.mark.parametrize(("place", "size"), [(-1, 5), (5, 5), (10**6, 10**6)])
def test_a_place_outside_is_an_index_error(place: int, size: int):
    with pytest.raises(IndexError, match="outside"):
        permute(np.array([0, place]), size, seed=0, epoch=0)
    with pytest.raises(IndexError, match="outside"):
        unpermute(place, size, seed=0, epoch=0)


@pytest.mark.parametrize("size", [0, -1, 2**62 + 1])
def test_a_size_that_cannot_be_shuffled_is_refused(size: int):
    with pytest.raises(ValueError, match="size is"):
        permute(np.array([0]), size, seed=0, epoch=0)
