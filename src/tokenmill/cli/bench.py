"""`tokenmill bench`: how fast is this on my machine, with my data?"""

from __future__ import annotations

import click

from tokenmill.cli.options import json_option

EPILOG = """\b
Examples:
  tokenmill bench loader store
  tokenmill bench loader store --seq-len 4096 --batch-size 16 --threads 1 --threads 4
  tokenmill bench loader store --packing concat --json
"""
_PACKINGS = ("concat", "best-fit", "pad", "sliding")


@click.group("bench", epilog=EPILOG)
def command() -> None:
    """Measure the speed of parts of tokenmill on this machine."""


@command.command("loader", epilog=EPILOG)
@click.argument("store", type=str)
@click.option("--split", default="train", show_default=True, help="Split to read.")
@click.option("--seq-len", type=int, default=1024, show_default=True, help="Tokens in a row.")
@click.option("--batch-size", type=int, default=64, show_default=True, help="Rows in a batch.")
@click.option(
    "--packing",
    "packings",
    type=click.Choice(_PACKINGS),
    multiple=True,
    default=_PACKINGS,
    help="Only this packing; may be repeated.",
)
@click.option(
    "--threads",
    type=int,
    multiple=True,
    default=(0, 1, 2, 4),
    show_default=True,
    help="Number of threads; may be repeated.",
)
@click.option(
    "--seconds", type=float, default=1.0, show_default=True, help="Length of a measurement."
)
@json_option
def loader_command(  # noqa: PLR0913  (one for each flag)
    store: str,
    *,
    split: str,
    seq_len: int,
    batch_size: int,
    packings: tuple[str, ...],
    threads: tuple[int, ...],
    seconds: float,
    as_json: bool,
) -> None:
    """Measure how many tokens a second a loader delivers from STORE.

    For each packing and number of threads: with token ids, labels, document ids and position ids,
    and with a dense mask of documents besides.
    """
    from tokenmill.cli.output import print_json
    from tokenmill.dataset import Plan, Source, measure_loader
    from tokenmill.progress import count

    results = []
    if not as_json:
        click.echo(f"{'packing':10} {'threads':>7} {'tokens/s':>10} {'with masks':>10}")
    for packing in packings:
        sources = (Source(path=store, split=split),)
        plan = Plan(sources=sources, seq_len=seq_len, batch_size=batch_size, packing=packing)  # pyright: ignore[reportArgumentType]  (click checked it)
        for num_threads in threads:
            pair = [
                measure_loader(plan, num_threads=num_threads, with_masks=masks, seconds=seconds)
                for masks in (False, True)
            ]
            results += pair
            if not as_json:
                rates = " ".join(f"{count(result.tokens_per_second):>10}" for result in pair)
                click.echo(f"{packing:10} {num_threads:7} {rates}")
    if as_json:
        print_json({"seq_len": seq_len, "batch_size": batch_size, "results": results})
