"""The last step of a run: the rejects and, last of all, the metadata that makes it a store."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version

import msgspec
import xxhash

from tokenmill.folder import Folder
from tokenmill.pipeline.journal import FinishedShard, Journal
from tokenmill.pipeline.limit import Kept
from tokenmill.pipeline.parts import Receipt, SourceCount, read_rejects
from tokenmill.pipeline.plan import RunPlan
from tokenmill.sources import Reject
from tokenmill.store import (
    REJECTS_NAME,
    Counts,
    FileEntry,
    Metadata,
    SourceEntry,
    SplitEntry,
    TokenizerEntry,
    write_metadata,
    write_tokenizer,
)
from tokenmill.tokenizer import Tokenizer

_LIBRARIES = ("tokenmill", "numpy", "fastokens", "tokenizers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What the tasks of a run made."""

    receipts: list[Receipt]
    """Of the units that are in the store, in order."""
    counts: list[SourceCount]
    shards: dict[tuple[str, int], FinishedShard]
    kept: Kept | None


def commit(plan: RunPlan, tokenizer: Tokenizer, *, journal: Journal, made: Made) -> Metadata:
    """Write what surrounds the shards, then the metadata."""
    receipts, kept = made.receipts, made.kept
    if kept is not None and kept.stop is not None:
        receipts = [*receipts[:-1], _drop_later_rejects(journal, receipts[-1], stop=kept.stop)]
    rejects = _write_rejects(journal, receipts)
    metadata = Metadata(
        created=datetime.now(UTC).replace(microsecond=0),
        versions={name: version(name) for name in _LIBRARIES},
        dtype=plan.dtype,
        bos_id=plan.bos_id,
        eos_id=plan.eos_id,
        shard_tokens=plan.settings.shard_tokens,
        tokenizer=_tokenizer_entry(tokenizer, journal.folder),
        counts=_lost_and_cut(receipts, made.counts, kept=kept),
        settings=plan.settings.content(),
        rejects=rejects,
        splits=_split_entries(made.counts, made.shards, kept=kept),
        sources=_source_entries(plan, receipts, counts=made.counts),
    )
    return write_metadata(journal.folder, metadata)


def _split_entries(
    counts: list[SourceCount], shards: dict[tuple[str, int], FinishedShard], *, kept: Kept | None
) -> dict[str, SplitEntry]:
    entries: dict[str, SplitEntry] = {}
    for split in sorted({"train"} | {count.split for count in counts}):
        own = [count for count in counts if count.split == split]
        listed = sorted(index for name, index in shards if name == split)
        entries[split] = SplitEntry(
            num_tokens=sum(count.num_tokens for count in own),
            num_documents=sum(count.num_documents for count in own),
            num_bytes=sum(count.num_bytes for count in own),
            last_document_cut=kept is not None and kept.cut_split == split,
            shards=tuple(shards[split, index].entry for index in listed),
        )
    return entries


def _source_entries(
    plan: RunPlan, receipts: list[Receipt], *, counts: list[SourceCount]
) -> tuple[SourceEntry, ...]:
    documents, tokens, num_bytes, rejected = (Counter[int]() for _ in range(4))
    for count in counts:
        documents[count.source] += count.num_documents
        tokens[count.source] += count.num_tokens
        num_bytes[count.source] += count.num_bytes
    for receipt in receipts:
        rejected.update(receipt.rejects_by_source)
    return tuple(
        SourceEntry(
            path=file.path,
            size=file.size,
            format=file.format,
            compression=file.compression,
            num_documents=documents[number],
            num_tokens=tokens[number],
            num_bytes=num_bytes[number],
            num_rejected=rejected[number],
        )
        for number, file in enumerate(plan.files)
    )


def _lost_and_cut(
    receipts: list[Receipt], counts: list[SourceCount], *, kept: Kept | None
) -> Counts:
    rejected: Counter[str] = Counter()
    for receipt in receipts:
        rejected.update(receipt.rejects)
    num_blank = sum(receipt.num_blank for receipt in receipts)
    if kept is None:
        return Counts(rejected=dict(rejected), num_blank=num_blank)
    dropped_documents = dropped_tokens = 0
    if kept.stop is None:
        dropped_documents = sum(r.num_documents for r in receipts) - sum(
            c.num_documents for c in counts
        )
        made = sum(r.num_tokens for r in receipts) - sum(c.num_tokens for c in counts)
        dropped_tokens = made - kept.num_truncated_tokens
    return Counts(
        rejected=dict(rejected),
        num_blank=num_blank,
        num_truncated_documents=1 if kept.num_truncated_tokens else 0,
        num_truncated_tokens=kept.num_truncated_tokens,
        num_dropped_documents=dropped_documents,
        num_dropped_tokens=dropped_tokens,
    )


def _tokenizer_entry(tokenizer: Tokenizer, folder: Folder) -> TokenizerEntry:
    file = write_tokenizer(folder, tokenizer.definition_name, data=tokenizer.definition)
    return TokenizerEntry(
        name=tokenizer.name,
        fingerprint=tokenizer.fingerprint,
        num_ids=tokenizer.num_ids,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        pad_id=tokenizer.pad_id,
        file=tokenizer.definition_name,
        bytes=file.bytes,
        sha256=file.sha256,
    )


def _drop_later_rejects(journal: Journal, receipt: Receipt, *, stop: tuple[int, int]) -> Receipt:
    """Forget the rejects behind the document at which the run stops, however far the unit read."""
    if not receipt.rejects:
        return receipt
    # a new name: the receipt on disk still speaks of the whole list, should the run end here
    kept = msgspec.structs.replace(receipt, attempt=f"{receipt.attempt}-kept")
    reasons: Counter[str] = Counter()
    sources: Counter[int] = Counter()
    check = xxhash.xxh3_64()
    folder = journal.folder
    with folder.open(receipt.rejects_name) as lines, folder.create(kept.rejects_name) as file:
        for line in lines:
            reject = msgspec.json.decode(line, type=Reject)
            if (reject.file, reject.position) <= stop:
                reasons[reject.reason] += 1
                sources[reject.file] += 1
                check.update(line)
                file.write(line)
        file.publish(sync=False)
    return msgspec.structs.replace(
        kept, rejects=dict(reasons), rejects_by_source=dict(sources), rejects_hash=check.intdigest()
    )


def _write_rejects(journal: Journal, receipts: list[Receipt]) -> FileEntry | None:
    """Join the rejects of all units, in order, into `rejects.jsonl`."""
    with_rejects = [receipt for receipt in receipts if receipt.rejects]
    if not with_rejects:
        return None
    digest = hashlib.sha256()
    with journal.folder.create(REJECTS_NAME) as file:
        for receipt in with_rejects:
            for piece in read_rejects(journal.folder, receipt):
                digest.update(piece)
                file.write(piece)
        file.publish()
        num_bytes = file.num_bytes
    return FileEntry(bytes=num_bytes, sha256=digest.hexdigest())
