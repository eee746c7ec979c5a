"""A data loader with the interface of torchtitan, on a plan: pairs of inputs and labels.

torchtitan wants an iterable of `({"input": ids}, labels)` with `state_dict` and `load_state_dict`.
Give `build_dataloader` to its train spec as `build_dataloader_fn`; run here, it shows two batches:

tokenmill tokenize corpus.txt -o store && python examples/torchtitan_loader.py store
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tokenmill.dataset import Loader, Plan, Source


class PlanDataLoader:
    """The part of a plan for one data-parallel rank. A resume may have another number of ranks."""

    def __init__(self, plan: Plan, rank: int, world_size: int) -> None:
        self.loader = Loader(plan, rank, world_size, output="torch")

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        for _, batch in self.loader:
            yield {"input": batch.token_ids}, batch.labels

    def state_dict(self) -> dict[str, Any]:
        """Return which step comes next, under 1 KB."""
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.loader.load_state_dict(state_dict)


def build_dataloader(
    dp_world_size: int, dp_rank: int, tokenizer: Any, job_config: Any, **_: Any
) -> PlanDataLoader:
    """Build the loader from torchtitan's own settings; `dataset_path` names the store."""
    del tokenizer  # the store holds ids
    training = job_config.training
    plan = Plan(
        sources=(Source(path=training.dataset_path),),
        seq_len=training.seq_len,
        batch_size=training.local_batch_size * dp_world_size,
        seed=training.seed or 0,
    )
    return PlanDataLoader(plan, dp_rank, dp_world_size)


def main() -> None:
    """Read two batches, and the third after a resume."""
    plan = Plan(sources=(Source(path=sys.argv[1]),), seq_len=64, batch_size=4)
    loader = PlanDataLoader(plan, 0, 1)
    batches = iter(loader)
    for _ in range(2):
        inputs, labels = next(batches)
        print("inputs", tuple(inputs["input"].shape), "labels", tuple(labels.shape))
    again = PlanDataLoader(plan, 0, 1)
    again.load_state_dict(loader.state_dict())
    same = (next(iter(again))[1] == next(batches)[1]).all()
    print("the third batch after a resume is the same:", bool(same))


if __name__ == "__main__":
    main()
