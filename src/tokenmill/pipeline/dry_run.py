"""`--dry-run`: what a run would read, write and need, from the file list and a small sample."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

import msgspec

from tokenmill.engine import resolve_workers
from tokenmill.pipeline.arrangement import TASKS_AT_A_TIME, THREADS_PER_PROCESS
from tokenmill.pipeline.parts import PART_DOCS_DTYPE
from tokenmill.pipeline.plan import RunPlan, chosen_tokenizer, make_plan, source_settings
from tokenmill.pipeline.settings import MEBIBYTE, TokenizeSettings
from tokenmill.progress import count, duration
from tokenmill.remote import is_remote
from tokenmill.sources import read_unit
from tokenmill.store import DOCS_DTYPE
from tokenmill.tokenizer import Tokenizer

SAMPLE_UNITS = 16
SAMPLE_BYTES = 16 * MEBIBYTE
COMPRESSION_RATIO = 3.5
"""Text bytes for each byte of a compressed file: typical of prose, not measured."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would do. Numbers about text and tokens are estimates from a sample."""

    num_files: int
    num_bytes: int
    num_units: int
    num_documents: int
    num_tokens: int
    num_shards: int
    bytes_per_token: float
    disk_needed: int
    """Bytes at the peak: of the output, or on this machine if the output is in an object store."""
    disk_free: int
    seconds: float
    fits: bool

    def text(self) -> str:
        """Return the estimate as a few lines for people."""
        fits = "enough" if self.fits else "NOT ENOUGH"
        size = f"{count(self.num_bytes)}B in {self.num_units:,} units"
        return "\n".join(
            [
                f"files      {self.num_files:,}, {size}",
                f"documents  about {count(self.num_documents)}",
                f"tokens     about {count(self.num_tokens)}, {self.bytes_per_token:.2f} bytes each",
                f"shards     about {self.num_shards:,}",
                f"disk       about {count(self.disk_needed)}B needed at the peak, "
                f"{count(self.disk_free)}B free: {fits}",
                f"time       about {duration(self.seconds)}",
                "nothing was written; leave out --dry-run to begin",
            ]
        )


def estimate(settings: TokenizeSettings, output: str | Path) -> Estimate:
    """Estimate a run; reads at most 16 MiB of text and writes nothing."""
    tokenizer = chosen_tokenizer(settings)
    plan = make_plan(settings, tokenizer)
    documents, text_bytes, tokens, seconds = _sample(plan, tokenizer)
    expanded = plan.share * sum(
        file.size * _expansion(file.format, file.compression) for file in plan.files
    )
    scale = expanded / text_bytes if text_bytes else 0
    num_tokens, num_documents = round(tokens * scale), round(documents * scale)
    if settings.max_tokens is not None and num_tokens > settings.max_tokens:
        share = settings.max_tokens / num_tokens
        num_tokens, num_documents = settings.max_tokens, round(num_documents * share)
        seconds *= share
    itemsize = 2 if plan.dtype == "uint16" else 4
    store_bytes = num_tokens * itemsize + num_documents * DOCS_DTYPE.itemsize
    part_bytes = num_tokens * itemsize + num_documents * PART_DOCS_DTYPE.itemsize
    workers, needed, disk = resolve_workers(settings.workers), store_bytes + part_bytes, output
    if is_remote(str(output)):  # what passes over this machine's disk: some shards at a time
        shards = TASKS_AT_A_TIME * -(-workers // THREADS_PER_PROCESS)
        needed *= min(shards * settings.shard_tokens / max(num_tokens, 1), 1)
        disk = tempfile.gettempdir()
    free = shutil.disk_usage(_existing_parent(Path(disk))).free
    return Estimate(
        num_files=len(plan.files),
        num_bytes=plan.total_bytes,
        num_units=len(plan.units),
        num_documents=num_documents,
        num_tokens=num_tokens,
        num_shards=-(-num_tokens // settings.shard_tokens),
        bytes_per_token=round(text_bytes / tokens, 3) if tokens else 0.0,
        disk_needed=round(needed),
        disk_free=free,
        seconds=round(seconds * scale / workers, 1),
        fits=needed < free,
    )


def _sample(plan: RunPlan, tokenizer: Tokenizer) -> tuple[int, int, int, float]:
    """Return documents, text bytes, tokens and one core's seconds for a few batches."""
    documents = text_bytes = tokens = 0
    added = (plan.eos_id is not None) + (plan.bos_id is not None)
    started = time.perf_counter()
    step = max(len(plan.units) // SAMPLE_UNITS, 1)
    for unit in plan.units[::step]:
        for batch in read_unit(plan.files, unit, source_settings(plan.settings)):
            if batch.long_text is not None:  # its beginning stands for it
                texts = [next(batch.long_text.pieces())]
                batch.num_bytes = len(texts[0].encode())
            else:
                texts = batch.texts
            if texts:
                ids, _ = tokenizer.encode_batch(texts, allow_special=plan.settings.allow_special)
                documents += len(texts)
                text_bytes += batch.num_bytes
                tokens += len(ids) + len(texts) * added
                break
        if text_bytes > SAMPLE_BYTES:
            break
    return documents, text_bytes, tokens, time.perf_counter() - started


def _expansion(file_format: str, compression: str) -> float:
    return COMPRESSION_RATIO if compression else 2.0 if file_format == "parquet" else 1.0


def _existing_parent(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path
