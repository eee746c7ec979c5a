from __future__ import annotations

import gc
import json
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from fake_sources import fake_plan, plans, source
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.dataset.batch import Batch
from tokenmill.dataset.loader import Loader
from tokenmill.dataset.plan import Plan
from tokenmill.errors import ConfigError


def small_plan(**fields: Any) -> Plan:
    given = {"sources": [source(900, "a", 2), source(500, "b", 1)], "seq_len": 5, "batch_size": 12}
    return fake_plan(**given | fields)


def take(loader: Loader, num_steps: int) -> list[tuple[int, Any]]:
    return [next(loader) for _ in range(num_steps)]


def join(batches: Iterable[Batch]) -> list[list[int]]:
    return [row for batch in batches for row in batch.token_ids.tolist()]


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


@contextmanager
def no_threads_left() -> Iterator[None]:
    yield
    deadline = time.monotonic() + 10
    while loader_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not loader_threads()


shapes = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(1, 5))


def two_steps(
    plan: Plan, shape: tuple[int, int, int, int], state: dict[str, Any]
) -> tuple[list[list[list[int]]], dict[str, Any]]:
    """Return the next two global batches as all ranks together see them, and the state after."""
    world_size, micro_batches, num_threads, prefetch = shape
    seen: list[list[list[int]]] = [[], []]
    states: list[dict[str, Any]] = []
    for rank in range(world_size):
        with Loader(
            plan,
            rank,
            world_size,
            micro_batches=micro_batches,
            num_threads=num_threads,
            prefetch=prefetch,
        ) as loader:
            loader.load_state_dict(state)
            for place, (_, made) in enumerate(take(loader, 2)):
                seen[place] += join([made] if micro_batches == 1 else made)
            states.append(loader.state_dict())
    assert all(state == states[0] for state in states)
    return seen, states[0]


@settings(max_examples=100, deadline=None)
@given(plans(max_batch=1), st.integers(0, 10**6), shapes, shapes)
def test_a_run_resumed_with_other_ranks_and_threads_sees_the_same_batches(
    plan: Plan, step: int, first: tuple[int, int, int, int], second: tuple[int, int, int, int]
):
    plan = fake_plan(**plan.__getstate__() | {"batch_size": 72})
    before, state = two_steps(plan, first, Loader(plan, start_step=step).state_dict())
    after, _ = two_steps(plan, second, state)
    assert before + after == [plan.batch(step + k).token_ids.tolist() for k in range(4)]


def test_steps_come_in_order_whatever_the_threads():
    plan = small_plan(num_steps=50)
    with Loader(plan, num_threads=4, prefetch=9) as loader:
        assert [step for step, _ in loader] == list(range(50))
    with Loader(plan, num_threads=0) as loader:
        assert [step for step, _ in loader] == list(range(50))


def test_micro_batches_are_views_of_the_part_of_a_rank():
    plan = small_plan()
    with Loader(plan, 1, 2, micro_batches=3) as loader:
        _, parts = next(loader)
    assert isinstance(parts, tuple)
    assert [part.token_ids.shape for part in parts] == [(2, 5)] * 3
    assert join(parts) == plan.batch(0).token_ids[6:].tolist()
    assert all(part.token_ids.base is not None for part in parts)


def test_the_state_is_small_and_counts_what_was_delivered_not_what_was_made_ahead():
    plan = small_plan()
    with Loader(plan, prefetch=8) as loader:
        take(loader, 3)
        state = loader.state_dict()
    assert state["next_step"] == 3
    assert len(json.dumps(state)) < 1000


def test_a_state_can_be_loaded_in_the_middle():
    plan = small_plan()
    with Loader(plan) as loader:
        state = loader.state_dict() | {"next_step": 7}
        take(loader, 3)
        loader.load_state_dict(state)
        step, batch = next(loader)
        assert isinstance(batch, Batch)
    assert step == 7
    assert np.array_equal(batch.token_ids, plan.batch(7).token_ids)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seed": 1}, "seed was 0, is 1"),
        ({"batch_size": 24}, "batch_size was 12, is 24"),
        ({"sources": [source(900, "a", 2), source(501, "b", 1)]}, "content of a store"),
    ],
)
def test_another_plan_is_refused_with_what_differs(fields: dict[str, Any], message: str):
    state = Loader(small_plan()).state_dict()
    with pytest.raises(ConfigError, match=message):
        Loader(small_plan(**fields)).load_state_dict(state)


def test_an_amended_plan_continues_if_its_past_is_the_same():
    plan = small_plan()
    state = Loader(plan, start_step=100).state_dict()
    amended = plan.amend(100, batch_size=24).amend(150, num_steps=500).skip(200, 210)
    loader = Loader(amended)
    loader.load_state_dict(state)
    assert loader.next_step == 100
    late = Loader(plan, start_step=101).state_dict()
    with pytest.raises(ConfigError, match="amended at step 100, before step 101"):
        Loader(amended).load_state_dict(late)
    later = Loader(amended, start_step=180).state_dict()
    Loader(amended.amend(300, batch_size=12)).load_state_dict(later)
    with pytest.raises(ConfigError, match="it had 3 amendments, this one has 0"):
        Loader(plan).load_state_dict(later)


def test_a_longer_run_is_the_same_plan():
    state = Loader(small_plan(num_steps=10), start_step=10).state_dict()
    loader = Loader(small_plan(num_steps=20))
    loader.load_state_dict(state)
    assert [step for step, _ in loader] == list(range(10, 20))


def test_a_state_of_another_version_is_refused():
    with pytest.raises(ConfigError, match="version 9"):
        Loader(small_plan()).load_state_dict({"version": 9})


