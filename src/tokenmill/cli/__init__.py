"""The command line: one file per verb. Each parses, calls the library and prints."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import click

from tokenmill.errors import Interrupted, TokenmillError
from tokenmill.files import storage_error

COMMANDS = {
    "fetch": "Fetch a well-known text, or any file of the web.",
    "split": "Cut a text into train and val, exactly.",
    "describe": "Describe raw data: what it is, where it is, which corpora it has.",
    "catalog": "Give datasets names in a file that others can use.",
    "tokenizer": "Train, convert, compare and look at tokenizers.",
    "check": "Check data files from end to end before training on them.",
    "tokenize": "Tokenize text into a store.",
    "info": "Show what a store holds.",
    "status": "Show how far a run is, also from another shell.",
    "verify": "Check a store against its checksums.",
    "sync": "Copy a store or folder to another place, or to s3://, and prove it.",
    "consolidate": "Write all ids of a store into one file, with an id for each sample.",
    "run": "Run any of these as a job of Slurm.",
    "plan": "Explain a plan, and find the documents of a step.",
    "train": "Train a GPT on a store, a plan or a text file.",
    "report": "Draw loss, bits per byte, speed and stall of training runs.",
    "generate": "Let a trained model write.",
    "export": "Write a trained model for other libraries.",
    "bench": "Measure the speed of parts of tokenmill on this machine.",
}
"""Each verb lives in the module of its name, which is loaded only when it is called."""
_HOMES = {"run": "submit"}
"""But for `run`: a module of that name would hide the function below."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and loads one when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order in which people use them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a verb."""
        if cmd_name not in COMMANDS:
            return None
        home = _HOMES.get(cmd_name, cmd_name)
        return import_module(f"tokenmill.cli.{home}").command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


EXAMPLES = """\b
Examples:
  tokenmill tokenize corpus.txt -o store
  tokenmill tokenize 'data/*.jsonl.zst' -o store --text-field content --val-ratio 0.005
  tokenmill info store
  tokenmill verify store --level full
"""


@click.group(
    cls=LazyGroup, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="tokenmill", prog_name="tokenmill")
@click.option("--catalog", metavar="FILE", help="A JSON file that gives datasets names.")
@click.pass_context
def group(context: click.Context, catalog: str | None) -> None:
    """Turn raw text into training-ready tokens: exactly, fast, at any scale."""
    context.obj = {"catalog": catalog}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    for number in (signal.SIGTERM, signal.SIGUSR1):  # by the second Slurm warns of its time limit
        signal.signal(number, _interrupt)
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; errors go to stderr in one voice."""
    try:
        result: Any = group.main(args=arguments, prog_name="tokenmill", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _fail(
            Interrupted(
                "interrupted", hint="run the same command again: it continues where it stopped"
            )
        )
    except TokenmillError as error:
        return _fail(error)
    except BrokenPipeError:
        return 0  # the reader of our output went away, as `head` does
    except OSError as error:
        # every file of ours is named in its errors: what has no name is our own printing
        return _fail(storage_error(error, error.filename or "standard output"))


def _fail(error: TokenmillError) -> int:
    with suppress(OSError):  # stderr may be what is broken; the exit code still tells
        click.secho(f"tokenmill: {error.message}", fg="red", err=True)
        if error.hint:
            click.echo(f"  hint: {error.hint}", err=True)
    return error.exit_code


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
