"""The task of one unit: read documents, encode them on several threads, leave a part."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenmill.engine import check_stop
from tokenmill.errors import BadDocumentError
from tokenmill.pipeline.context import RunContext, open_run
from tokenmill.pipeline.order import content_hash, shuffle_keys, split_threshold
from tokenmill.pipeline.parts import (
    PART_DOCS_DTYPE,
    PIECE_TOKENS,
    SMALL_PIECE_TOKENS,
    Docs,
    Ids,
    PartWriter,
    Receipt,
)
from tokenmill.pipeline.plan import source_settings
from tokenmill.sources import (
    BATCH_BYTES,
    Batch,
    LongText,
    Reject,
    SourceFile,
    Unit,
    read_unit,
)
from tokenmill.store import narrow


class UnitTask(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One unit of the run that writes to `output`, a path or a URL."""

    output: str
    unit: Unit
    fail_on_reject: bool
    num_threads: int
    """Encoder threads of a process; all units that it works on share them."""


def tokenize_unit(task: UnitTask) -> Receipt:
    """Write the part of one unit and return its receipt."""
    started = time.monotonic()
    run = open_run(task.output)
    sliced = run.settings.shuffle is not None or run.settings.has_val
    writer = PartWriter(
        run.folder,
        task.unit.index,
        dtype=run.dtype,
        sort=run.settings.shuffle is not None,
        piece_tokens=SMALL_PIECE_TOKENS if sliced else PIECE_TOKENS,
    )
    try:
        _write_documents(run, task, writer)
        threshold = split_threshold(run.settings.val_ratio)
        return writer.publish(threshold=threshold, seconds=time.monotonic() - started)
    except BaseException:
        writer.discard()
        raise


def _write_documents(run: RunContext, task: UnitTask, writer: PartWriter) -> None:
    """Encode batches ahead on the encoder threads, and write their results in order."""
    encoders = _encoder_threads(task.num_threads)
    ahead: deque[Future[tuple[Ids, Docs, int]]] = deque()

    def write_oldest() -> None:
        ids, docs, num_blank = ahead.popleft().result()
        writer.add(ids, docs)
        writer.add_blank(num_blank)

    try:
        for group in group_batches(_read(run, task, writer)):
            check_stop()
            if group[0].long_text is not None:
                while ahead:
                    write_oldest()
                _write_long(run, group.pop(), writer)  # gone before the next is read
            else:
                ahead.append(encoders.submit(encode_documents, run, group))
            if len(ahead) > task.num_threads:
                write_oldest()
        while ahead:
            write_oldest()
    finally:
        for future in ahead:
            future.cancel()


def _write_long(run: RunContext, batch: Batch, writer: PartWriter) -> None:
    assert batch.long_text is not None
    docs = _rows(run, batch)
    docs["num_bytes"] = batch.num_bytes
    if run.settings.has_val:
        docs["content"] = content_hash(batch.long_text.pieces())
    writer.add_long(_encode_long(run, batch.long_text), docs)


def _read(run: RunContext, task: UnitTask, writer: PartWriter) -> Iterator[Batch]:
    """Yield the batches of a unit that hold documents, and note what was skipped."""
    for batch in read_unit(run.files, task.unit, source_settings(run.settings)):
        _note_skipped(batch, run.files[batch.file], writer, fail=task.fail_on_reject)
        if batch.texts or batch.long_text is not None:
            yield batch
        del batch


def group_batches(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Put small batches, as small files give, together to about a mebibyte; not long ones."""
    group: list[Batch] = []
    num_bytes = 0
    for batch in batches:
        is_long = batch.long_text is not None
        if group and (is_long or num_bytes + batch.num_bytes > BATCH_BYTES):
            yield group
            group, num_bytes = [], 0
        group.append(batch)
        num_bytes += batch.num_bytes
        del batch
        if is_long:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


def _note_skipped(batch: Batch, file: SourceFile, writer: PartWriter, *, fail: bool) -> None:
    writer.add_blank(batch.num_blank)
    if batch.rejects:
        if fail:
            raise bad_document(file, batch.rejects[0])
        writer.add_rejects(batch.rejects, file.path)


def encode_documents(run: RunContext, group: list[Batch]) -> tuple[Ids, Docs, int]:
    """Return the ids of some batches, the rows of their documents and how many came out empty."""
    texts = group[0].texts if len(group) == 1 else [t for batch in group for t in batch.texts]
    ids, offsets = run.tokenizer.encode_batch(texts, allow_special=run.settings.allow_special)
    ids, ends = frame_documents(
        narrow(ids, run.dtype), offsets, bos_id=run.bos_id, eos_id=run.eos_id
    )
    docs = np.concatenate([_rows(run, batch) for batch in group])
    docs["end"] = ends
    full = np.diff(ends, prepend=np.uint64(0)) > 0
    return ids, docs if full.all() else docs[full], int(len(full) - full.sum())


def _encode_long(run: RunContext, text: LongText) -> Iterator[Ids]:
    if run.bos_id is not None:
        yield np.array([run.bos_id], dtype=run.dtype)
    allow_special = run.settings.allow_special
    for ids in run.tokenizer.encode_iterable(text.pieces(), allow_special=allow_special):
        check_stop()
        yield narrow(ids, run.dtype)
    if run.eos_id is not None:
        yield np.array([run.eos_id], dtype=run.dtype)


def _rows(run: RunContext, batch: Batch) -> Docs:
    """Return the document table of a batch, all but the ends."""
    docs = np.zeros(len(batch.positions), dtype=PART_DOCS_DTYPE)
    docs["source"] = batch.file
    docs["position"] = batch.positions
    if batch.texts:
        docs["num_bytes"] = [len(t) if t.isascii() else len(t.encode()) for t in batch.texts]
        if run.settings.has_val:
            docs["content"] = [content_hash([text]) for text in batch.texts]
    if run.settings.shuffle is not None:
        docs["key"] = shuffle_keys(docs["source"], docs["position"], seed=run.settings.shuffle)
    return docs


def frame_documents(
    ids: Ids, offsets: NDArray[np.uint64], *, bos_id: int | None, eos_id: int | None
) -> tuple[Ids, NDArray[np.uint64]]:
    """Put BOS before and EOS after each document; return the ids and where each document ends.

    >>> ids, offsets = np.array([5, 6, 7], dtype=np.uint16), np.array([0, 2, 3], dtype=np.uint64)
    >>> framed, ends = frame_documents(ids, offsets, bos_id=None, eos_id=1)
    >>> framed.tolist(), ends.tolist()
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
    places = {"text": "byte", "jsonl": "byte", "json": "element", "file": "byte"}
    place = places.get(file.format, "row")
    return BadDocumentError(
        f"{file.path}: {place} {reject.position:,}: {reject.reason}: {reject.detail}",
        hint="mend the file, or use --on-error skip, which lists such documents in rejects.jsonl",
    )


@lru_cache(maxsize=4)
def _encoder_threads(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(number, thread_name_prefix="encode")
