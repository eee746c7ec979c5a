"""`tokenmill sync`: the same store in another place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tokenmill.cli.options import json_option, progress_option

if TYPE_CHECKING:
    from tokenmill.store import SyncReport

EPILOG = """\b
Examples:
  tokenmill sync store s3://bucket/stores/web
  tokenmill sync s3://bucket/stores/web store --workers 8
  tokenmill sync raw/ s3://bucket/raw --delete --dry-run
"""


@click.command("sync", epilog=EPILOG)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--delete", is_flag=True, help="Remove the files of DST that SRC does not have.")
@click.option("--dry-run", is_flag=True, help="Say what would be copied and removed; do neither.")
@click.option("--workers", type=int, default=4, show_default=True, help="Files at a time.")
@progress_option
@json_option
def command(  # noqa: PLR0913  (one for each flag)
    source: str,
    target: str,
    *,
    delete: bool,
    dry_run: bool,
    workers: int,
    progress: str,
    as_json: bool,
) -> None:
    """Copy a store, or any folder, from SRC to DST: folders, or s3:// places.

    What is there already with the right content is passed over, so that the same command again
    continues. Each file of a store is compared with its SHA-256 at both ends, and metadata.json
    comes last: a half-copied store is not a store. Nothing is removed unless you ask for it.
    """
    from tokenmill.cli.output import print_json
    from tokenmill.progress import show_progress
    from tokenmill.store import sync

    with show_progress(progress) as report:
        done = sync(source, target, delete=delete, dry_run=dry_run, workers=workers, report=report)
    if as_json:
        print_json(done)
    else:
        _show(done)


def _show(done: SyncReport) -> None:
    from tokenmill.progress import count, duration

    would = "would be " if done.dry_run else ""
    if done.dry_run:
        for name in done.copied:
            click.echo(f"would copy {name}")
    for name in done.deleted:
        click.echo(f"{'would remove' if done.dry_run else 'removed'} {name}")
    kind = "store" if done.is_store else "folder"
    there = done.num_files - len(done.copied)
    rate = f", {count(done.copied_bytes / max(done.seconds, 1e-9))}B/s"
    click.echo(
        f"{done.target}: a {kind} of {done.num_files:,} files, {count(done.num_bytes)}B: "
        f"{len(done.copied):,} {would}copied ({count(done.copied_bytes)}B), {there:,} were there, "
        f"{len(done.deleted):,} {would}removed, in {duration(done.seconds)}"
        + ("" if done.dry_run else rate)
    )
