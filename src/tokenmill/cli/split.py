"""`tokenmill split`: one text in, train and val out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

from tokenmill.cli.options import json_option

EPILOG = """\b
Examples:
  tokenmill split input.txt --ratio 0.9 --by characters -o data
  tokenmill split stories.txt --ratio 0.99 --by documents --separator '<|endoftext|>' -o data
  tokenmill split crawl.jsonl --ratio 0.95 --by lines -o data
"""


@click.command("split", epilog=EPILOG)
@click.argument("file", type=click.Path())
@click.option("--ratio", default="0.9", show_default=True, help="Share of it that becomes train.")
@click.option(
    "--by",
    type=click.Choice(["characters", "lines", "documents"]),
    default="characters",
    show_default=True,
    help="What is counted; a document is a line that is not blank, unless --separator is given.",
)
@click.option("--separator", default=None, help="What stands between documents.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder for the parts."
)
@json_option
def command(
    file: str, *, ratio: str, by: str, separator: str | None, output: Path, as_json: bool
) -> None:
    """Cut FILE into train.txt and val.txt; together they are FILE, byte for byte."""
    from tokenmill.cli.output import print_json
    from tokenmill.sources import split_text

    found = split_text(file, output, ratio=ratio, by=cast("Any", by), separator=separator)
    if as_json:
        print_json(found)
        return
    click.echo(f"{found.train}: {found.num_train:,} {by}, {found.train_bytes:,} bytes")
    click.echo(f"{found.val}: {found.num_val:,} {by}, {found.val_bytes:,} bytes")
    if found.was_complete:
        click.echo("complete: both were there")
