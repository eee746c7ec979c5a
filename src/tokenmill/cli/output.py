"""What commands print: results for people, or one JSON object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from tokenmill.pipeline import Outcome
from tokenmill.progress import count, duration
from tokenmill.store import Metadata, VerifyReport, open_store, store_text


def print_json(value: Any) -> None:
    """Print one object as JSON."""
    click.echo(msgspec.json.encode(value, enc_hook=str))


def store_facts(path: str | Path, metadata: Metadata) -> dict[str, Any]:
    """Return what a store holds as JSON-able values, without the long lists."""
    return {
        "path": str(path),
        "digest": metadata.digest,
        "num_tokens": metadata.num_tokens,
        "num_documents": metadata.num_documents,
        "dtype": metadata.dtype,
        "tokenizer": metadata.tokenizer,
        "bos_id": metadata.bos_id,
        "eos_id": metadata.eos_id,
        "shard_tokens": metadata.shard_tokens,
        "splits": {
            name: {
                "num_tokens": split.num_tokens,
                "num_documents": split.num_documents,
                "num_bytes": split.num_bytes,
                "num_shards": len(split.shards),
                "last_document_cut": split.last_document_cut,
                **({"consolidated": split.consolidated} if split.consolidated else {}),
            }
            for name, split in metadata.splits.items()
        },
        "num_sources": len(metadata.sources),
        "counts": metadata.counts,
        "created": metadata.created,
        "settings": metadata.settings,
    }


def print_outcome(path: str | Path, outcome: Outcome, *, as_json: bool) -> None:
    """Say what a tokenize run made; of a sample, also what it is like."""
    metadata, statistics = outcome.metadata, None
    if metadata.settings.get("sample"):
        from tokenmill.inspector import store_statistics

        statistics = store_statistics(open_store(path))
    if as_json:
        facts = store_facts(path, metadata)
        facts |= {"was_complete": outcome.was_complete, "seconds": round(outcome.seconds, 3)}
        print_json(facts if statistics is None else {**facts, "statistics": statistics})
        return
    num_bytes = sum(split.num_bytes for split in metadata.splits.values())
    click.echo(store_text(path, metadata))
    if outcome.was_complete:
        click.echo("complete: nothing was left to do")
    else:
        byte_rate, token_rate = (n / outcome.seconds for n in (num_bytes, metadata.num_tokens))
        took = f"done in {duration(outcome.seconds)}"
        click.echo(f"{took}: {count(byte_rate)}B/s, {count(token_rate)} tokens/s")
    if statistics is not None:
        click.echo(statistics.text())
    if metadata.rejects is not None:
        click.echo(f"rejected documents are listed in {path}/rejects.jsonl")
    click.echo(f"next: tokenmill info {path} --document 0 · tokenmill verify {path} --level full")


def print_file(path: str | Path, outcome: Outcome, *, as_json: bool) -> None:
    """Say what is in a single file of ids."""
    metadata = outcome.metadata
    facts = {
        "path": str(path),
        "num_tokens": metadata.num_tokens,
        "num_documents": metadata.num_documents,
        "dtype": metadata.dtype,
        "eos_id": metadata.eos_id,
        "tokenizer": metadata.tokenizer,
        "counts": metadata.counts,
        "seconds": round(outcome.seconds, 3),
    }
    if as_json:
        print_json(facts)
    else:
        what = f"{metadata.num_tokens:,} ids of {metadata.num_documents:,} documents"
        click.echo(f"{path}: {what}, {metadata.dtype}, in {duration(outcome.seconds)}")


def print_report(path: str | Path, report: VerifyReport) -> None:
    """Say what a verification found."""
    rate = f"{count(report.num_bytes / max(report.seconds, 1e-9))}B/s"
    size, time = count(report.num_bytes), duration(report.seconds)
    looked = f"{report.num_files:,} files, {size}B in {time} ({rate})"
    for problem in report.problems:
        click.secho(f"{problem.file}: {problem.problem}", fg="red")
        click.echo(f"  next: {problem.next_command}")
    found = f"{len(report.problems):,} problems" if report.problems else "no damage"
    click.echo(f"{path}: {found} at level {report.level}: {looked}")
