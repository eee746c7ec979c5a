"""`tokenmill fetch`: bring a public text here, whole and right."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from tokenmill.cli.options import json_option, progress_option

if TYPE_CHECKING:
    from tokenmill.sources import Fetched

EPILOG = """\b
Examples:
  tokenmill fetch --list
  tokenmill fetch tinyshakespeare -o input.txt
  tokenmill fetch tinystories-valid -o data/
  tokenmill fetch https://example.org/corpus.jsonl.zst -o corpus.jsonl.zst --sha256 9f86d0…
"""


@click.command("fetch", epilog=EPILOG)
@click.argument("name", metavar="NAME|URL", required=False)
@click.option("-o", "--output", type=click.Path(), help="File or folder.  [default: here]")
@click.option("--sha256", default=None, help="What the file's SHA-256 must be.")
@click.option("--list", "list_names", is_flag=True, help="List the well-known texts.")
@progress_option
@json_option
def command(
    name: str | None,
    *,
    output: str | None,
    sha256: str | None,
    list_names: bool,
    progress: str,
    as_json: bool,
) -> None:
    """Fetch a well-known text by NAME, or any file by its URL.

    The same command again continues, or says that the file is there. A file appears under its name
    only when it is complete and its hash, if known, is right.
    """
    from tokenmill.cli.output import print_json
    from tokenmill.progress import show_progress
    from tokenmill.sources import WELL_KNOWN, fetch

    if list_names:
        _show_list(as_json=as_json)
        return
    if name is None:
        raise click.UsageError("say what to fetch: a name or an address; --list shows the names")
    with show_progress(progress) as report:
        found = fetch(name, output, sha256=sha256, report=report)
    if as_json:
        print_json(found)
    else:
        _show(found, separator=known.separator if (known := WELL_KNOWN.get(name)) else None)


def _show(found: Fetched, *, separator: str | None) -> None:
    from tokenmill.progress import count, duration

    state = "is there: nothing was fetched" if found.was_present else "fetched"
    rate = "" if found.was_present else f" in {duration(found.seconds)}"
    click.echo(f"{found.path}: {state}{rate}, {count(found.num_bytes)}B")
    proved = "as expected" if found.is_proved else "give it as --sha256 to have it checked"
    click.echo(f"sha256 {found.sha256} ({proved})")
    extra = f" --separator {shlex.quote(separator)}" if separator else ""
    click.echo(f"next: tokenmill tokenize {shlex.quote(str(found.path))} -o store{extra}")


def _show_list(*, as_json: bool) -> None:
    from tokenmill.cli.output import print_json
    from tokenmill.sources import WELL_KNOWN

    if as_json:
        print_json(WELL_KNOWN)
        return
    for name, text in WELL_KNOWN.items():
        click.echo(f"{name:22}{text.about}")
