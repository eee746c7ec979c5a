"""`tokenmill verify`: is every byte what was written?"""

from __future__ import annotations

from pathlib import Path

import click

from tokenmill.cli.options import json_option

EPILOG = """\b
Examples:
  tokenmill verify store
  tokenmill verify store --level full --json
"""


@click.command("verify", epilog=EPILOG)
@click.argument("store", type=click.Path(path_type=Path))
@click.option(
    "--level",
    type=click.Choice(["structure", "sample", "full"]),
    default="sample",
    show_default=True,
    help="structure: names and sizes; sample: also some blocks of each shard; full: every byte.",
)
@click.option("--workers", type=int, default=None, help="Threads; by default one for each core.")
@json_option
def command(store: Path, *, level: str, workers: int | None, as_json: bool) -> int:
    """Check STORE against the checksums in its metadata."""
    from tokenmill.cli.output import print_json, print_report
    from tokenmill.engine import resolve_workers
    from tokenmill.store import verify

    report = verify(store, level=level, workers=resolve_workers(workers))
    if as_json:
        print_json(report)
    else:
        print_report(store, report)
    return 3 if report.problems else 0
