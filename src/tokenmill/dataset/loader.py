"""Feed a plan to one rank of a run, with the next batches made in the background.

    with Loader(plan, rank, world_size) as loader:
        for step, batch in loader:
            ...

Threads make the batches: a process would have to send each through a pipe, which takes longer than
to make it. There are no shared memory segments, lock files, barriers or ranks with
special work. What is in flight is made again after a resume, so the state is one number.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from tokenmill.dataset.batch import Batch
from tokenmill.dataset.plan import Plan, rank_part
from tokenmill.dataset.resume import plan_state, resume_step
from tokenmill.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from types import TracebackType

Output = Literal["numpy", "torch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderStats:
    """What a loader has delivered since it was made, and what the consumer waited for it."""

    num_steps: int
    num_tokens: int
    """Inputs of this rank, padding included."""
    seconds: float
    """From the first request to the last delivery."""
    wait_seconds: float
    """Of these, how long the consumer stood still."""

    @property
    def tokens_per_second(self) -> float:
        """Inputs of this rank per second."""
        return self.num_tokens / self.seconds if self.seconds else 0.0


class Loader:
    """Iterates over the steps of a plan: pairs of a step and the part of its batch for one rank.

    Ranks take consecutive parts of each global batch. With `micro_batches` above one, a step gives
    a tuple of that many batches, whose rows together are the part of the rank.

    The loader ends with the run, or never if the plan has no `num_steps`. An error in the
    background is raised where its batch would have come. A loader that is let go of, closed or
    interrupted leaves no thread behind; after a fork, the child starts threads of its own.

    Args:
        start_step: The first step; the steps before it cost nothing.
        num_threads: How many batches are made at the same time. One is the fastest for data in
            memory; more hide the waiting for slow storage. 0 makes each when it is asked for.
        prefetch: How many batches may be made ahead, finished or not.
        output: Arrays of numpy or tensors of torch.
        device: Where tensors go; the copy overlaps with what the consumer does.
        pin_memory: Whether tensors go through page-locked memory; by default if there is a device
            that gains by it.
        transform: Changes each batch in the background, before it becomes tensors.
    """

    def __init__(  # noqa: PLR0913  (one place to say how a rank is fed)
        self,
        plan: Plan,
        rank: int = 0,
        world_size: int = 1,
        *,
        start_step: int = 0,
        micro_batches: int = 1,
        num_threads: int = 1,
        prefetch: int = 4,
        output: Output = "numpy",
        device: Any = None,
        pin_memory: bool | None = None,
        transform: Transform | None = None,
    ) -> None:
        self.plan = plan
        self.rank = rank
        self.world_size = world_size
        self.num_threads = num_threads
        self.prefetch = prefetch
        self._stop = plan.total_steps
        self._check(start_step, micro_batches=micro_batches, output=output)
        self.micro_batches = micro_batches
        self._delivery = _choose_delivery(output, device=device, pin_memory=pin_memory)
        self._make = partial(_make, plan, (rank, world_size), transform, self._delivery)
        self._next = self._asked = start_step
        self._pending: deque[tuple[int, Future[Batch]]] = deque()
        self._threads: ThreadPoolExecutor | None = None
        self._process = os.getpid()
        self._closed = False
        self._num_steps = self._num_tokens = 0
        self._first_request = self._last_delivery = self._waited = 0.0

    @property
    def next_step(self) -> int:
        """The step that is delivered next."""
        return self._next

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> tuple[int, Any]:
        step = self._next
        if self._closed or (self._stop is not None and step >= self._stop):
            raise StopIteration
        begin = time.perf_counter()
        if not self._num_steps:
            self._first_request = begin
        batch = self._take(step)
        self._delivery.receive(batch)
        self._next = step + 1
        self._last_delivery = time.perf_counter()
        self._waited += self._last_delivery - begin
        self._num_steps += 1
        self._num_tokens += self.plan.timeline.segment(step).step_tokens // self.world_size
        self._ask()
        return step, batch if self.micro_batches == 1 else split_batch(batch, self.micro_batches)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs: which plan, and the next step. Under 1 KB as JSON."""
        return plan_state(self.plan, self._next)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a loader of the same plan stood, with any number of ranks and threads.

        The plan may have been amended since, as long as the steps before are the same.
        """
        self._next = resume_step(self.plan, state)
        self._forget()

    def stats(self) -> LoaderStats:
        """Return what was delivered so far."""
        return LoaderStats(
            num_steps=self._num_steps,
            num_tokens=self._num_tokens,
            seconds=self._last_delivery - self._first_request,
            wait_seconds=self._waited,
        )

    def close(self) -> None:
        """Stop the threads; nothing more is delivered."""
        self._closed = True
        self._forget()
        if self._threads is not None and self._process == os.getpid():
            self._threads.shutdown(wait=True, cancel_futures=True)
        self._threads = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _take(self, step: int) -> Batch:
        if not self.num_threads:
            return self._make(step)
        if self._process != os.getpid():  # a fork has the memory of its parent, not its threads
            self._process, self._threads = os.getpid(), None
            self._pending.clear()
            self._asked = step
        if self._pending and self._pending[0][0] != step:  # an interrupt came between two lines
            self._forget()
        self._ask()
        batch = self._pending[0][1].result()  # raises what happened in the background
        self._pending.popleft()
        return batch

    def _ask(self) -> None:
        """Let batches be made until enough of them are under way."""
        if not self.num_threads:
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.num_threads, thread_name_prefix="loader")
        while len(self._pending) < self.prefetch and (
            self._stop is None or self._asked < self._stop
        ):
            # The threads must not know the loader, or it could never be let go of.
            self._pending.append((self._asked, self._threads.submit(self._make, self._asked)))
            self._asked += 1

    def _forget(self) -> None:
        while self._pending:
            self._pending.pop()[1].cancel()
        self._asked = self._next

    def _check(self, start_step: int, *, micro_batches: int, output: str) -> None:
        if output not in ("numpy", "torch"):
            raise ConfigError(f"output is {output!r}, expected numpy or torch")
        at_least = {
            "start_step": (start_step, 0),
            "micro_batches": (micro_batches, 1),
            "num_threads": (self.num_threads, 0),
            "prefetch": (self.prefetch, 1),
        }
        for name, (value, least) in at_least.items():
            if value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        for segment in self.plan.timeline.segments:
            if segment.stop is not None and segment.stop <= start_step:
                continue
            part = rank_part(segment.batch_size, rank=self.rank, world_size=self.world_size)
            size = part.stop - part.start
            if size % micro_batches:
                raise ConfigError(
                    f"the {size} rows of a rank cannot be cut into {micro_batches} micro-batches "
                    f"(from step {segment.start} on, batch_size is {segment.batch_size} for "
                    f"{self.world_size} ranks)",
                )


class Transform(Protocol):
    """Changes a batch; for the same sequence of batches, by nothing but what it is given."""

    def __call__(self, batch: Batch, *, step: int, first_row: int) -> Batch:
        """Return the changed batch.

        `first_row` is where its rows begin in the global batch of the step: what depends on step
        and row alone is the same for any number of ranks. Every array has one item a row.
        """
        ...


class Delivery(Protocol):
    """Makes of a batch of arrays what the consumer gets."""

    def prepare(self, batch: Batch) -> Batch:
        """Return what the consumer gets; runs in the background."""
        ...

    def receive(self, batch: Batch) -> None:
        """Take note that the consumer gets it now; runs in the thread of the consumer."""
        ...


class _Arrays:
    """Gives the consumer the arrays themselves."""

    def prepare(self, batch: Batch) -> Batch:
        return batch

    def receive(self, batch: Batch) -> None:
        pass


def split_batch(batch: Batch, num_parts: int) -> tuple[Batch, ...]:
    """Cut a batch into parts of as many rows each; their arrays are views."""
    size = len(batch.token_ids) // num_parts
    parts = [slice(number * size, (number + 1) * size) for number in range(num_parts)]
    return tuple(Batch({name: array[part] for name, array in batch.items()}) for part in parts)


def _make(
    plan: Plan,
    share: tuple[int, int],
    transform: Transform | None,
    delivery: Delivery,
    step: int,
) -> Batch:
    """Make what one rank gets at a step."""
    rank, world_size = share
    batch = plan.batch(step, rank=rank, world_size=world_size)
    if transform is not None:
        first_row = plan.rank_part(step, rank=rank, world_size=world_size).start
        batch = transform(batch, step=step, first_row=first_row)
    return delivery.prepare(batch)


def _choose_delivery(output: Output, *, device: Any, pin_memory: bool | None) -> Delivery:
    if output == "numpy":
        if device is not None or pin_memory:
            raise ConfigError("device and pin_memory are for output='torch'")
        return _Arrays()
    try:
        from tokenmill.dataset.torch import TensorDelivery
    except ImportError as error:
        raise MissingDependencyError(
            "torch", extra="train", purpose="a loader of tensors"
        ) from error
    return TensorDelivery(device=device, pin_memory=pin_memory)
