"""`tokenmill generate`: text from a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tokenmill.cli.options import (
    checkpoint_option,
    json_option,
    resolve_settings,
    settings_options,
)
from tokenmill.train import SampleSettings

EPILOG = """\b
Examples:
  tokenmill generate runs/first
  tokenmill generate runs/first --prompt 'Once upon a time' --temperature 0.7 --top-p 0.9
  tokenmill generate runs/first --prompt 'To be' --temperature 0 --max-tokens 50 --checkpoint last
"""


@click.command("generate", epilog=EPILOG)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--prompt", default="", help="Text to continue; without it a new document begins.")
@checkpoint_option
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda", "mps"]),
    default="auto",
    show_default=True,
    help="Where to compute.",
)
@settings_options(SampleSettings)
@json_option
def command(
    run: Path,
    prompt: str,
    *,
    config: Path | None,
    assignments: tuple[str, ...],
    as_json: bool,
    **flags: Any,
) -> None:
    """Let the model of RUN write: the prompt and what follows it, as it comes."""
    from tokenmill.cli.output import print_json
    from tokenmill.train import generate_from_run

    source = {"which": flags.pop("checkpoint"), "device": flags.pop("device")}
    settings = resolve_settings(SampleSettings, flags, config=config, assignments=assignments)
    pieces = generate_from_run(run, prompt, settings=settings, **source)
    if as_json:
        print_json({"prompt": prompt, "text": "".join(pieces)})
        return
    click.echo(prompt, nl=False)
    for piece in pieces:
        click.echo(piece, nl=False)  # flushes: it appears at once
    click.echo()
