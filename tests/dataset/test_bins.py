from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.dataset.bins import best_fit_decreasing, count_bins


@settings(max_examples=400, deadline=None)
@given(data=st.data(), capacity=st.integers(1, 40))
def test_the_fast_way_fills_bins_like_one_item_at_a_time(data: st.DataObject, capacity: int):
    drawn = data.draw(st.lists(st.integers(1, capacity), max_size=60))
    lengths = np.array(drawn, dtype=np.int64)
    order, bins = best_fit_decreasing(lengths, capacity)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    rooms = one_at_a_time(lengths[order].tolist(), capacity)
    filled = np.bincount(bins, weights=lengths[order], minlength=len(rooms))
    assert sorted(capacity - filled.astype(int)) == sorted(rooms)
    assert count_bins(lengths, capacity) == len(rooms)
    keys = list(zip((-lengths[order]).tolist(), order.tolist(), strict=True))
    assert keys == sorted(keys)  # longest first, equal ones in the order given


def one_at_a_time(lengths: list[int], capacity: int) -> list[int]:
    rooms: list[int] = []
    for length in lengths:
        fitting = [i for i, room in enumerate(rooms) if room >= length]
        if fitting:
            rooms[min(fitting, key=rooms.__getitem__)] -= length
        else:
            rooms.append(capacity - length)
    return rooms


def test_many_items_fill_bins_well():
    lengths = np.random.default_rng(0).integers(1, 1025, size=20_000)
    assert lengths.sum() / (count_bins(lengths, 1024) * 1024) > 0.99