def test_an_error_in_the_background_is_raised_where_its_batch_would_have_come(
    monkeypatch: pytest.MonkeyPatch,
):
    plan, make = small_plan(), Plan.batch

    def fail(self: Plan, step: int, **kwargs: int) -> Batch:
        if step == 5:
            raise OSError("the disk is gone")
        return make(self, step, **kwargs)

    monkeypatch.setattr(Plan, "batch", fail)
    with no_threads_left(), Loader(plan, num_threads=3, prefetch=8) as loader:
        assert [step for step, _ in take(loader, 5)] == [0, 1, 2, 3, 4]
        for _ in range(2):
            with pytest.raises(OSError, match="disk is gone"):
                next(loader)
        assert loader.state_dict()["next_step"] == 5


def test_no_more_than_prefetch_batches_are_made_ahead(monkeypatch: pytest.MonkeyPatch):
    plan, make, made = small_plan(), Plan.batch, []

    def note(self: Plan, step: int, **kwargs: int) -> Batch:
        made.append(step)
        return make(self, step, **kwargs)

    monkeypatch.setattr(Plan, "batch", note)
    with Loader(plan, num_threads=2, prefetch=3) as loader:
        take(loader, 2)
        deadline = time.monotonic() + 10
        while len(made) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)  # time enough to make more, if that were asked for
    assert sorted(made) == [0, 1, 2, 3, 4]


def test_closing_or_letting_go_leaves_no_thread():
    with no_threads_left():
        loader = Loader(small_plan(), num_threads=3)
        take(loader, 2)
        assert loader_threads()
        loader.close()
        assert not loader_threads()
        assert list(loader) == []
    with no_threads_left():
        loader = Loader(small_plan(), num_threads=3)
        take(loader, 2)
        del loader
        gc.collect()


def test_an_interrupt_leaves_no_thread_and_loses_no_step():
    def interrupted(loader: Loader) -> None:
        with loader:
            take(loader, 2)
            raise KeyboardInterrupt

    loader = Loader(small_plan())
    with no_threads_left(), pytest.raises(KeyboardInterrupt):
        interrupted(loader)
    assert loader.next_step == 2


def test_a_forked_process_continues_with_threads_of_its_own():
    loader = Loader(small_plan(), num_threads=2)
    take(loader, 2)
    time.sleep(0.1)  # let the threads finish, so that no lock is held while forking
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(30)  # a child that waits for threads that it does not have must not wait on
        step, batch = next(loader)
        os.write(writer, json.dumps([step, batch.token_ids.tolist()]).encode())  # type: ignore[union-attr]
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        step, rows = json.loads(file.read())
    os.waitpid(child, 0)
    assert (step, rows) == (2, small_plan().batch(2).token_ids.tolist())
    loader.close()


def test_stats_count_what_this_rank_was_given():
    loader = Loader(small_plan(), 0, 2)
    assert loader.stats().num_tokens == 0
    assert loader.stats().tokens_per_second == 0
    take(loader, 3)
    stats = loader.stats()
    assert (stats.num_steps, stats.num_tokens) == (3, 3 * 6 * 5)
    assert 0 < stats.wait_seconds <= stats.seconds
    assert stats.tokens_per_second > 0
    loader.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank is 2"),
        ({"world_size": 5}, "12 rows cannot be shared evenly by 5 ranks"),
        ({"world_size": 2, "micro_batches": 4}, "6 rows of a rank .* 4 micro-batches"),
        ({"prefetch": 0}, "prefetch must be at least 1"),
        ({"num_threads": -1}, "num_threads must be at least 0"),
        ({"start_step": -1}, "start_step must be at least 0"),
        ({"micro_batches": 0}, "micro_batches must be at least 1"),
        ({"output": "jax"}, "expected numpy or torch"),
        ({"device": "cuda"}, "are for output='torch'"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        Loader(small_plan(), **arguments)


def test_batch_sizes_of_later_steps_are_checked_at_once():
    plan = small_plan().amend(50, batch_size=7)
    with pytest.raises(ConfigError, match="7 rows cannot be shared evenly by 3 ranks"):
        Loader(plan, 0, 3)
    with pytest.raises(ConfigError, match="12 rows cannot be shared evenly by 7 ranks"):
        Loader(plan, 0, 7)
    assert Loader(plan, 0, 7, start_step=50)


def test_tensors_hold_the_same_as_arrays():
    torch = pytest.importorskip("torch")
    plan = small_plan()
    with Loader(plan, 1, 2, output="torch", device="cpu", micro_batches=2) as loader:
        _, parts = next(loader)
    for name, array in plan.batch(0, rank=1, world_size=2).items():
        assert torch.equal(torch.cat([part[name] for part in parts]), torch.from_numpy(array))


def test_a_transform_knows_step_and_row_and_so_is_the_same_for_all_ranks():
    def number(batch: Batch, *, step: int, first_row: int) -> Batch:
        rows = first_row + np.arange(len(batch.token_ids))
        return Batch(batch, marks=1000 * step + rows)

    def marks(world_size: int) -> list[int]:
        parts: list[int] = []
        for rank in range(world_size):
            loader = Loader(small_plan(), rank, world_size, start_step=7, transform=number)
            parts += take(loader, 1)[0][1].marks.tolist()
            loader.close()
        return parts

    assert marks(1) == marks(3) == list(range(7000, 7012))


def test_an_interrupt_inside_the_loader_mixes_up_no_steps(monkeypatch: pytest.MonkeyPatch):
    plan = small_plan()
    loader = Loader(plan)
    take(loader, 2)

    def interrupt(batch: Batch) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(loader._delivery, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(loader)
    step, batch = next(loader)
    assert (step, batch.token_ids.tolist()) == (2, plan.batch(2).token_ids.tolist())
    loader.close()
