"""The tasks of training: count the words of one unit; add up one part of all words."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import xxhash

from tokenmill.config import resolve
from tokenmill.engine import check_stop
from tokenmill.files import atomic_write
from tokenmill.pipeline.order import content_hash, split_threshold
from tokenmill.pipeline.plan import RECORD_NAME, RunRecord
from tokenmill.pipeline.train_settings import TrainSettings
from tokenmill.pipeline.unit import bad_document
from tokenmill.pipeline.word_files import (
    NUM_PARTS,
    Segment,
    are_whole,
    read_segment,
    write_parts,
    write_segment,
)
from tokenmill.sources import Unit, read_unit
from tokenmill.store import RUN_FOLDER
from tokenmill.tokenizer import (
    WORD_MEMORY,
    WordCounts,
    add_up,
    can_compile,
    make_counter,
    named_pattern,
)

R = TypeVar("R")

_HELD_OUT_BREAK = b"\xff"  # between documents; UTF-8 never holds it


class CountTask(msgspec.Struct, frozen=True, kw_only=True):
    """One unit of the run that trains into the folder `output`."""

    output: str
    unit: Unit
    fail_on_reject: bool
    memory: int
    """Bytes that the table of words may take before it is written out."""
    compiled: bool = False
    """Use compiled code, if it is there."""


class CountReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a unit held, and where its counts are."""

    unit: int
    segments: list[Segment]
    num_documents: int = 0
    num_bytes: int = 0
    num_held_out: int = 0
    held_checksum: str = ""
    """Of the file of documents that are kept back."""
    num_rejected: int = 0
    seconds: float = 0.0


class SumTask(msgspec.Struct, frozen=True, kw_only=True):
    """One part of all words, to be added up over the units."""

    output: str
    part: int
    units: list[int]
    memory: int
    compiled: bool = False


class SumReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Where the total counts of a part are."""

    part: int
    segments: list[Segment]


def unit_path(output: Path, unit: int) -> Path:
    """Return where the counts of a unit are; its receipt is beside them."""
    return output / RUN_FOLDER / "units" / f"{unit:06d}.words"


def sum_path(output: Path, part: int) -> Path:
    """Return where the total counts of a part are; its receipt is beside them."""
    return output / RUN_FOLDER / "sums" / f"{part:02d}.words"


def receipt_path(path: Path) -> Path:
    """Return where the receipt for a file of words is."""
    return path.with_suffix(".json")


def held_out_path(output: Path, unit: int) -> Path:
    """Return where the documents of a unit are that are kept back."""
    return output / RUN_FOLDER / "units" / f"{unit:06d}.held"


def count_unit(task: CountTask) -> CountReceipt:
    """Count the words of a unit; the receipt is written last."""
    started = time.monotonic()
    output = Path(task.output)
    settings, record = _open(task.output)
    compiled = task.compiled and can_compile()
    counter = make_counter(named_pattern(settings.pattern), compiled=compiled)
    threshold = split_threshold(settings.held_out)
    segments: list[Segment] = []
    checksum = xxhash.xxh3_128()
    totals = dict.fromkeys(("num_documents", "num_bytes", "num_held_out", "num_rejected"), 0)
    path = unit_path(output, task.unit.index)
    with (
        atomic_write(path, sync=False) as words,
        atomic_write(held_out_path(output, task.unit.index), sync=False) as held,
    ):
        for batch in read_unit(record.files, task.unit, settings.source_settings()):
            check_stop()
            if batch.rejects and task.fail_on_reject:
                raise bad_document(record.files[batch.file], batch.rejects[0])
            texts = batch.texts
            totals["num_rejected"] += len(batch.rejects)
            totals["num_documents"] += len(texts)
            totals["num_bytes"] += batch.num_bytes
            if threshold:
                kept_back = [content_hash([text]) < threshold for text in texts]
                for text in (text for text, back in zip(texts, kept_back, strict=True) if back):
                    totals["num_held_out"] += 1
                    kept = text.encode() + _HELD_OUT_BREAK
                    held.write(kept)
                    checksum.update(kept)
                texts = [text for text, back in zip(texts, kept_back, strict=True) if not back]
            counter.add(_without_specials(texts, settings.special))
            if counter.memory > task.memory:
                segments += write_parts(words, counter.take(), compiled=compiled)
        segments += write_parts(words, counter.take(), compiled=compiled)
    receipt = CountReceipt(
        unit=task.unit.index,
        segments=segments,
        held_checksum=checksum.hexdigest(),
        seconds=time.monotonic() - started,
        **totals,
    )
    _write_receipt(path, receipt)
    return receipt


def finished_unit(output: Path, unit: int) -> CountReceipt | None:
    """Return the receipt of a unit if its counts are there, as they were written."""
    path = unit_path(output, unit)
    receipt = _read_receipt(path, _COUNT_RECEIPTS)
    if receipt is None or not are_whole(path, receipt.segments):
        return None
    try:
        with held_out_path(output, unit).open("rb") as file:
            found = hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
    except FileNotFoundError:
        return None
    return receipt if found == receipt.held_checksum else None


def finished_part(output: Path, part: int) -> SumReceipt | None:
    """Return the receipt of a part if its total counts are there, as they were written."""
    path = sum_path(output, part)
    receipt = _read_receipt(path, _SUM_RECEIPTS)
    return receipt if receipt is not None and are_whole(path, receipt.segments) else None


def _read_receipt(path: Path, decoder: msgspec.json.Decoder[R]) -> R | None:
    try:
        return decoder.decode(receipt_path(path).read_bytes())
    except (FileNotFoundError, msgspec.DecodeError):
        return None


# made once: first use of a type by two threads is not safe
_COUNT_RECEIPTS = msgspec.json.Decoder(CountReceipt)
_SUM_RECEIPTS = msgspec.json.Decoder(SumReceipt)
_RECORDS = msgspec.json.Decoder(RunRecord)


def add_up_part(task: SumTask) -> SumReceipt:
    """Add up the counts of one part over all units, in as many rounds as its memory needs."""
    output = Path(task.output)
    places: list[tuple[Path, Segment]] = []
    for unit in task.units:
        path = unit_path(output, unit)
        receipt = _COUNT_RECEIPTS.decode(receipt_path(path).read_bytes())
        places += [(path, segment) for segment in receipt.segments if segment.part == task.part]
    needed = sum(s.num_words * WORD_MEMORY + s.num_bytes for _, s in places)
    num_shares = max(-(-needed // task.memory), 1)
    compiled = task.compiled and can_compile()
    path = sum_path(output, task.part)
    segments: list[Segment] = []
    with atomic_write(path, sync=False) as file:
        for share in range(num_shares):
            check_stop()
            tables = (read_segment(*place) for place in places)
            if num_shares > 1:
                tables = (_one_share(t, share, num_shares, compiled=compiled) for t in tables)
            total = add_up(tables, compiled=compiled)
            if len(total.counts):
                segments.append(write_segment(file, total, task.part))
    receipt = SumReceipt(part=task.part, segments=segments)
    _write_receipt(path, receipt)
    return receipt


def read_held_out(path: Path) -> Iterator[str]:
    """Yield the documents that were kept back from a unit."""
    rest = b""
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            *documents, rest = (rest + block).split(_HELD_OUT_BREAK)
            yield from (document.decode() for document in documents)


def _write_receipt(path: Path, receipt: msgspec.Struct) -> None:
    with atomic_write(receipt_path(path), sync=False) as file:
        file.write(msgspec.json.encode(receipt))


def _one_share(words: WordCounts, share: int, num_shares: int, *, compiled: bool) -> WordCounts:
    """Return those words of a part that a round adds up."""
    return words.select(words.hashes(compiled=compiled) // NUM_PARTS % num_shares == share)


def _without_specials(texts: list[str], specials: tuple[str, ...]) -> list[str]:
    """Cut texts where special tokens are, which then take no part in training."""
    if not any(special in text for special in specials for text in texts):
        return texts
    longest_first = sorted(specials, key=len, reverse=True)
    finder = re.compile("|".join(map(re.escape, longest_first)))
    return [piece for text in texts for piece in finder.split(text) if piece]


@lru_cache(maxsize=1)
def _open(output: str) -> tuple[TrainSettings, RunRecord]:
    data = (Path(output) / RUN_FOLDER / RECORD_NAME).read_bytes()
    record = _RECORDS.decode(data)
    return resolve(TrainSettings, record.settings), record


def total_words(output: Path, receipts: list[SumReceipt]) -> Iterator[WordCounts]:
    """Yield the totals of all parts."""
    for receipt in receipts:
        for segment in receipt.segments:
            yield read_segment(sum_path(output, receipt.part), segment)


def choose_words(tables: Iterator[WordCounts], *, max_bytes: int) -> tuple[int, int, int]:
    """Return the lowest count of words to keep within a number of bytes, and what goes.

    Each word counts as one byte more than it has. Returns (lowest count, words left out,
    occurrences left out); the rule depends on the total counts alone.
    """
    sizes: dict[int, int] = {}
    words: dict[int, int] = {}
    for table in tables:
        counts, inverse = np.unique(table.counts, return_inverse=True)
        num_bytes = np.bincount(inverse, weights=table.lengths + 1.0)
        num_words = np.bincount(inverse)
        for count, size, number in zip(
            counts.tolist(), num_bytes.tolist(), num_words.tolist(), strict=True
        ):
            sizes[count] = sizes.get(count, 0) + int(size)
            words[count] = words.get(count, 0) + number
    total, lowest = sum(sizes.values()), 1
    num_words = num_occurrences = 0
    for count in sorted(sizes):
        if total <= max_bytes:
            break
        total -= sizes[count]
        num_words += words[count]
        num_occurrences += words[count] * count
        lowest = count + 1
    return lowest, num_words, num_occurrences
