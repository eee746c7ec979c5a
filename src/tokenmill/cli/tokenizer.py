"""`tokenmill tokenizer`: train, convert, compare and look at tokenizers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokenmill.cli.options import (
    group_catalog,
    json_option,
    progress_option,
    resolve_settings,
    settings_options,
)
from tokenmill.pipeline import TrainSettings

if TYPE_CHECKING:
    from tokenmill.pipeline import Ratio, TrainReport
    from tokenmill.tokenizer import Merge, Tokenizer

EPILOG = """\b
Examples:
  tokenmill tokenizer train corpus.txt -o my-tokenizer --vocab-size 10000
  tokenmill tokenizer train 'data/*.jsonl.zst' -o tok --pattern o200k --special '<|endoftext|>'
  tokenmill tokenizer convert my-tokenizer -o out --to tiktoken
  tokenmill tokenizer ratio corpus.txt --tokenizer my-tokenizer --tokenizer gpt2 --plot ratio.svg
  tokenmill tokenizer show gpt2 'Hello wörld'
"""
_PATH = click.Path(path_type=Path)
_TOP_PAIRS_EVERY = 1000
_TOP_PAIRS_FIRST = 10


@click.group("tokenizer", epilog=EPILOG)
def command() -> None:
    """Train, convert, compare and look at tokenizers."""


@command.command("train", epilog=EPILOG)
@click.argument("sources", nargs=-1)
@click.option("-o", "--output", type=_PATH, required=True, help="Folder of the tokenizer.")
@click.option(
    "--special",
    multiple=True,
    help="A special token; may be repeated.  [default: <|endoftext|>]",
)
@click.option("--no-special", is_flag=True, help="Have no special tokens.")
@settings_options(TrainSettings, without=("sources", "special"))
@click.option("-v", "--verbose", is_flag=True, help="Show merges as they are found.")
@progress_option
@json_option
def train_command(
    output: Path,
    config: Path | None,
    assignments: tuple[str, ...],
    *,
    verbose: bool,
    progress: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Train a byte-level BPE on SOURCES (files, folders, globs), and write it in every form.

    The same command again continues an interrupted run, or says that it is complete.
    """
    from tokenmill.cli.output import print_json
    from tokenmill.pipeline import train
    from tokenmill.progress import show_progress

    flags["sources"] = flags["sources"] or None
    flags["catalog"] = flags["catalog"] or group_catalog()
    flags["special"] = [] if flags.pop("no_special") else list(flags["special"]) or None
    was_complete = (output / "report.json").exists()
    settings = resolve_settings(TrainSettings, flags, config=config, assignments=assignments)
    with show_progress(progress) as report:
        made = train(settings, output, report=report, on_merge=_show_merge if verbose else None)
    if as_json:
        print_json(made)
        return
    _print_report(output, made)
    if was_complete:
        click.echo("complete: nothing was left to do")


