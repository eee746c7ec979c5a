"""What a driver does for 100,000 units on 1,000 workers, without the work itself.

The input is 1,000 sparse files of 100 units each, 6.7 TB by their sizes. Everything that a driver
does for a run on Ray is done by the code that does it: finding files, cutting units, the record on
disk, handing out orders as JSON, settling accounts, laying out shards, the journal, the metadata.
Only at the lowest seam, in place of the cluster, stands an executor that answers every order at
once with a made-up receipt, as if 1,000 cores had run it. What tasks leave on disk is not written,
so removing parts finds nothing; the record and the metadata are. `cpu_seconds` is what the
process took in all, with loading the tokenizer and making sparse files: other load hardly shows.

    python benchmarks/plan_scale.py
    python benchmarks/plan_scale.py --units 10000 --workers 100
"""

from __future__ import annotations

import argparse
import os
import queue
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from measure import report
from tokenmill.engine import RayEngine
from tokenmill.engine.attempts import Ended
from tokenmill.engine.cluster_worker import Account, decode_order
from tokenmill.engine.protocol import Answer
from tokenmill.folder import open_folder
from tokenmill.pipeline.assemble import ShardTask
from tokenmill.pipeline.context import RunContext
from tokenmill.pipeline.journal import FinishedShard, Journal
from tokenmill.pipeline.parts import Receipt, SourceCount
from tokenmill.pipeline.plan import RunPlan, make_plan, plan_record
from tokenmill.pipeline.run import Run
from tokenmill.pipeline.settings import TokenizeSettings
from tokenmill.pipeline.unit import UnitTask
from tokenmill.pipeline.work import Task
from tokenmill.progress import silent
from tokenmill.store import FileEntry, ShardEntry, write_tokenizer
from tokenmill.store.format import BLOCKS_DTYPE, DOCS_DTYPE, npy_bytes, num_blocks
from tokenmill.tokenizer import Tokenizer, load_tokenizer

GOAL_SECONDS = 10.0
GOAL_MB = 500
UNIT_BYTES = 64 << 20
UNITS_PER_FILE = 100
TOKENS_PER_UNIT = 16_777_216
PIECES_PER_UNIT = 16
TOKENS_PER_DOCUMENT = 1024
DOCUMENTS_PER_UNIT = TOKENS_PER_UNIT // TOKENS_PER_DOCUMENT

decode_task = msgspec.json.Decoder(Task).decode


class Imagined:
    """An executor of `num_cpus` cores that need no time: attempts end in the order they came."""

    def __init__(self, num_cpus: int) -> None:
        self.inbox: queue.SimpleQueue[Ended] = queue.SimpleQueue()
        self._num_cpus = num_cpus
        self.num_orders = 0
        self.seconds = self.cpu_seconds = 0.0
        """Time spent here, which is not the driver's."""

    def submit(self, order: bytes, *, elsewhere: bool) -> int:
        """Answer an order at once."""
        del elsewhere
        started, cpu_started = time.perf_counter(), time.process_time()
        task = decode_task(decode_order(order).request.task)
        made = _shard(task) if isinstance(task, ShardTask) else _receipt(task)
        answer = Answer(0, result=msgspec.Raw(msgspec.json.encode(made)))
        account = Account(answer=answer, seconds=1.0, node="node-17")
        number = self.num_orders
        self.num_orders += 1
        self.inbox.put(Ended(number, account=msgspec.json.encode(account)))
        self.seconds += time.perf_counter() - started
        self.cpu_seconds += time.process_time() - cpu_started
        return number

    def cancel(self, attempt: int, *, force: bool) -> None:
        """Do nothing: what was ordered has been done."""

    def num_cpus(self) -> int:
        """Return the number of cores."""
        return self._num_cpus

    def num_idle_cpus(self) -> int:
        """Return none: all of them are busy as far as one can see."""
        return 0


def main() -> None:
    """Measure, and print time and memory."""
    arguments = _arguments()
    cpu_started = time.process_time()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        laps = drive(Path(folder), num_units=arguments.units, num_workers=arguments.workers)
        cpu_seconds = time.process_time() - cpu_started - laps.pop("imagined")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    seconds = sum(laps[name] for name in ("plan", "begin", "run"))
    report(
        "plan_scale",
        units=arguments.units,
        workers=arguments.workers,
        shards=laps.pop("shards"),
        **{f"{name}_seconds": lap for name, lap in laps.items()},
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        peak_mb=peak,
        goal_seconds=GOAL_SECONDS,
        goal_mb=GOAL_MB,
        reached=seconds <= GOAL_SECONDS and peak <= GOAL_MB,
    )


