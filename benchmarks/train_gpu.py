"""How fast `tokenmill train` is on one GPU, next to a plain loop on the same tokens, in one run.

Two questions. Tokens per second of a model of 12 layers of 768, rows of 1024 and 50,304 ids: the
plain loop (`nanogpt_baseline.py`) at several batch sizes, then ours, with GPT-2's core and with the
modern one, and with what can be switched on. And the time to a loss: the plain loop trains for
some tokens, ours for fewer, with the same batch of tokens; both are measured on the same rows of
the validation split. Rates are of steps after the first forty, so that no compiler counts.

    python benchmarks/train_gpu.py STORE            a store with a val split, made with GPT-2's ids
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokenmill.store import open_store

HERE = Path(__file__).parent
BATCH_ROWS, CONTEXT = 64, 1024
BATCH_TOKENS = BATCH_ROWS * CONTEXT
PEAK_FLOPS = 989e12
BATCH = ["--batch-tokens", str(BATCH_TOKENS), "--batch-size", str(BATCH_ROWS)]
SIZE = ["--set", "model.context_length=1024", "--set", "model.vocab_size=50304"]
MODERN = ["--preset", "owt-90m", *SIZE, *BATCH]
OWT_IDS = 32_000
OWT = ["--preset", "owt-90m", "--dtype", "uint16", "--set", f"model.vocab_size={OWT_IDS}"]
OWT += ["--batch-size", "128"]
SPEED_ROWS = {
    "gpt2 core, AdamW": ["--preset", "gpt2", *BATCH],
    "gpt2 core, AdamW, batch 128": [
        *("--preset", "gpt2", "--batch-tokens", str(2 * BATCH_TOKENS)),
        *("--batch-size", str(2 * BATCH_ROWS)),
    ],
    "modern, FP8": [*MODERN, "--set", "compute.float8=true"],
    "modern, FP8 with head": [
        *MODERN,
        *("--set", "compute.float8=true", "--set", "compute.float8_head=true"),
    ],
    "modern, checkpointing": [*MODERN, "--set", "compute.checkpoint_blocks=true"],
    "modern, document masks": [*MODERN, "--document-masking"],
}


def main() -> None:
    """Measure what is asked for and print JSON lines."""
    parser = argparse.ArgumentParser(description="Measure training on one GPU.")
    parser.add_argument("store", type=Path)
    parser.add_argument("--only", choices=["speed", "loss"], help="one of the two questions")
    parser.add_argument("--rows", help="only rows of the first question whose name has this")
    parser.add_argument("--speed-steps", type=int, default=80)
    parser.add_argument("--loss-tokens", type=int, default=52_000_000, help="of the plain loop")
    parser.add_argument("--share", type=float, default=0.3, help="of its steps, for ours")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="for ours")
    options = parser.parse_args()
    show("device", name=torch.cuda.get_device_name(), torch=torch.__version__, commit=commit())
    with tempfile.TemporaryDirectory() as folder:
        files = plain_files(options.store, Path(folder))
        best = 0.0
        if options.only != "speed":
            best = measure_time_to_loss(options, files)
        if options.only != "loss":
            measure_speed(options, files, best=best)


def measure_speed(options: argparse.Namespace, files: tuple[Path, Path], *, best: float) -> None:
    """Print a row for each way to train, beside the best rate of the plain loop."""
    for rows in (128, 64, 32) if not options.rows else ():
        if rows == BATCH_ROWS and best:
            continue  # measured with the loss
        end = plain_loop(files, "--batch-size", rows, "--steps", 60, "--warm-steps", 20)[-1]
        best = max(best, end["tokens_per_second"])
        show_plain(rows, end)
    for name, flags in SPEED_ROWS.items():
        if not options.rows or options.rows in name:
            found = tokenmill(options.store, [*flags, *sets(options)], options)
            show_speed(name, found, best)
        if name == "gpt2 core, AdamW":
            # Speed is a matter of the number of ids, not of which: these are not text any more.
            folded = files[0].with_name("folded.bin")
            (np.fromfile(files[0], dtype=np.uint16) % OWT_IDS).tofile(folded)
            show_speed("owt-90m preset", tokenmill(folded, OWT, options), 0.0)


def show_speed(name: str, found: list[dict[str, Any]], best: float) -> float:
    """Print the rate, MFU and stall of the later steps of a run; return the rate."""
    rows = [row for row in found if row["kind"] == "train"][2:]
    if not rows:
        return 0.0  # it failed, and that was shown
    speed = statistics.median(row["tokens_per_second"] for row in rows)
    numbers = {"tokens_per_second": round(speed), "mfu": round(rows[-1].get("mfu") or 0.0, 4)}
    stall = max(row["stall"] for row in rows)
    ratio = {"ratio": round(speed / best, 3)} if best else {}
    show("speed", row=name, **numbers, stall=round(stall, 5), **ratio)
    return speed


def measure_time_to_loss(options: argparse.Namespace, files: tuple[Path, Path]) -> float:
    """Train the plain loop, then ours for a share of the time; return the rate of the first."""
    steps = options.loss_tokens // BATCH_TOKENS
    baseline = plain_loop(
        files, "--batch-size", BATCH_ROWS, "--steps", steps, "--eval-every", max(steps // 4, 1)
    )
    target = [row for row in baseline if row["kind"] == "eval"][-1]["loss"]
    best = baseline[-1]["tokens_per_second"]
    seconds = steps * BATCH_TOKENS / best
    show_plain(BATCH_ROWS, baseline[-1])
    show("loss", row="plain loop", steps=steps, seconds=round(seconds, 1), loss=target)
    own_steps = int(steps * options.share)
    flags = [*MODERN, "--eval-interval", str(max(own_steps // 5, 1)), *sets(options)]
    found = tokenmill(options.store, flags, options, steps=own_steps)
    rate = show_speed("modern core, Muon", found, best)
    for row in found:
        if row["kind"] == "eval" and rate:
            spent = row["tokens"] / rate
            show(
                "loss",
                row="tokenmill",
                steps=row["step"],
                seconds=round(spent, 1),
                share=round(spent / seconds, 3),
                loss=row["loss"],
                bits_per_byte=row.get("bits_per_byte"),
                reached=row["loss"] <= target,
            )
    return best


def tokenmill(
    store: Path, flags: list[str], options: argparse.Namespace, *, steps: int | None = None
) -> list[dict[str, Any]]:
    """Train as a user does and return the rows of metrics.jsonl."""
    out_dir = Path(tempfile.mkdtemp())
    command = [sys.executable, "-m", "tokenmill", "train", str(store), *flags]
    command += ["--max-steps", str(steps or options.speed_steps), "--log-interval", "20"]
    command += ["--out-dir", str(out_dir), "--checkpoint-interval", "0", "--progress", "none"]
    if steps is None:
        command += ["--eval-interval", "0"]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        show("failed", command=" ".join(command[2:]), stderr=done.stderr[-1500:])
        return []
    lines = (out_dir / "metrics.jsonl").read_text().splitlines()
    shutil.rmtree(out_dir)
    show("ran", seconds=round(time.perf_counter() - began, 1), sample=done.stdout[-300:])
    return [json.loads(line) for line in lines]


def plain_loop(files: tuple[Path, Path], *flags: object) -> list[dict[str, Any]]:
    """Run the baseline and return what it printed."""
    command = [sys.executable, str(HERE / "nanogpt_baseline.py"), *map(str, files)]
    done = subprocess.run([*command, *map(str, flags)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


def plain_files(store: Path, folder: Path) -> tuple[Path, Path]:
    """Write the ids of both splits as the plain loop reads them."""
    opened = open_store(store)
    paths = folder / "train.bin", folder / "val.bin"
    for name, path in zip(("train", "val"), paths, strict=True):
        split = opened.splits[name]
        with path.open("wb") as file:
            for start in range(0, split.num_tokens, 1 << 24):
                stop = min(start + (1 << 24), split.num_tokens)
                file.write(np.asarray(split.read(start, stop), dtype=np.uint16).tobytes())
        show("tokens", split=name, num_tokens=split.num_tokens)
    return paths


def sets(options: argparse.Namespace) -> list[str]:
    """Return the settings that were asked for as flags."""
    return [word for setting in options.settings for word in ("--set", setting)]


def show(kind: str, **values: Any) -> None:
    """Print one JSON line."""
    print(json.dumps({"kind": kind, **values}), flush=True)


def show_plain(rows: int, end: dict[str, Any]) -> None:
    """Print the rate of the plain loop, and its MFU by the FLOPs of the same model."""
    from tokenmill.train.flops import flops_per_token
    from tokenmill.train.model_settings import ModelSettings

    size = ModelSettings(core="gpt2", num_heads=12, vocab_size=50_304)
    speed = end["tokens_per_second"]
    mfu = speed * flops_per_token(size, CONTEXT) / PEAK_FLOPS
    numbers = {"tokens_per_second": round(speed), "mfu": round(mfu, 4)}
    peak = round(end["peak_bytes"] / 1e9, 1)
    show("speed", row=f"plain loop, batch {rows}", **numbers, peak_gb=peak)


def commit() -> str:
    """Return the commit that is measured; COMMIT names it where there is no repository."""
    if "COMMIT" in os.environ:
        return os.environ["COMMIT"]
    command = ["git", "-C", str(HERE), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
