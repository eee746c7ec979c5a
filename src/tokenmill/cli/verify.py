"""`tokenmill verify`: is every byte what was written?"""

from __future__ import annotations

import click

from tokenmill.cli.options import json_option

EPILOG = """\b
Examples:
  tokenmill verify store
  tokenmill verify store --level full --json
  tokenmill verify s3://bucket/store --level full
"""


@click.command("verify", epilog=EPILOG)
@click.argument("store", type=str)
@click.option(
    "--level",
    type=click.Choice(["structure", "sample", "full"]),
    default="sample",
    show_default=True,
    help="structure: names and sizes; sample: also some blocks of each shard; full: every byte.",
)
@click.option(
    "--workers",
    type=int,
    default=None,
    help="Threads; by default one for each core, more for s3://.",
)
@json_option
def command(store: str, *, level: str, workers: int | None, as_json: bool) -> int:
    """Check STORE against the checksums in its metadata."""
    from tokenmill.cli.output import print_json, print_report
    from tokenmill.engine import resolve_workers
    from tokenmill.store import verify

    threads = None if workers is None else resolve_workers(workers)
    report = verify(store, level=level, workers=threads)
    if as_json:
        print_json(report)
    else:
        print_report(store, report)
    return 3 if report.problems else 0
