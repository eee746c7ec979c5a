"""`tokenmill train`: data in, a GPT out."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokenmill.cli.options import json_option, progress_option, settings_options
from tokenmill.train import PRESETS, TrainSettings, resolve_train_settings

if TYPE_CHECKING:
    from tokenmill.train import TrainOutcome

EPILOG = """\b
Examples:
  tokenmill train input.txt
  tokenmill train store --preset gpt2 --max-hours 2
  tokenmill train store --preset owt-90m --out-dir runs/owt --wandb
  tokenmill train plan.yaml --set model.num_layers=8 --lr 0.01
  tokenmill train --resume --out-dir runs/owt
  torchrun --nproc-per-node 8 -m tokenmill train store --preset gpt2
"""
_NESTED = ("model", "optimizer", "schedule", "compute")
_OWN = ("data", "preset", "batch_size", "trackers", *_NESTED)
SAMPLE_TOKENS = 200


class Resume(click.ParamType):
    """A step, or the word last."""

    name = "step"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        """Return the step as a number."""
        if value == "last" or isinstance(value, int):
            return value
        if not str(value).isdigit():
            self.fail(f"{value!r} is neither a step nor 'last'", param, ctx)
        return int(value)


@click.command("train", epilog=EPILOG)
@click.argument("data", required=False)
@click.option("--preset", type=click.Choice(list(PRESETS)), help="Settings to begin with.")
@click.option("--batch-size", metavar="N|auto", help="Rows at once on each rank; auto tries.")
@click.option("--lr", type=float, help="Learning rate of the matrices: optimizer.lr.")
@click.option(
    "--optimizer", type=click.Choice(["muon", "adamw"]), help="Kind of optimizer.optimizer."
)
@click.option("--wandb", is_flag=True, help="Send metrics to Weights & Biases.")
@click.option("--trackio", is_flag=True, help="Send metrics to trackio.")
@click.option("--tensorboard", is_flag=True, help="Write metrics for TensorBoard.")
@click.option(
    "--resume",
    type=Resume(),
    is_flag=False,
    flag_value="last",
    metavar="[STEP]",
    help="Insist on continuing: from the last checkpoint, or from that of STEP.",
)
@settings_options(TrainSettings, without=_OWN)
@progress_option
@json_option
def command(
    config: Path | None,
    assignments: tuple[str, ...],
    *,
    resume: Any,
    progress: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Train a GPT on DATA: a store, a plan file, files of token ids, or raw text.

    The same command again continues a run that was stopped, or says that it is complete. Settings
    of the parts of a run are given with --set: model.*, optimizer.*, schedule.*, compute.*.
    """
    # Threads that wait for each other sleep instead of spinning: five times as fast on a machine
    # that is busy. It must be said before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from tokenmill.progress import show_progress
    from tokenmill.train import train_model

    settings = _resolve(flags, config=config, assignments=assignments, resume=resume)
    with show_progress(progress) as report:
        outcome = train_model(settings, resume=resume, report=report)
    if outcome.is_first:
        _print(outcome, as_json=as_json)


def _resolve(
    flags: dict[str, Any], *, config: Path | None, assignments: tuple[str, ...], resume: Any
) -> TrainSettings:
    """Return the settings that flags and files give; a run that is resumed may speak for itself."""
    trackers = [name for name in ("wandb", "trackio", "tensorboard") if flags.pop(name)]
    optimizer = {"lr": flags.pop("lr"), "optimizer": flags.pop("optimizer")}
    flags["optimizer"] = {name: value for name, value in optimizer.items() if value is not None}
    flags["trackers"] = trackers or None
    below: dict[str, Any] = {}
    if flags["data"] is None and resume is not None and flags["out_dir"] is not None:
        from tokenmill.train import read_run

        record = read_run(Path(flags["out_dir"]))
        below = {} if record is None else record.settings
    return resolve_train_settings(flags, config=config, assignments=assignments, below=below)


def _print(outcome: TrainOutcome, *, as_json: bool) -> None:
    from tokenmill.cli.output import print_json
    from tokenmill.progress import count, duration
    from tokenmill.train import short_sample

    found = outcome.evaluation
    text = short_sample(outcome.out_dir, max_tokens=SAMPLE_TOKENS)
    if as_json:
        print_json(
            {
                "out_dir": str(outcome.out_dir),
                "step": outcome.step,
                "num_tokens": outcome.num_tokens,
                "seconds": round(outcome.seconds, 3),
                "ending": outcome.ending,
                "was_complete": outcome.was_complete,
                "loss": None if found is None else found.loss,
                "perplexity": None if found is None else found.perplexity,
                "bits_per_byte": None if found is None else found.bits_per_byte,
                "sample": text,
            }
        )
        return
    speed = outcome.num_tokens / max(outcome.seconds, 1e-9)
    click.echo(
        f"{outcome.out_dir}: {outcome.step:,} steps, {count(outcome.num_tokens)} tokens in "
        f"{duration(outcome.seconds)} ({count(speed)} tokens/s)"
    )
    if found is not None:
        bits = "" if found.bits_per_byte is None else f", {found.bits_per_byte:.4f} bits per byte"
        click.echo(f"validation: loss {found.loss:.4f}, perplexity {found.perplexity:.2f}{bits}")
    if outcome.was_complete:
        click.echo("complete: nothing was left to do; --max-steps N trains on")
    folder = shlex.quote(str(outcome.out_dir))
    if text:
        click.echo(f"\nsample:\n{text}\n")
        click.echo(f"next: tokenmill generate {folder} --prompt 'Once' · tokenmill report {folder}")
    else:
        click.echo(f"next: tokenmill report {folder}")