def drive(
    folder: Path, *, num_units: int, num_workers: int, shard_tokens: int = 100_000_000
) -> dict[str, float]:
    """Do all that a driver does; return the seconds of its stages."""
    sources = folder / "input"
    sources.mkdir()
    for number in range(-(-num_units // UNITS_PER_FILE)):
        path = sources / f"{number:05d}.txt"
        path.touch()
        os.truncate(path, UNIT_BYTES * min(UNITS_PER_FILE, num_units - number * UNITS_PER_FILE))
    settings = TokenizeSettings(
        sources=(str(sources),), unit_bytes=UNIT_BYTES, shard_tokens=shard_tokens, engine="ray"
    )
    laps: dict[str, float] = {}
    tokenizer = load_tokenizer("gpt2")
    plan = _lap(laps, "plan", lambda: make_plan(settings, tokenizer))
    assert len(plan.units) == num_units
    journal = Journal(open_folder(folder / "store"))
    executor = Imagined(num_workers)
    run = _lap(laps, "begin", lambda: _begin(plan, tokenizer, journal=journal, executor=executor))
    metadata = _lap(laps, "run", run.finish)
    assert metadata.num_tokens == num_units * TOKENS_PER_UNIT
    laps["shards"] = sum(len(split.shards) for split in metadata.splits.values())
    laps["run"] -= executor.seconds
    laps["imagined"] = executor.cpu_seconds
    return laps


def _begin(plan: RunPlan, tokenizer: Tokenizer, *, journal: Journal, executor: Imagined) -> Run:
    journal.create()
    journal.write_record(plan_record(plan))
    write_tokenizer(journal.folder, tokenizer.definition_name, data=tokenizer.definition)
    context = RunContext(
        folder=journal.folder,
        settings=plan.settings,
        files=plan.files,
        tokenizer=tokenizer,
        dtype=np.dtype(plan.dtype),
        bos_id=plan.bos_id,
        eos_id=plan.eos_id,
    )
    return Run(plan, context, journal=journal, report=silent, engine=RayEngine(executor))


def _lap(laps: dict[str, float], name: str, function: Callable[[], Any]) -> Any:
    started = time.perf_counter()
    made = function()
    laps[name] = time.perf_counter() - started
    return made


def _receipt(task: Any) -> Receipt:
    """Return what a unit of ordinary text would give."""
    assert isinstance(task, UnitTask)
    unit = task.unit
    count = SourceCount(
        unit.spans[0].file, "train", DOCUMENTS_PER_UNIT, TOKENS_PER_UNIT, UNIT_BYTES
    )
    piece = TOKENS_PER_UNIT // PIECES_PER_UNIT
    return Receipt(
        unit=unit.index,
        attempt=f"{unit.index:012x}",
        num_tokens=TOKENS_PER_UNIT,
        num_documents=DOCUMENTS_PER_UNIT,
        pieces=[(piece, (1 << 63) + unit.index * 16 + i) for i in range(PIECES_PER_UNIT)],
        runs=[],
        docs_hash=unit.index,
        counts=[count],
        num_blank=0,
        rejects={},
        rejects_by_source={},
        rejects_hash=0,
        seconds=1.0,
    )


def _shard(task: ShardTask) -> FinishedShard:
    layout = task.layout
    stop = layout.start + layout.num_tokens
    num_documents = stop // TOKENS_PER_DOCUMENT - layout.start // TOKENS_PER_DOCUMENT
    file_bytes = npy_bytes(np.dtype(np.uint16), layout.num_tokens)
    entry = ShardEntry(
        num_tokens=layout.num_tokens,
        num_documents=num_documents,
        shard=_file(file_bytes),
        docs=_file(npy_bytes(DOCS_DTYPE, num_documents)),
        blocks=_file(npy_bytes(BLOCKS_DTYPE, num_blocks(file_bytes))),
    )
    return FinishedShard(layout.split, layout.index, layout.start, entry)


def _file(num_bytes: int) -> FileEntry:
    return FileEntry(bytes=num_bytes, sha256=f"{num_bytes:064x}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the driver of a very large run.")
    parser.add_argument("--units", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--folder", type=Path, help="where to write (default: the system's)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
