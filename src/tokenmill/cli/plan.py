"""`tokenmill plan`: what will a run be trained on, and what was it trained on?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenmill.cli.options import json_option

if TYPE_CHECKING:
    from tokenmill.dataset import Appearance, Plan, RowFacts

EPILOG = """\b
Examples:
  tokenmill plan explain plan.yaml
  tokenmill plan explain plan.yaml --tokens-per-second 2e6 --json
  tokenmill plan which plan.yaml --step 20150
  tokenmill plan which plan.yaml --step 20150 --rank 3 --world-size 8
  tokenmill plan which plan.yaml --document 12 --source web
"""
_FILE = click.Path(path_type=Path)


@click.group("plan", epilog=EPILOG)
def command() -> None:
    """Explain a plan, and find the documents of a step or the steps of a document."""


@command.command("explain", epilog=EPILOG)
@click.argument("file", type=_FILE)
@click.option("--steps", type=int, default=None, help="Only the first so many steps.")
@click.option(
    "--tokens-per-second",
    type=float,
    default=1e6,
    show_default=True,
    help="Rate of training of all ranks together, to say what storage must deliver.",
)
@json_option
def explain_command(
    file: Path, *, steps: int | None, tokens_per_second: float, as_json: bool
) -> None:
    """Say what the plan in FILE takes from where: tokens, epochs, repeats, everything dropped."""
    from tokenmill.cli.output import print_json
    from tokenmill.dataset import Plan, explain

    told = explain(Plan.load(file), num_steps=steps)
    if as_json:
        rate = told.bytes_per_second(tokens_per_second)
        print_json({"plan": told, "tokens_per_second": tokens_per_second, "bytes_per_second": rate})
    else:
        click.echo(told.text(tokens_per_second=tokens_per_second))


@command.command("which", epilog=EPILOG)
@click.argument("file", type=_FILE)
@click.option("--step", type=int, default=None, help="Show the documents of this step.")
@click.option("--rank", type=int, default=0, help="Only the rows of this rank.")
@click.option("--world-size", type=int, default=1, show_default=True, help="Number of ranks.")
@click.option("--document", type=int, default=None, help="Show the steps of this document.")
@click.option("--source", default=None, help="Source of the document, if the plan has several.")
@click.option("--steps", type=int, default=None, help="Search only the first so many steps.")
@json_option
def which_command(  # noqa: PLR0913  (one for each flag)
    file: Path,
    *,
    step: int | None,
    rank: int,
    world_size: int,
    document: int | None,
    source: str | None,
    steps: int | None,
    as_json: bool,
) -> None:
    """Show which documents are in a step of the plan in FILE, or in which steps a document is."""
    from tokenmill.cli.output import print_json
    from tokenmill.dataset import Plan, which_rows, which_steps

    plan = Plan.load(file)
    if step is not None and document is None:
        rows = which_rows(plan, step, rank=rank, world_size=world_size)
        if as_json:
            print_json({"step": step, "digest": plan.digest, "rows": rows})
        else:
            _show_rows(plan, rows, step)
    elif document is not None and step is None:
        found = which_steps(plan, document, source=source, num_steps=steps)
        if as_json:
            print_json({"document": document, "digest": plan.digest, "appearances": found})
        else:
            _show_appearances(found, document)
    else:
        raise click.UsageError("give either --step or --document")


def _show_rows(plan: Plan, rows: list[RowFacts], step: int) -> None:
    click.echo(f"step {step:,} of plan {plan.digest[:19]}: {len(rows):,} rows")
    for row in rows:
        joined = " (joined from what an earlier sequence length left)" if row.is_rest else ""
        click.echo(f"row {row.place:,}: {row.source}, epoch {row.epoch:,}, row {row.row:,}{joined}")
        for part in row.documents:
            place = "" if part.file is None else f"  {part.file} at {part.position:,}"
            click.echo(
                f"  document {part.document:,}, tokens {part.start:,} to {part.stop:,}{place}"
            )


def _show_appearances(found: list[Appearance], document: int) -> None:
    click.echo(f"document {document:,} is in {len({item.step for item in found}):,} steps")
    for item in found:
        click.echo(
            f"step {item.step:,}, row {item.place:,}, epoch {item.epoch:,}: "
            f"{item.num_tokens:,} tokens from place {item.offset:,} on"
        )
