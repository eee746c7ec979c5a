"""`tokenmill check`: are these files ready for training?"""

from __future__ import annotations

from typing import Any

import click

from tokenmill.cli.options import json_option

EPILOG = """\b
Examples:
  tokenmill check train.txt val.txt
  tokenmill check train.jsonl val.jsonl --min-tokens-per-second 200000 --num-workers 4
  tokenmill check 'train/*.txt' val.txt --separator '<|endoftext|>' --json

The exit code is 0 if all checks pass, otherwise that of the first that failed.
"""


@click.command("check", epilog=EPILOG)
@click.argument("train")
@click.argument("val")
@click.option("--tokenizer", default="gpt2", show_default=True, help="Tokenizer to check with.")
@click.option("--context-length", type=int, default=256, show_default=True, help="Tokens in a row.")
@click.option("--batch-size", type=int, default=8, show_default=True, help="Rows in a batch.")
@click.option("--num-workers", type=int, default=2, show_default=True, help="Loader processes.")
@click.option(
    "--min-tokens-per-second", type=float, default=0.0, help="Fail if the loader is slower."
)
@click.option("--seconds", type=float, default=2.0, show_default=True, help="Time to measure.")
@click.option("--separator", default=None, help="Cut text at this string instead of at line ends.")
@click.option("--text-field", default=None, help="The field or column that holds the text.")
@json_option
def command(
    train: str,
    val: str,
    *,
    separator: str | None,
    text_field: str | None,
    as_json: bool,
    **flags: Any,
) -> int:
    """Check the files TRAIN and VAL from end to end, one line for each check."""
    from tokenmill.cli.output import print_json
    from tokenmill.inspector import CheckSettings, check_data

    given = {"separator": separator, "text_field": text_field}
    source = {name: value for name, value in given.items() if value is not None}
    checks: list[Any] = []
    for check in check_data(CheckSettings(train=train, val=val, source=source, **flags)):
        checks.append(check)
        if not as_json:
            word = (
                click.style("PASS", fg="green") if check.passed else click.style("FAIL", fg="red")
            )
            click.echo(f"{word} {check.name}: {check.detail}")
    exit_code = next((check.exit_code for check in checks if not check.passed), 0)
    if as_json:
        print_json({"passed": not exit_code, "checks": checks})
    return exit_code
