"""A store in words: one line, a few lines, or a table for a notebook."""

from __future__ import annotations

from html import escape
from pathlib import Path

from tokenmill.store.format import sample_ids_name, tokens_name
from tokenmill.store.metadata import Metadata
from tokenmill.store.place import name_of


def store_line(path: Path | str, metadata: Metadata) -> str:
    """Return what a store holds in one line."""
    num_shards = sum(len(split.shards) for split in metadata.splits.values())
    return (
        f"Store({name_of(path)!r}: {_count(metadata.num_tokens, 'token')} in "
        f"{_count(num_shards, 'shard')}, {_count(metadata.num_documents, 'document')}, "
        f"{metadata.dtype}, {metadata.tokenizer.name}, {'+'.join(metadata.splits) or 'no split'})"
    )


def store_text(path: Path | str, metadata: Metadata) -> str:
    """Return what a store holds in a few aligned lines."""
    facts = _facts(path, metadata)
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in facts)


def store_html(path: Path | str, metadata: Metadata) -> str:
    """Return what a store holds as an HTML table; all that comes from files is escaped."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for name, value in _facts(path, metadata)
    )
    return f"<table>{rows}</table>"


def _facts(path: Path | str, metadata: Metadata) -> list[tuple[str, str]]:
    counts, tokenizer = metadata.counts, metadata.tokenizer
    facts = [("store", str(path))]
    for name, split in metadata.splits.items():
        text = (
            f"{_count(split.num_tokens, 'token')} in {_count(len(split.shards), 'shard')}, "
            f"{_count(split.num_documents, 'document')}, {_count(split.num_bytes, 'byte')} of text"
        )
        facts.append((name, text))
    for name, split in metadata.splits.items():
        if entry := split.consolidated:
            text = f"{_count(entry.num_samples, 'sample')} of {_count(entry.seq_len, 'token')}"
            where = f"in {tokens_name(name)}, {sample_ids_name(name)}"
            alone = "; the shards were deleted" if entry.shards_deleted else ""
            facts.append(("consolidated", f"{text} {where}{alone}"))
    facts.append(("tokenizer", f"{tokenizer.name}, {tokenizer.num_ids:,} ids, {metadata.dtype}"))
    added = {"BOS": metadata.bos_id, "EOS": metadata.eos_id}
    around = [f"{name} {token}" for name, token in added.items() if token is not None]
    facts.append(("each document", f"with {' and '.join(around)}" if around else "as it is"))
    facts.append(("sources", _count(len(metadata.sources), "file")))
    left_out = {
        "rejected": counts.num_rejected,
        "blank lines": counts.num_blank,
        "documents cut": counts.num_truncated_documents,
        "tokens cut off": counts.num_truncated_tokens,
        "documents dropped": counts.num_dropped_documents,
        "tokens dropped": counts.num_dropped_tokens,
    }
    shown = [f"{name} {number:,}" for name, number in left_out.items() if number]
    facts.append(("left out", ", ".join(shown) or "nothing"))
    facts.append(("created", metadata.created.isoformat(timespec="seconds")))
    facts.append(("digest", metadata.digest))
    return facts


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
