"""What a trained run is good for: text, and a folder that other libraries load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tokenmill.errors import ConfigError
from tokenmill.train.build import choose_device
from tokenmill.train.checkpoint import Which
from tokenmill.train.distributed import Ranks
from tokenmill.train.export_hf import export_hf
from tokenmill.train.generate import sample
from tokenmill.train.run_folder import open_run
from tokenmill.train.sample_settings import SampleSettings


def generate_from_run(
    run: str | Path,
    prompt: str = "",
    *,
    settings: SampleSettings | None = None,
    which: Which = "best",
    device: str = "auto",
) -> Iterator[str]:
    """Yield the text that a run's model puts after a prompt, in whole characters."""
    trained = open_run(run, which, device=choose_device(device, Ranks()))
    if trained.tokenizer is None:
        raise ConfigError(
            f"{run}: the run has no tokenizer, since its data was plain token ids",
            hint="train on a store, which keeps its tokenizer",
        )
    return sample(trained.model, trained.tokenizer, prompt, settings=settings)


def short_sample(run: str | Path, *, max_tokens: int, device: str = "auto") -> str:
    """Return a text that a run's model makes up; nothing if the run has no tokenizer."""
    trained = open_run(run, device=choose_device(device, Ranks()))
    if trained.tokenizer is None:
        return ""
    settings = SampleSettings(max_tokens=max_tokens)
    return "".join(sample(trained.model, trained.tokenizer, "\n", settings=settings))


def export_run(
    run: str | Path,
    folder: str | Path,
    *,
    which: Which = "best",
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> Path:
    """Write the model of a run, and its tokenizer, as a new folder for `transformers`."""
    trained = open_run(run, which)
    return export_hf(trained.model, folder, tokenizer=trained.tokenizer, dtype=dtype)
