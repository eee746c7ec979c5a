"""`tokenmill tokenize`: text in, store out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tokenmill.cli.options import (
    group_catalog,
    json_option,
    progress_option,
    resolve_settings,
    settings_options,
)
from tokenmill.pipeline import TokenizeSettings

EPILOG = """\b
Examples:
  tokenmill tokenize corpus.txt -o store
  tokenmill tokenize stories.txt -o store --separator '<|endoftext|>' --val-ratio 0.01
  tokenmill tokenize 'crawl/*.jsonl.zst' -o store --text-field content --on-error skip
  tokenmill tokenize data/ -o store --tokenizer ./my-tokenizer --shuffle 42
  tokenmill tokenize corpus.txt -o ids.npy --vocab vocab.json --merges merges.txt
  tokenmill tokenize data/ -o store --dry-run
  tokenmill tokenize hf://org/name:en -o store --split train
  tokenmill --catalog catalog.json tokenize wiki:en -o store
  tokenmill tokenize s3://bucket/raw -o s3://bucket/store
"""


@click.command("tokenize", epilog=EPILOG)
@click.argument("sources", nargs=-1)
@click.option(
    "-o",
    "--output",
    required=True,
    help="Folder or s3:// prefix of the store, or FILE.npy.",
)
@settings_options(TokenizeSettings, without=("sources",))
@click.option("--dry-run", is_flag=True, help="Only say what would be read, written and needed.")
@click.option("--share", metavar="K/N", help="Only make the parts of every N-th unit, from K on.")
@progress_option
@json_option
def command(
    output: str,
    config: Path | None,
    assignments: tuple[str, ...],
    *,
    dry_run: bool,
    progress: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Tokenize SOURCES (files, folders, globs, names, hf://org/name) into a store.

    The same command again continues an interrupted run, or says that it is complete.
    """
    from tokenmill.tokenizer import load_ahead

    share = flags.pop("share")
    flags["sources"] = flags["sources"] or None
    flags["catalog"] = flags["catalog"] or group_catalog()
    settings = resolve_settings(TokenizeSettings, flags, config=config, assignments=assignments)
    if settings.vocab is None:
        load_ahead(settings.tokenizer)  # while the imports below and the plan take their time

    from tokenmill.cli.output import print_file, print_json, print_outcome
    from tokenmill.pipeline import estimate, is_single_file, tokenize_corpus, tokenize_file
    from tokenmill.progress import show_progress

    if dry_run:
        found = estimate(settings, output)
        print_json(found) if as_json else click.echo(found.text())
        return
    if share is not None:
        _make_share(settings, output, share, progress=progress, as_json=as_json)
        return
    with show_progress(progress) as report:
        if is_single_file(output):
            print_file(output, tokenize_file(settings, output, report=report), as_json=as_json)
            return
        outcome = tokenize_corpus(settings, output, report=report)
    print_outcome(output, outcome, as_json=as_json)


def _make_share(
    settings: TokenizeSettings, output: Any, share: str, *, progress: str, as_json: bool
) -> None:
    """Make parts beside other processes; the command without --share puts them together."""
    from tokenmill.cli.output import print_json
    from tokenmill.pipeline import is_single_file, parse_share, tokenize_share
    from tokenmill.progress import show_progress

    if is_single_file(output):
        raise click.UsageError("--share is for a run that writes a store: name a folder with -o")
    chosen = parse_share(share)
    with show_progress(progress) as report:
        outcome = tokenize_share(settings, str(output), chosen, report=report)
    print_json(outcome) if as_json else click.echo(outcome.text())
