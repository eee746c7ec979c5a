"""`tokenmill info`: what is in this store?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenmill.cli.options import json_option

if TYPE_CHECKING:
    from tokenmill.store import Store

EPILOG = """\b
Examples:
  tokenmill info store
  tokenmill info store --document 12
  tokenmill info store --lengths lengths.svg
  tokenmill info s3://bucket/store --json
"""
_SHOWN_TOKENS = 200


@click.command("info", epilog=EPILOG)
@click.argument("path", metavar="STORE", type=str)
@click.option(
    "--split", default="train", show_default=True, help="Split that the options below look at."
)
@click.option("--document", type=int, default=None, help="Also show this document with its tokens.")
@click.option("--all-tokens", is_flag=True, help="Show the document to its end.")
@click.option(
    "--lengths", type=click.Path(path_type=Path), default=None, help="Draw document lengths as SVG."
)
@json_option
def command(
    path: str,
    *,
    split: str,
    document: int | None,
    all_tokens: bool,
    lengths: Path | None,
    as_json: bool,
) -> None:
    """Show what STORE holds."""
    from tokenmill.cli.output import print_json, store_facts
    from tokenmill.inspector import length_histogram, lengths_svg
    from tokenmill.store import name_of, open_store

    store = open_store(path)
    histogram = None if lengths is None else length_histogram(store.split(split))
    if lengths is not None and histogram is not None:
        lengths.write_text(lengths_svg(histogram, title=f"{name_of(path)}: lengths of documents"))
    if as_json:
        facts = store_facts(path, store.metadata)
        extra = {} if document is None else {"document": _document_facts(store, document, split)}
        print_json({**facts, **extra, **({} if histogram is None else {"lengths": histogram})})
        return
    click.echo(store.describe())
    if lengths is not None:
        click.echo(f"lengths of documents: {lengths}")
    if document is not None:
        _show_document(store, document, split=split, limit=None if all_tokens else _SHOWN_TOKENS)


def _document_facts(store: Store, index: int, split: str) -> dict[str, object]:
    found = store.document(index, split)
    return {
        "index": index,
        "source": found.source,
        "position": found.position,
        "start": found.start,
        "ids": found.ids.tolist(),
        "text": store.tokenizer().decode(found.ids.tolist()),
    }


def _show_document(store: Store, index: int, *, split: str, limit: int | None) -> None:
    from tokenmill.inspector import render_tokens

    found = store.document(index, split)
    tokenizer = store.tokenizer()
    ids = found.ids[:limit].tolist()
    added = {store.metadata.bos_id, store.metadata.eos_id}
    special = [place for place, token in enumerate(ids) if token in added]
    color = sys.stdout.isatty()
    place = f"from {found.source} at {found.position:,}"
    click.echo(f"\ndocument {index:,}: {len(found.ids):,} tokens, {place}")
    click.echo(render_tokens([tokenizer.token_bytes(i) for i in ids], special=special, color=color))
    click.echo(f"ids: {' '.join(map(str, ids))}")
    if len(ids) < len(found.ids):
        click.echo(f"({len(found.ids) - len(ids):,} more tokens: --all-tokens shows them)")
