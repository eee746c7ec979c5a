"""The one function that engines run for a tokenize run: it does whichever task it is given."""

from __future__ import annotations

from tokenmill.pipeline.assemble import ShardTask, assemble_shard
from tokenmill.pipeline.journal import FinishedShard
from tokenmill.pipeline.parts import Receipt
from tokenmill.pipeline.shuffled import ShuffledShardTask, assemble_shuffled
from tokenmill.pipeline.unit import UnitTask, tokenize_unit

Task = UnitTask | ShardTask | ShuffledShardTask


def work(task: Task) -> Receipt | FinishedShard:
    """Make a part from a unit, or a shard from parts."""
    if isinstance(task, UnitTask):
        return tokenize_unit(task)
    if isinstance(task, ShardTask):
        return assemble_shard(task)
    return assemble_shuffled(task)