@command.command("convert", epilog=EPILOG)
@click.argument("tokenizer", required=False)
@click.option("--vocab", type=_PATH, help="A vocabulary file, in place of TOKENIZER.")
@click.option("--merges", type=_PATH, help="Its merges.")
@click.option("--pattern", help="How text is cut into words, for files that do not say it.")
@click.option("--special", multiple=True, metavar="TEXT=ID", help="Special tokens, likewise.")
@click.option("-o", "--output", type=_PATH, required=True, help="Folder for the files.")
@click.option(
    "--to",
    "form",
    type=click.Choice(["tokenizer.json", "gpt2", "tiktoken", "bytes", "all"]),
    default="all",
    show_default=True,
    help="tokenizer.json; gpt2: vocab.json + merges.txt; tiktoken: ranks; bytes: lists and hex.",
)
@json_option
def convert_command(
    tokenizer: str | None,
    *,
    special: tuple[str, ...],
    output: Path,
    form: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Write TOKENIZER (a name, folder or file of any form) in other file forms, with equal ids."""
    from tokenmill.cli.output import print_json
    from tokenmill.files import atomic_write
    from tokenmill.tokenizer import byte_level_bpe, export, load_tokenizer

    loaded = load_tokenizer(tokenizer, special_tokens=_special_ids(special), **given)
    files = export(byte_level_bpe(loaded), form)
    output.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        with atomic_write(output / name) as file:
            file.write(data)
    written = [str(output / name) for name in files]
    if as_json:
        print_json({"files": written, "fingerprint": loaded.fingerprint, "ids": loaded.num_ids})
    else:
        click.echo("\n".join(written))


@command.command("ratio", epilog=EPILOG)
@click.argument("sources", nargs=-1, required=True)
@click.option("--tokenizer", "names", multiple=True, required=True, help="May be repeated.")
@click.option("--docs", type=int, default=10, show_default=True, help="Documents to sample.")
@click.option("--seed", type=int, default=42, show_default=True, help="Decides which.")
@click.option("--all", "all_documents", is_flag=True, help="Take all documents.")
@click.option("--format", default="auto", show_default=True, help="Of the files.")
@click.option("--separator", help="Cut text at this string instead of at line ends.")
@click.option("--text-field", default="text", show_default=True, help="Field that holds the text.")
@click.option("--plot", type=_PATH, help="Also draw it as SVG.")
@json_option
def ratio_command(
    sources: tuple[str, ...],
    names: tuple[str, ...],
    *,
    plot: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Measure how many bytes of SOURCES a token holds, for tokenizers side by side."""
    from tokenmill.cli.output import print_json
    from tokenmill.inspector import ratios_svg
    from tokenmill.pipeline import compression_ratios
    from tokenmill.sources import SourceSettings
    from tokenmill.tokenizer import load_tokenizer

    num_documents = None if flags.pop("all_documents") else flags["docs"]
    seed = flags.pop("seed")
    del flags["docs"]
    ratios = compression_ratios(
        SourceSettings(places=sources, **flags),
        [load_tokenizer(name) for name in names],
        num_documents=num_documents,
        seed=seed,
    )
    if plot is not None:
        plot.write_text(ratios_svg(ratios, title="compression: " + ", ".join(sources)[:60]))
    print_json({"ratios": ratios}) if as_json else _print_ratios(ratios)


@command.command("show", epilog=EPILOG)
@click.argument("tokenizer")
@click.argument("text")
@click.option("--allow-special", is_flag=True, help="Special tokens' text becomes their ids.")
@json_option
def show_command(tokenizer: str, text: str, *, allow_special: bool, as_json: bool) -> None:
    """Show the tokens of TEXT with their ids and bytes; TEXT `-` is read from stdin."""
    from tokenmill.cli.output import print_json
    from tokenmill.inspector import render_tokens
    from tokenmill.tokenizer import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    text = sys.stdin.read() if text == "-" else text
    ids = loaded.encode(text, allow_special=allow_special)
    pieces = [loaded.token_bytes(token_id) for token_id in ids]
    if as_json:
        tokens = [{"id": i, "bytes": list(p)} for i, p in zip(ids, pieces, strict=True)]
        print_json({"tokenizer": loaded.name, "fingerprint": loaded.fingerprint, "tokens": tokens})
        return
    controls = set(loaded.special_tokens.values()) if allow_special else set[int]()
    special = [place for place, token_id in enumerate(ids) if token_id in controls]
    click.echo(render_tokens(pieces, special=special, color=sys.stdout.isatty()))
    _print_tokens(ids, pieces, loaded)


def _special_ids(assignments: tuple[str, ...]) -> dict[str, int] | None:
    found: dict[str, int] = {}
    for assignment in assignments:
        text, _, number = assignment.rpartition("=")
        if not text or not number.isdigit():
            raise click.BadParameter(f"{assignment!r}: expected TEXT=ID", param_hint="--special")
        found[text] = int(number)
    return found or None


def _show_merge(index: int, merge: Merge) -> None:
    if index < _TOP_PAIRS_FIRST or (index + 1) % _TOP_PAIRS_EVERY == 0:
        pair = f"{_readable(merge.left)} + {_readable(merge.right)}"
        click.echo(f"merge {index + 1:,}: {pair}, {merge.count:,} times", err=True)


def _print_report(output: Path, made: TrainReport) -> None:
    held, seconds = made.held_out, sum(made.seconds.values())
    click.echo(
        f"{output}: {made.vocab_size:,} ids ({made.num_merges:,} merges) from "
        f"{made.num_documents:,} documents, {made.num_bytes:,} bytes, in {seconds:.1f} s"
    )
    if made.stopped_early:
        click.echo(
            f"the text gave out before {made.wanted_vocab_size:,} ids: no pair was left that "
            f"occurs {made.settings['min_count']:,} times"
        )
    if made.num_words_left_out:
        click.echo(
            f"left out for want of memory: {made.num_words_left_out:,} words that occur less than "
            f"{made.lowest_word_count:,} times each; --memory-mib gives more"
        )
    if held["num_documents"]:
        click.echo(
            f"{held['bytes_per_token']:.3f} bytes per token over {held['num_documents']:,} "
            "documents that were kept back"
        )
    click.echo(f"next: tokenmill tokenize SOURCES -o store --tokenizer {output}")


def _print_ratios(ratios: list[Ratio]) -> None:
    width = max(len("tokenizer"), *(len(ratio.tokenizer) for ratio in ratios))
    click.echo(f"{'tokenizer':<{width}}  {'ids':>8}  {'tokens':>12}  bytes/token    worst     best")
    for ratio in ratios:
        click.echo(
            f"{ratio.tokenizer:<{width}}  {ratio.vocab_size:>8,}  {ratio.num_tokens:>12,}  "
            f"{ratio.bytes_per_token:>11.3f}  {ratio.lowest:>7.3f}  {ratio.highest:>7.3f}"
        )
    first = ratios[0]
    click.echo(f"over {first.num_documents:,} documents, {first.num_bytes:,} bytes")


def _print_tokens(ids: list[int], pieces: list[bytes], tokenizer: Tokenizer) -> None:
    width = len(str(tokenizer.num_ids))
    for token_id, piece in zip(ids, pieces, strict=True):
        click.echo(f"{token_id:>{width}}  {_readable(piece):<20}  {piece.hex(' ')}")
    num_bytes = sum(map(len, pieces))
    if ids:
        click.echo(f"{len(ids):,} tokens, {num_bytes:,} bytes, {num_bytes / len(ids):.2f} each")


def _readable(token: bytes) -> str:
    return repr(token.decode(errors="backslashreplace"))
