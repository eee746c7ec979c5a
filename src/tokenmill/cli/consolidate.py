"""`tokenmill consolidate`: all ids in one file, and an id for each sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tokenmill.cli.options import json_option, progress_option

if TYPE_CHECKING:
    from tokenmill.store import ConsolidatedSplit, ConsolidateReport

EPILOG = """\b
Examples:
  tokenmill consolidate store --seq-len 2048
  tokenmill consolidate store --seq-len 2048 --delete-shards
  tokenmill consolidate folder-of-npy-shards --seq-len 1024 --skip-validation
"""


@click.command("consolidate", epilog=EPILOG)
@click.argument("path", metavar="DIR", type=str)
@click.option("--seq-len", type=int, required=True, help="Tokens in a sample.")
@click.option(
    "--split", "splits", multiple=True, help="Only this split; may be repeated.  [default: all]"
)
@click.option(
    "--skip-validation",
    "--skip_validation",
    is_flag=True,
    help="Do not read the written files back from the disk.",
)
@click.option(
    "--delete-shards",
    is_flag=True,
    help="Delete the shards once a full verification has shown that the rest holds all of them.",
)
@click.option("--replace", is_flag=True, help="Make files anew that have another --seq-len.")
@click.option("--workers", type=int, default=None, help="Threads; by default one for each core.")
@click.option(
    "--scratch",
    default=None,
    help="For s3://: where the files are made before they are sent.  [default: in the cache]",
)
@progress_option
@json_option
def command(path: str, *, progress: str, as_json: bool, **flags: Any) -> None:
    """Write tokens.bin and sample_ids.bin for a store, or for a folder of train_*.npy.

    A store may be at s3://bucket/prefix.

    The same command again continues an interrupted run, or says that it is complete.
    """
    from tokenmill.cli.output import print_json
    from tokenmill.progress import show_progress
    from tokenmill.store import ConsolidateSettings, consolidate

    settings = ConsolidateSettings(**flags)
    with show_progress(progress) as report:
        made = consolidate(path, settings, report=report)
    print_json(made) if as_json else _show(path.rstrip("/") or path, made)


def _show(path: str, made: ConsolidateReport) -> None:
    from tokenmill.progress import count, duration

    for split in made.splits:
        click.echo(_line(path, split))
    num_bytes = sum(split.num_bytes for split in made.splits if not split.was_complete)
    if num_bytes:
        rate = f"{count(num_bytes / made.seconds)}B/s"
        click.echo(f"done in {duration(made.seconds)}: {count(num_bytes)}B of ids, {rate}")
    else:
        click.echo("complete: nothing was left to write")
    if made.num_deleted_shards:
        click.echo(f"{made.num_deleted_shards:,} shards were deleted; their tables stay")
    click.echo(f"next: tokenmill verify {path} --level full")


def _line(path: str, split: ConsolidatedSplit) -> str:
    from tokenmill.store import sample_ids_name, tokens_name

    tail = split.num_tail_tokens
    rest = f"; the last {tail:,} tokens make no whole sample" if tail else ""
    return (
        f"{path}/{tokens_name(split.split)}: {split.num_tokens:,} tokens, "
        f"sha256 {split.tokens_sha256}\n"
        f"{path}/{sample_ids_name(split.split)}: {split.num_samples:,} samples of "
        f"{split.seq_len:,} tokens, sha256 {split.sample_ids_sha256}{rest}"
    )
