"""`tokenmill export`: a trained model for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tokenmill.cli.options import checkpoint_option, json_option

EPILOG = """\b
Examples:
  tokenmill export runs/first --to hf
  tokenmill export runs/first --to hf -o my-model --dtype bfloat16 --checkpoint last
"""


@click.command("export", epilog=EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "form",
    type=click.Choice(["hf"]),
    default="hf",
    show_default=True,
    help="hf: a folder that transformers loads.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="New folder; by default 'hf' in the run.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="The type of the weights.",
)
@checkpoint_option
@json_option
def command(
    run: Path, form: str, *, output: Path | None, dtype: Any, checkpoint: Any, as_json: bool
) -> None:
    """Write the model of RUN, and its tokenizer, in the form of another library."""
    from tokenmill.cli.output import print_json
    from tokenmill.train import export_run

    folder = export_run(run, output or run / form, which=checkpoint, dtype=dtype)
    if as_json:
        print_json({"folder": str(folder), "files": sorted(p.name for p in folder.iterdir())})
        return
    click.echo(f"{folder}: load it with transformers' AutoModelForCausalLM.from_pretrained")
