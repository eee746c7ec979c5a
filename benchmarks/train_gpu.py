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
SIZE = ["--set", "model.context_length=1024", "--set", "model.vocab_size=50304"]
MODERN = ["--preset", "owt-90m", *SIZE]
GPT2 = ["--preset", "gpt2"]
SPEED_ROWS = {
    "gpt2 core, AdamW": GPT2,
    "modern core, Muon": MODERN,
    "modern, document masks": [*MODERN, "--document-masking"],
    "modern, FP8": [*MODERN, "--set", "compute.float8=true"],
    "modern, FP8 with head": [
        *MODERN,
        *("--set", "compute.float8=true", "--set", "compute.float8_head=true"),
    ],
    "modern, checkpointing": [*MODERN, "--set", "compute.checkpoint_blocks=true"],
}
OWT = ["--preset", "owt-90m"]


def main() -> None:
    """Measure what is asked for and print JSON lines."""
    parser = argparse.ArgumentParser(description="Measure training on one GPU.")
    parser.add_argument("store", type=Path)
    parser.add_argument("--only", choices=["speed", "loss"], help="one of the two questions")
    parser.add_argument("--rows", help="only rows of the first question whose name has this")
    parser.add_argument("--speed-steps", type=int, default=80)
    parser.add_argument("--loss-tokens", type=int, default=52_000_000, help="of the plain loop")
    parser.add_argument("--share", type=float, default=0.45, help="of its time, for ours")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="for ours")
    options = parser.parse_args()
    show("device", name=torch.cuda.get_device_name(), torch=torch.__version__, commit=commit())
    with tempfile.TemporaryDirectory() as folder:
        files = plain_files(options.store, Path(folder))
        best = 0.0
        if options.only != "loss":
            best = measure_speed(options, files)
        if options.only != "speed":
            measure_time_to_loss(options, files, baseline_speed=best)


def measure_speed(options: argparse.Namespace, files: tuple[Path, Path]) -> float:
    """Print a row for each way to train; return the best rate of the plain loop."""
    best = 0.0
    for rows in (32, 64, 128):
        if options.rows and options.rows not in "plain loop":
            break
        end = plain_loop(files, "--batch-size", rows, "--steps", 60, "--warm-steps", 20)[-1]
        best = max(best, end["tokens_per_second"])
        show("speed", row=f"plain loop, batch {rows}", **rounded(end), peak_gb=gigabytes(end))
    for name, flags in SPEED_ROWS.items():
        if options.rows and options.rows not in name:
            continue
        batch = ["--batch-tokens", str(BATCH_TOKENS), "--batch-size", str(BATCH_ROWS)]
        found = tokenmill(options.store, [*flags, *batch, *sets(options)], options)
        show_speed(name, found, best)
    if not options.rows or options.rows in "owt-90m preset":
        show_speed("owt-90m preset", tokenmill(options.store, OWT, options), 0.0)
    return best


def show_speed(name: str, found: list[dict[str, Any]], best: float) -> None:
    """Print the rate, MFU and stall of the later steps of a run."""
    rows = [row for row in found if row["kind"] == "train"][2:]
    speed = statistics.median(row["tokens_per_second"] for row in rows)
    numbers = {"tokens_per_second": round(speed), "mfu": round(rows[-1].get("mfu") or 0.0, 4)}
    stall = max(row["stall"] for row in rows)
    ratio = {"ratio": round(speed / best, 3)} if best else {}
    show("speed", row=name, **numbers, stall=round(stall, 5), **ratio)


def measure_time_to_loss(
    options: argparse.Namespace, files: tuple[Path, Path], *, baseline_speed: float
) -> None:
    """Train the plain loop, then ours for a share of the time; print both losses."""
    steps = options.loss_tokens // BATCH_TOKENS
    baseline = plain_loop(
        files, "--batch-size", BATCH_ROWS, "--steps", steps, "--eval-every", max(steps // 4, 1)
    )
    evals, speed = [row for row in baseline if row["kind"] == "eval"], baseline[-1]
    seconds = steps * BATCH_TOKENS / max(speed["tokens_per_second"], baseline_speed)
    show("loss", row="plain loop", steps=steps, seconds=round(seconds, 1), loss=evals[-1]["loss"])
    own_steps = int(steps * options.share)
    flags = [*MODERN, "--batch-tokens", str(BATCH_TOKENS), "--batch-size", str(BATCH_ROWS)]
    flags += ["--eval-interval", str(max(own_steps // 8, 1)), *sets(options)]
    found = tokenmill(options.store, flags, options, steps=own_steps)
    rate = statistics.median(r["tokens_per_second"] for r in found[3:] if r["kind"] == "train")
    for row in found:
        if row["kind"] == "eval":
            spent = row["tokens"] / rate
            reached = row["loss"] <= evals[-1]["loss"]
            show(
                "loss",
                row="tokenmill",
                steps=row["step"],
                seconds=round(spent, 1),
                share=round(spent / seconds, 3),
                loss=row["loss"],
                bits_per_byte=row.get("bits_per_byte"),
                reached=reached,
            )


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
        return [{"kind": "train", "tokens_per_second": 0.0, "stall": 0.0, "tokens": 0}] * 4
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


def rounded(end: dict[str, Any]) -> dict[str, Any]:
    """Return the rate of the plain loop, and its MFU by the FLOPs of the same model."""
    from tokenmill.train.flops import flops_per_token
    from tokenmill.train.model_settings import ModelSettings

    size = ModelSettings(core="gpt2", num_heads=12, vocab_size=50_304)
    speed = end["tokens_per_second"]
    mfu = speed * flops_per_token(size, CONTEXT) / PEAK_FLOPS
    return {"tokens_per_second": round(speed), "mfu": round(mfu, 4)}


def gigabytes(end: dict[str, Any]) -> float:
    """Return the peak memory of the plain loop."""
    return round(end["peak_bytes"] / 1e9, 1)


def commit() -> str:
    """Return the commit that is measured; COMMIT names it where there is no repository."""
    if "COMMIT" in os.environ:
        return os.environ["COMMIT"]
    command = ["git", "-C", str(HERE), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
