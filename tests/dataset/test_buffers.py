from __future__ import annotations

import pickle
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.buffers import BufferPool

I64, I32 = np.dtype(np.int64), np.dtype(np.int32)


def address(array: NDArray[Any]) -> int:
    return array.__array_interface__["data"][0]


def test_memory_comes_back_when_the_last_view_of_it_is_gone():
    pool = BufferPool()
    first, second = pool.empty((4, 8), I64, I32)
    assert (first.shape, first.dtype, second.dtype) == ((4, 8), I64, I32)
    where = address(first)
    view = second[2:, 1]
    del first, second
    (other,) = pool.empty((4, 12), I64)
    assert address(other) != where  # the view still needs it
    del other, view
    first = pool.empty((4, 8), I64, I32)[0]
    assert where in {address(first), address(pool.empty((4, 8), I64, I32)[0])}


def test_arrays_that_are_held_never_share_memory():
    pool = BufferPool()
    held: deque[tuple[int, list[NDArray[Any]]]] = deque()
    rng = np.random.default_rng(0)
    for number in range(500):
        arrays = pool.empty((3, 5), I64, I32)
        for array in arrays:
            array.fill(number)
        held.append((number, arrays))
        if len(held) > rng.integers(1, 40):
            held.popleft()
        assert all((array == value).all() for value, kept in held for array in kept)


def test_threads_never_get_the_same_memory():
    pool = BufferPool()

    def work(number: int) -> bool:
        for _ in range(300):
            (array,) = pool.empty((64,), I64)
            array.fill(number)
            if not (array == number).all():
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(work, range(8)))


def test_a_pool_keeps_little_and_travels_empty():
    pool = BufferPool()
    pool.empty((1 << 24,), I64)  # 128 MiB: more than is ever kept
    for size in range(1, 40):
        arrays = [pool.empty((size,), I64) for _ in range(30)]
        del arrays
    free = pool._free
    assert len(free) <= 4
    assert all(len(pieces) <= 16 for pieces in free.values())
    assert not pickle.loads(pickle.dumps(pool))._free
