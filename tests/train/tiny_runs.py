"""A small text, stores made of it, and settings for runs of a second."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenmill.pipeline import tokenize
from tokenmill.progress import Event
from tokenmill.train.settings import TrainSettings, resolve_train_settings

WORDS = ("the", "a", "mill", "grinds", "grain", "into", "flour", "and", "water", "turns", "wheel")
TINY: dict[str, Any] = {
    "model": {"num_layers": 2, "num_heads": 2, "width": 32, "context_length": 32},
    "batch_tokens": 256,
    "batch_size": 4,
    "max_steps": 12,
    "eval_interval": 4,
    "checkpoint_interval": 3,
    "log_interval": 2,
    "schedule": {"shape": "cosine", "warmup_steps": 2},
    "optimizer": {"momentum_warmup_steps": 5},
}


def text(num_documents: int, *, seed: int = 1) -> list[str]:
    """Return sentences of a few words, the same for the same seed."""
    rng = random.Random(seed)
    lengths = [rng.randint(3, 30) for _ in range(num_documents)]
    return [" ".join(rng.choice(WORDS) for _ in range(length)) for length in lengths]


def byte_tokenizer(path: Path) -> Path:
    """Write a tokenizer that knows the 256 bytes and the end of a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: number for number, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(path))
    return path


def make_store(folder: Path, *, val_ratio: float = 0.15) -> Path:
    """Tokenize a small text into a store with a train and a val split."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "text.txt"
    source.write_text("\n".join(text(400)))
    tokenizer = byte_tokenizer(folder / "bytes.json")
    tokenize(source, folder / "store", tokenizer=str(tokenizer), val_ratio=val_ratio)
    return folder / "store"


def tiny(data: Path, out_dir: Path, **changes: Any) -> TrainSettings:
    """Return the settings of a small run; `changes` go over them."""
    layer = {**TINY, "data": str(data), "out_dir": str(out_dir), "device": "cpu"}
    for name, value in changes.items():
        layer[name] = _merged(layer.get(name), value)
    return resolve_train_settings(layer)


def _merged(below: Any, value: Any) -> Any:
    both = isinstance(below, dict) and isinstance(value, dict)
    return {**below, **value} if both else value


def rows(out_dir: Path, kind: str) -> list[dict[str, Any]]:
    """Return the rows of one kind in the metrics of a run."""
    lines = (out_dir / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def stop_at(step: int, number: int = signal.SIGUSR1) -> Callable[[Event], None]:
    """Return a reporter that sends this process a signal when a step is reported."""

    def report(event: Event) -> None:
        if event.stage == "train" and event.done == step:
            os.kill(os.getpid(), number)

    return report
