"""The task of one unit: read documents, encode them on several threads, leave a part."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenmill.engine import check_stop
from tokenmill.errors import BadDocumentError
from tokenmill.pipeline.order import content_hash, shuffle_keys
from tokenmill.pipeline.parts import (
    PART_DOCS_DTYPE,
    PIECE_TOKENS,
    SMALL_PIECE_TOKENS,
    Docs,
    Ids,
    PartWriter,
    Receipt,
)
from tokenmill.pipeline.plan import RunPlan
from tokenmill.sources import Batch, Reject, SourceFile, Unit, read_unit
from tokenmill.store import narrow
from tokenmill.tokenizer import Tokenizer

LONG_TEXT_CHARS = 1 << 23
"""A longer document is encoded piece by piece instead of as a whole."""


class UnitTask(msgspec.Struct, frozen=True):
    """One unit of a run, and where the run lives."""

    folder: str
    unit: Unit


@dataclass(frozen=True, slots=True)
class Worker:
    """What a process needs to work on a run: the plan, the loaded tokenizer and encoder threads."""

    folder: Path
    plan: RunPlan
    tokenizer: Tokenizer
    fail_on_reject: bool
    encoders: ThreadPoolExecutor
    num_encoders: int

    def tokenize_unit(self, unit: Unit) -> Receipt:
        """Write the part of one unit and return its receipt."""
        started = time.monotonic()
        plan = self.plan
        sliced = plan.settings.shuffle is not None or plan.has_val
        writer = PartWriter(
            self.folder,
            unit.index,
            dtype=np.dtype(plan.dtype),
            sort=plan.settings.shuffle is not None,
            piece_tokens=SMALL_PIECE_TOKENS if sliced else PIECE_TOKENS,
        )
        try:
            self._write_documents(unit, writer)
            return writer.publish(threshold=plan.threshold, seconds=time.monotonic() - started)
        except BaseException:
            writer.discard()
            raise

    def _write_documents(self, unit: Unit, writer: PartWriter) -> None:
        """Encode batches ahead on the encoder threads, and write their results in order."""
        ahead: deque[Future[tuple[Ids, Docs, int]]] = deque()

        def write_oldest() -> None:
            ids, docs, num_blank = ahead.popleft().result()
            writer.add(ids, docs)
            writer.add_blank(num_blank)

        try:
            for batch in read_unit(self.plan.files, unit, self.plan.settings.source_settings()):
                check_stop()
                self._note_skipped(batch, writer)
                if len(batch.texts) == 1 and len(batch.texts[0]) > LONG_TEXT_CHARS:
                    while ahead:
                        write_oldest()
                    writer.add_long(self._encode_long(batch), self._rows(batch))
                    continue
                ahead.append(self.encoders.submit(self._encode, batch))
                if len(ahead) > self.num_encoders:
                    write_oldest()
            while ahead:
                write_oldest()
        finally:
            for future in ahead:
                future.cancel()

    def _note_skipped(self, batch: Batch, writer: PartWriter) -> None:
        writer.add_blank(batch.num_blank)
        if not batch.rejects:
            return
        file = self.plan.files[batch.file]
        if self.fail_on_reject:
            raise bad_document(file, batch.rejects[0])
        writer.add_rejects(batch.rejects, file.path)

    def _encode(self, batch: Batch) -> tuple[Ids, Docs, int]:
        """Return the ids of a batch, the rows of its documents and how many came out empty."""
        plan = self.plan
        ids, offsets = self.tokenizer.encode_batch(
            batch.texts, allow_special=plan.settings.allow_special
        )
        ids, ends = frame_documents(
            narrow(ids, np.dtype(plan.dtype)), offsets, bos_id=plan.bos_id, eos_id=plan.eos_id
        )
        docs = self._rows(batch)
        docs["end"] = ends
        full = np.diff(ends, prepend=np.uint64(0)) > 0
        return ids, docs if full.all() else docs[full], int(len(full) - full.sum())

    def _encode_long(self, batch: Batch) -> Iterator[Ids]:
        plan, dtype = self.plan, np.dtype(self.plan.dtype)
        if plan.bos_id is not None:
            yield np.array([plan.bos_id], dtype=dtype)
        text = batch.texts[0]
        for ids in self.tokenizer.encode_long(text, allow_special=plan.settings.allow_special):
            check_stop()
            yield narrow(ids, dtype)
        if plan.eos_id is not None:
            yield np.array([plan.eos_id], dtype=dtype)

    def _rows(self, batch: Batch) -> Docs:
        """Return the document table of a batch, all but the ends."""
        docs = np.zeros(len(batch.texts), dtype=PART_DOCS_DTYPE)
        docs["source"] = batch.file
        docs["position"] = batch.positions
        docs["num_bytes"] = [len(t) if t.isascii() else len(t.encode()) for t in batch.texts]
        if self.plan.has_val:
            docs["content"] = [content_hash(text) for text in batch.texts]
        seed = self.plan.settings.shuffle
        if seed is not None:
            docs["key"] = shuffle_keys(docs["source"], docs["position"], seed=seed)
        return docs


def frame_documents(
    ids: Ids, offsets: NDArray[np.uint64], *, bos_id: int | None, eos_id: int | None
) -> tuple[Ids, NDArray[np.uint64]]:
    """Put BOS before and EOS after each document; return the ids and where each document ends.

    >>> ids, ends = frame_documents(
    ...     np.array([5, 6, 7], dtype=np.uint16), np.array([0, 2, 3], dtype=np.uint64), bos_id=None, eos_id=1
    ... )
    >>> ids.tolist(), ends.tolist()
    ([5, 6, 1, 7, 1], [3, 5])
    """
    added = (bos_id is not None) + (eos_id is not None)
    num_documents = len(offsets) - 1
    if not added:
        return ids, offsets[1:].copy()
    ends = offsets[1:] + np.uint64(added) * np.arange(1, num_documents + 1, dtype=np.uint64)
    framed = np.empty(len(ids) + added * num_documents, dtype=ids.dtype)
    is_text = np.ones(len(framed), dtype=np.bool_)
    if eos_id is not None:
        framed[ends - np.uint64(1)] = eos_id
        is_text[ends - np.uint64(1)] = False
    if bos_id is not None:
        starts = ends - np.diff(offsets) - np.uint64(added)
        framed[starts] = bos_id
        is_text[starts] = False
    framed[is_text] = ids
    return framed, ends


def bad_document(file: SourceFile, reject: Reject) -> BadDocumentError:
    """Build the error that stops a run at a broken document."""
    place = {"text": "byte", "jsonl": "byte", "json": "element", "file": "byte"}.get(
        file.format, "row"
    )
    return BadDocumentError(
        f"{file.path}: {place} {reject.position:,}: {reject.reason}: {reject.detail}",
        hint="mend the file, or run again with --on-error skip to list such documents in rejects.jsonl",
    )
