"""The one function that engines run for a tokenize run: it does whichever task it is given."""

from __future__ import annotations

from tokenmill.pipeline.assemble import ShardTask, assemble_shard
from tokenmill.pipeline.context import open_run
from tokenmill.pipeline.journal import FinishedShard, Journal
from tokenmill.pipeline.parts import Receipt
from tokenmill.pipeline.shuffled import ShuffledShardTask, assemble_shuffled
from tokenmill.pipeline.unit import UnitTask, tokenize_unit

Task = UnitTask | ShardTask | ShuffledShardTask


def work(task: Task) -> Receipt | FinishedShard:
    """Make a part from a unit, or a shard from parts, and leave a receipt for it.

    The receipt is left here, not by the driver, which would be busy with little else on a cluster.
    """
    if isinstance(task, UnitTask):
        return tokenize_unit(task)
    made = assemble_shard(task) if isinstance(task, ShardTask) else assemble_shuffled(task)
    Journal(open_run(task.output).folder).write_shard(made)
    return made
