"""What an earlier attempt at a run left behind that can be trusted."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tokenmill.engine import Engine
from tokenmill.errors import DamageError
from tokenmill.pipeline.context import open_run
from tokenmill.pipeline.journal import FinishedShard, Journal
from tokenmill.pipeline.layout import SPLITS, Stream, split_tokens
from tokenmill.pipeline.parts import PARTS_FOLDER, Receipt, read_rejects
from tokenmill.pipeline.plan import RunPlan

Shards = dict[tuple[str, int], FinishedShard]


class CheckTask(msgspec.Struct, frozen=True):
    """One part to read against its checksums."""

    output: str
    unit: int
    tokens: bool
    """Whether the tokens are still needed, or only the list of rejects."""


def recover(
    plan: RunPlan, journal: Journal, *, engine: Engine
) -> tuple[dict[int, Receipt], Shards]:
    """Return the units and shards that are done, and remove what crashed attempts left.

    A unit whose part is needed but damaged or gone counts as not done. Parts are not synced to disk
    when they are written, so after a power loss their checksums decide. Where the folder keeps
    files whole, their sizes do.
    """
    receipts, shards = journal.read_receipts(), journal.read_shards()
    journal.clean(receipts.values())
    while True:
        needed = set(units_needed(plan, receipts, shards=shards))
        tasks = [
            CheckTask(journal.folder.place, unit, unit in needed)
            for unit, receipt in receipts.items()
            if unit in needed or receipt.rejects
        ]
        if journal.folder.keeps_whole:
            sizes, dtype = journal.folder.sizes(PARTS_FOLDER), np.dtype(plan.dtype)
            expected = (
                (task.unit, _sizes(receipts[task.unit], task, dtype=dtype)) for task in tasks
            )
            lost = [unit for unit, whole in expected if not whole.items() <= sizes.items()]
        else:
            lost = [unit for unit, whole in engine.run(check_part, tasks) if not whole]
        if not lost:
            return receipts, shards
        for unit in lost:  # then look again: a new gap can make other parts needed
            journal.drop_receipt(receipts.pop(unit))


def _sizes(receipt: Receipt, task: CheckTask, *, dtype: np.dtype[Any]) -> dict[str, int]:
    """Return what must be there of a unit: names without their folder, and sizes."""
    found: dict[str, int] = {}
    if task.tokens:
        found[receipt.part_name] = receipt.part_bytes(dtype)
    if receipt.rejects:
        found[receipt.rejects_name] = receipt.rejects_bytes
    return {name.removeprefix(f"{PARTS_FOLDER}/"): size for name, size in found.items()}


def check_part(task: CheckTask) -> tuple[int, bool]:
    """Tell whether what is left of a unit is what its receipt says."""
    run = open_run(task.output)
    try:
        part = run.part(task.unit) if task.tokens else None
        if part is not None:
            part.check()
        receipt = part.receipt if part is not None else run.receipt(task.unit)
        for _ in read_rejects(run.folder, receipt) if receipt.rejects else ():
            pass
    except DamageError:
        return task.unit, False
    return task.unit, True


def units_needed(plan: RunPlan, receipts: dict[int, Receipt], *, shards: Shards) -> list[int]:
    """Return the finished units whose tokens are not all in finished shards."""
    settings = plan.settings
    if settings.needs_all_parts or settings.max_tokens is not None:
        return sorted(receipts)
    streams = {split: Stream(split) for split in SPLITS}
    unit = 0
    while unit in receipts:
        for split, stream in streams.items():
            stream.extend(unit, split_tokens(receipts[unit].counts, split))
        unit += 1
    needed = {other for other in receipts if other > unit}
    for stream in streams.values():
        for layout in stream.take_shards(settings.shard_tokens, complete=unit == len(plan.units)):
            if (layout.split, layout.index) not in shards:
                needed.update(slot.unit for slot in layout.slots)
        needed.update(slot.unit for slot in stream.slots)
    return sorted(needed)
