"""`tokenmill status`: how far is it?"""

from __future__ import annotations

import click

from tokenmill.cli.options import json_option

EPILOG = """\b
Examples:
  tokenmill status store
  watch tokenmill status store
  tokenmill status s3://bucket/store
"""


@click.command("status", epilog=EPILOG)
@click.argument("store")
@json_option
def command(store: str, *, as_json: bool) -> None:
    """Show how far the run that writes STORE is; it may be running, stopped or complete."""
    from tokenmill.cli.output import print_json
    from tokenmill.pipeline import run_status

    status = run_status(store)
    if as_json:
        print_json(status)
    else:
        click.echo(status.text())
