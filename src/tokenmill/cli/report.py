"""`tokenmill report`: pictures and a page of what training runs measured."""

from __future__ import annotations

from pathlib import Path

import click

from tokenmill.cli.options import json_option

EPILOG = """\b
Examples:
  tokenmill report runs/first
  tokenmill report runs/first runs/second -o comparison --png
"""


@click.command("report", epilog=EPILOG)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder for page and pictures; by default 'report' in the first run.",
)
@click.option("--png", is_flag=True, help="Write the pictures as PNG too.")
@json_option
def command(runs: tuple[Path, ...], output: Path | None, *, png: bool, as_json: bool) -> None:
    """Draw loss, bits per byte, throughput and stall of RUNS, over each other."""
    from tokenmill.cli.output import print_json
    from tokenmill.train import write_report

    files = write_report(runs, output or runs[0] / "report", png=png)
    if as_json:
        print_json({"page": str(files[0]), "files": [str(path) for path in files]})
        return
    click.echo(f"{files[0]}: open it in a browser; {len(files) - 1} pictures beside it")
