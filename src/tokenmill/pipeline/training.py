"""Training a tokenizer: words counted over units, added up, merged, written in every form."""

from __future__ import annotations

import math
import resource
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenmill.config import resolve
from tokenmill.engine import Engine, LocalEngine, ProcessEngine, resolve_workers
from tokenmill.errors import ConfigError
from tokenmill.files import atomic_write, exclusive_lock, storage_error
from tokenmill.folder import open_folder
from tokenmill.pipeline.cluster_engine import engine_on, opening_cluster
from tokenmill.pipeline.count_words import (
    CountReceipt,
    CountTask,
    SumReceipt,
    SumTask,
    add_up_part,
    choose_words,
    count_unit,
    finished_part,
    finished_unit,
    held_out_path,
    read_held_out,
    total_words,
)
from tokenmill.pipeline.plan import RECORD_NAME, RunRecord, check_same_run, choose_unit_bytes
from tokenmill.pipeline.train_memory import MemoryPlan
from tokenmill.pipeline.train_settings import NUM_BYTES, TrainSettings
from tokenmill.pipeline.word_files import NUM_PARTS
from tokenmill.progress import Event, Report, silent
from tokenmill.sources import Unit, cut_units, find_files
from tokenmill.store import RUN_FOLDER
from tokenmill.tokenizer import (
    ByteLevelBpe,
    Merge,
    Tokenizer,
    WordCounts,
    build_bpe,
    can_compile,
    export,
    has_fast_counter,
    load_tokenizer,
    named_pattern,
    tokenizer_from_bpe,
    train_merges,
)

REPORT_NAME = "report.json"
_WORTH_COMPILING = 32 << 20
"""Bytes of input; less is done with numpy before code that is not yet compiled would be."""
_THREADS_PER_PROCESS = 2
"""Threads of compiled code that one interpreter keeps fed with documents."""
_WORDS_PER_PROCESS = 2_000_000  # fewer are added up here before a process would have started
_SHOWN_TOKENS = 20
_HELD_OUT_BATCH = 256

OnMerge = Callable[[int, Merge], None]


class TrainReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a training run did; `report.json`."""

    vocab_size: int
    wanted_vocab_size: int
    num_merges: int
    stopped_early: bool
    """No pair was left that occurs `min_count` times."""
    fingerprint: str
    special_tokens: dict[str, int]
    pattern: str
    tie_break: str
    num_documents: int
    num_bytes: int
    num_rejected: int
    num_words: int
    """Distinct words that the merges were found from."""
    num_word_occurrences: int
    lowest_word_count: int
    """Words that occur less often were left out: more than 1 when the memory was too small."""
    num_words_left_out: int
    num_occurrences_left_out: int
    last_pair_count: int
    """How often the last merged pair occurred."""
    held_out: dict[str, Any]
    longest_tokens: list[str]
    seconds: dict[str, float]
    peak_memory_mib: int
    settings: dict[str, Any]


def train_tokenizer(
    sources: str | Path | Iterable[str | Path],
    output: str | Path,
    *,
    report: Report = silent,
    on_merge: OnMerge | None = None,
    **settings: Any,
) -> Tokenizer:
    """Train a byte-level BPE on `sources`, write it into the folder `output`, and load it.

    `settings` are the fields of `TrainSettings`: vocab_size, special, pattern and so on. Calling it
    again continues an interrupted run; on a complete one it only loads the tokenizer.
    """
    several = [sources] if isinstance(sources, str | Path) else list(sources)
    layer = {**settings, "sources": [str(source) for source in several]}
    train(resolve(TrainSettings, layer), Path(output), report=report, on_merge=on_merge)
    return load_tokenizer(Path(output).absolute())


def train(
    settings: TrainSettings,
    output: Path,
    *,
    report: Report = silent,
    on_merge: OnMerge | None = None,
) -> TrainReport:
    """Train into the folder `output`, or continue where an earlier run stopped."""
    files = find_files(settings.source_settings())
    total_bytes = sum(file.size for file in files)
    unit_bytes = settings.unit_bytes or choose_unit_bytes(4 * total_bytes)
    units = cut_units(files, unit_bytes=unit_bytes)
    record = RunRecord(
        settings=settings.content(),
        unit_bytes=unit_bytes,
        dtype="",
        bos_id=None,
        eos_id=None,
        fingerprint="",
        tokenizer_file="",
        num_units=len(units),
        total_bytes=total_bytes,
        files=files,
    )
    try:
        _prepare_folder(output)
        with exclusive_lock(output / RUN_FOLDER / "lock"):
            _check_record(record, output)
            if (output / REPORT_NAME).exists():
                return read_report(output)
            with opening_cluster(settings, count_unit) as cluster:
                run = TrainRun(settings, output, report=report, total_bytes=total_bytes)
                if cluster is not None:
                    # no second attempts: both would write the same files
                    folder = open_folder(output)
                    run.cluster = engine_on(cluster, settings, folder, late_seconds=math.inf)
                run.count(units)
                return run.finish(on_merge)
    except OSError as error:
        raise storage_error(error) from error


def read_report(output: Path) -> TrainReport:
    """Read the report of a finished run."""
    return msgspec.json.decode((output / REPORT_NAME).read_bytes(), type=TrainReport)


class TrainRun:
    """The driver of a training run; its state is what is on disk."""

    def __init__(
        self, settings: TrainSettings, output: Path, *, report: Report, total_bytes: int
    ) -> None:
        self.settings, self.output, self.report = settings, output, report
        self.cluster: Engine | None = None
        is_large = total_bytes >= _WORTH_COMPILING
        self.compiled = is_large and can_compile()
        if is_large and not self.compiled:
            slow = "without numba this takes some times as long: pip install 'tokenmill[fast]'"
            report(Event(stage="count", message=slow))
        has_threads = self.compiled and has_fast_counter(named_pattern(settings.pattern))
        self.memory = MemoryPlan(
            memory_mib=settings.memory_mib,
            wanted_workers=resolve_workers(settings.workers),
            threads_per_process=_THREADS_PER_PROCESS if has_threads else 1,
        )
        self.receipts: dict[int, CountReceipt] = {}
        self.seconds: dict[str, float] = {}
        self._total, self._num_units = total_bytes, 0
        self._started = time.monotonic()

    def count(self, units: list[Unit]) -> None:
        """Count the words of all units that have no receipt yet."""
        self._num_units = len(units)
        left: list[CountTask] = []
        for unit in units:
            receipt = finished_unit(self.output, unit.index)
            if receipt is None:
                left.append(self._count_task(unit))
            else:
                self._note(receipt)
        if len(left) < len(units):
            done = f"continuing: {len(units) - len(left):,} of {len(units):,} units were counted"
            self.report(Event(stage="count", message=done))
        if self.memory.workers < self.memory.wanted_workers:
            fewer = f"{self.memory.workers:,} workers of {self.memory.wanted_workers:,}"
            why = f"{fewer}: there is no more room in {self.settings.memory_mib:,} MiB of memory"
            self.report(Event(stage="count", message=why))
        for receipt in self._run(count_unit, left, num_processes=self.memory.processes):
            self._note(receipt)
        self._lap("count")

    def _count_task(self, unit: Unit) -> CountTask:
        return CountTask(
            output=str(self.output),
            unit=unit,
            fail_on_reject=self.settings.on_error == "fail",
            memory=self.memory.table_bytes,
            compiled=self.compiled,
        )

    def finish(self, on_merge: OnMerge | None) -> TrainReport:
        """Add up the counts, find the merges, and write everything; the report comes last."""
        sums = self._add_up()
        lowest, *left_out = choose_words(
            total_words(self.output, sums), max_bytes=self.memory.word_bytes
        )
        words = _keep_words(total_words(self.output, sums), lowest)
        self._lap("add_up")
        if not len(words.counts):
            raise ConfigError(
                "the sources hold no text to train on",
                hint="check the format and the text field",
            )
        merges = self._merge(words, on_merge)
        self._lap("merge")
        bpe = build_bpe(
            merges,
            self.settings.special,
            pattern=named_pattern(self.settings.pattern),
            special_first=self.settings.special_first,
        )
        for name, data in export(bpe, "all").items():
            with atomic_write(self.output / name) as file:
                file.write(data)
        made = self._make_report(bpe, merges, words=words, left_out=(lowest, *left_out))
        with atomic_write(self.output / REPORT_NAME) as file:
            file.write(msgspec.json.format(msgspec.json.encode(made)) + b"\n")
        for folder in ("units", "sums"):
            shutil.rmtree(self.output / RUN_FOLDER / folder, ignore_errors=True)
        return made

    def _add_up(self) -> list[SumReceipt]:
        tasks: list[SumTask] = []
        done: list[SumReceipt] = []
        for part in range(NUM_PARTS):
            receipt = finished_part(self.output, part)
            if receipt is not None:
                done.append(receipt)
                continue
            tasks.append(
                SumTask(
                    output=str(self.output),
                    part=part,
                    units=sorted(self.receipts),
                    memory=self.memory.sum_bytes,
                    compiled=self.compiled,
                )
            )
        num_words = sum(s.num_words for r in self.receipts.values() for s in r.segments)
        num_processes = min(self.memory.processes, -(-num_words // _WORDS_PER_PROCESS))
        done += self._run(add_up_part, tasks, num_processes=num_processes)
        return sorted(done, key=lambda receipt: receipt.part)

    def _merge(self, words: WordCounts, on_merge: OnMerge | None) -> list[Merge]:
        wanted = self.settings.vocab_size - NUM_BYTES - len(self.settings.special)

        def note(index: int, merge: Merge) -> None:
            if on_merge is not None:
                on_merge(index, merge)

        merges = train_merges(
            words,
            wanted,
            tie_break=self.settings.tie_break,
            min_count=self.settings.min_count,
            on_merge=note,
            compiled=self.compiled,
        )
        if len(merges) < wanted:
            found = self.settings.vocab_size - wanted + len(merges)
            message = (
                f"stopped at {found:,} of {self.settings.vocab_size:,} ids: no pair is left that "
                f"occurs {self.settings.min_count:,} times"
            )
            self.report(Event(stage="merge", message=message))
        return merges

    def _run(
        self, function: Callable[[Any], Any], tasks: list[Any], *, num_processes: int
    ) -> Iterator[Any]:
        """Run tasks on a cluster, in worker processes, or here where one suffices."""
        num_processes, num_threads = min(num_processes, len(tasks)), self.memory.threads
        if self.cluster is not None:
            results = self.cluster.run(function, tasks)
        elif num_processes > 1:
            results = ProcessEngine(num_processes, num_threads=num_threads).run(function, tasks)
        else:
            results = LocalEngine(num_threads).run(function, tasks)
        try:
            yield from results
        finally:
            results.close()

    def _note(self, receipt: CountReceipt) -> None:
        self.receipts[receipt.unit] = receipt
        self.report(
            Event(
                stage="count",
                done=self._total * len(self.receipts) // max(self._num_units, 1),
                total=self._total,
                num_documents=sum(r.num_documents for r in self.receipts.values()),
                num_rejected=sum(r.num_rejected for r in self.receipts.values()),
            )
        )

    def _lap(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = round(now - self._started, 3)
        self._started = now

    def _make_report(
        self,
        bpe: ByteLevelBpe,
        merges: list[Merge],
        *,
        words: WordCounts,
        left_out: tuple[int, ...],
    ) -> TrainReport:
        tokenizer = tokenizer_from_bpe(bpe, str(self.output))
        longest = sorted(bpe.tokens.values(), key=lambda token: (-len(token), token))
        held_out = measure_compression(tokenizer, self._held_out())
        self._lap("write")
        receipts = self.receipts.values()
        peaks = [resource.getrusage(who).ru_maxrss for who in (0, resource.RUSAGE_CHILDREN)]
        return TrainReport(
            vocab_size=bpe.num_ids,
            wanted_vocab_size=self.settings.vocab_size,
            num_merges=len(merges),
            stopped_early=bpe.num_ids < self.settings.vocab_size,
            fingerprint=tokenizer.fingerprint,
            special_tokens=dict(tokenizer.special_tokens),
            pattern=bpe.patterns[0],
            tie_break=self.settings.tie_break,
            num_documents=sum(receipt.num_documents for receipt in receipts),
            num_bytes=sum(receipt.num_bytes for receipt in receipts),
            num_rejected=sum(receipt.num_rejected for receipt in receipts),
            num_words=len(words.counts),
            num_word_occurrences=int(words.counts.sum()),
            lowest_word_count=left_out[0],
            num_words_left_out=left_out[1],
            num_occurrences_left_out=left_out[2],
            last_pair_count=merges[-1].count if merges else 0,
            held_out=held_out,
            longest_tokens=[repr(token)[2:-1] for token in longest[:_SHOWN_TOKENS]],
            seconds=self.seconds,
            peak_memory_mib=max(peaks) // 1024,
            settings=self.settings.content(),
        )

    def _held_out(self) -> Iterator[str]:
        for unit in sorted(self.receipts):
            yield from read_held_out(held_out_path(self.output, unit))


def measure_compression(tokenizer: Tokenizer, documents: Iterable[str]) -> dict[str, Any]:
    """Return how many bytes a token holds on average over documents."""
    num_documents = num_bytes = num_tokens = 0
    batch: list[str] = []

    def flush() -> None:
        nonlocal num_documents, num_bytes, num_tokens
        num_documents += len(batch)
        num_bytes += sum(len(text.encode()) for text in batch)
        num_tokens += len(tokenizer.encode_batch(batch)[0]) if batch else 0
        batch.clear()

    for document in documents:
        batch.append(document)
        if len(batch) == _HELD_OUT_BATCH:
            flush()
    flush()
    return {
        "num_documents": num_documents,
        "num_bytes": num_bytes,
        "num_tokens": num_tokens,
        "bytes_per_token": round(num_bytes / num_tokens, 4) if num_tokens else None,
    }


def _keep_words(tables: Iterator[WordCounts], lowest: int) -> WordCounts:
    """Put the words of all parts that occur often enough into one table."""
    data: list[bytes] = []
    lengths: list[NDArray[np.uint32]] = []
    counts: list[NDArray[np.int64]] = []
    for table in tables:
        kept = table.select(table.counts >= lowest)
        data.append(kept.data)
        lengths.append(kept.lengths)
        counts.append(kept.counts)
    return WordCounts(
        data=b"".join(data),
        lengths=np.concatenate([np.empty(0, dtype=np.uint32), *lengths]),
        counts=np.concatenate([np.empty(0, dtype=np.int64), *counts]),
    )


def _prepare_folder(output: Path) -> None:
    """Make the output folder, unless something else lives there."""
    if output.exists() and not output.is_dir():
        raise ConfigError(f"{output}: a file, expected a folder to write the tokenizer into")
    ours = (output / RUN_FOLDER).is_dir()
    if output.is_dir() and not ours and any(output.iterdir()):
        raise ConfigError(
            f"{output}: not empty and not a training run", hint="choose an empty or new folder"
        )
    for name in ("units", "sums"):
        (output / RUN_FOLDER / name).mkdir(parents=True, exist_ok=True)


def _check_record(record: RunRecord, output: Path) -> None:
    """Make sure that what is in the folder was begun with the same settings and input."""
    path = output / RUN_FOLDER / RECORD_NAME
    if path.exists():
        before = msgspec.json.decode(path.read_bytes(), type=RunRecord)
        check_same_run(before, record, output=output)
    else:
        with atomic_write(path) as file:
            file.write(msgspec.json.encode(record))
