"""The folder of a run: its record, and a trained model out of it.

run.json            settings, plan, vocabulary: what the same command must say again
plan.json           the plan, for `tokenmill plan which`
tokenizer.json      the tokenizer, as the store has it
metrics.jsonl       what happened
checkpoints/        the weights
data/               raw text as tokens
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from tokenmill.config import resolve
from tokenmill.errors import ConfigError, DamageError, SettingsChangedError
from tokenmill.files import atomic_write, storage_error
from tokenmill.tokenizer import SpecialIds, Tokenizer, load_definition
from tokenmill.train.checkpoint import Checkpoints, Record, Which
from tokenmill.train.model import GPT
from tokenmill.train.model_settings import ComputeSettings, ModelSettings
from tokenmill.train.settings import TrainSettings
from tokenmill.train.sharded import cut_like

RUN_NAME: Final = "run.json"
PLAN_NAME: Final = "plan.json"
LOCK_NAME: Final = ".lock"


class TokenizerFile(msgspec.Struct, frozen=True, kw_only=True):
    """The tokenizer in the folder of a run."""

    name: str
    fingerprint: str
    file: str
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """All of `run.json`."""

    settings: dict[str, Any]
    """All settings, as they were given last."""
    content: dict[str, Any]
    """Those that decide what is learned, by dotted names."""
    plan: str
    """The digest of the plan."""
    num_steps: int
    tokenizer: TokenizerFile | None = None


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """A model out of the folder of a run, ready to be used."""

    model: GPT
    tokenizer: Tokenizer | None
    record: Record


def open_run(
    out_dir: str | Path,
    which: Which = "best",
    *,
    device: str | torch.device = "cpu",
    compute: ComputeSettings | None = None,
) -> TrainedModel:
    """Load the model of a run: its best checkpoint, its last, or that of a step.

    Where the run keeps an average of the weights, these are the ones.
    """
    folder = Path(out_dir)
    checkpoint = Checkpoints(folder).find(which)
    settings = resolve(ModelSettings, checkpoint.record.settings["model"])
    model = GPT(settings, compute)
    load_weights(model, checkpoint.tensors("ema" if checkpoint.has("ema") else "model"))
    run = read_run(folder)
    tokenizer = None if run is None else _load_tokenizer(folder, run.tokenizer)
    model = model.to(device).eval()
    return TrainedModel(model=model, tokenizer=tokenizer, record=checkpoint.record)


@torch.no_grad()
def load_weights(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Copy saved weights into a model; both must have the same names and shapes."""
    parameters = dict(model.named_parameters())
    if parameters.keys() != weights.keys():
        differing = sorted(parameters.keys() ^ weights.keys())
        raise DamageError(f"the checkpoint and the model differ in {', '.join(differing[:5])}")
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            raise DamageError(
                f"{name} is {tuple(weights[name].shape)} in the checkpoint, "
                f"{tuple(parameter.shape)} in the model"
            )
        parameter.copy_(cut_like(weights[name], parameter))


def read_run(out_dir: Path) -> RunRecord | None:
    """Read the record of a run; None if there is none."""
    path = out_dir / RUN_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunRecord)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, path) from error
    except (msgspec.DecodeError, ValueError) as error:
        raise DamageError(
            f"{path}: damaged: {error}", hint="delete it: the same command writes it again"
        ) from error


def write_run(out_dir: Path, record: RunRecord, tokenizer: Tokenizer | None) -> None:
    """Write the record, and the tokenizer beside it."""
    if tokenizer is not None:
        with atomic_write(out_dir / tokenizer.definition_name) as file:
            file.write(tokenizer.definition)
    with atomic_write(out_dir / RUN_NAME) as file:
        file.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def make_record(
    settings: TrainSettings, *, plan: str, num_steps: int, tokenizer: Tokenizer | None
) -> RunRecord:
    """Return the record of a run."""
    entry = None
    if tokenizer is not None:
        entry = TokenizerFile(
            name=tokenizer.name,
            fingerprint=tokenizer.fingerprint,
            file=tokenizer.definition_name,
            bos_id=tokenizer.bos_id,
            eos_id=tokenizer.eos_id,
            pad_id=tokenizer.pad_id,
        )
    return RunRecord(
        settings=settings.as_mapping(),
        content=settings.content(),
        plan=plan,
        num_steps=num_steps,
        tokenizer=entry,
    )


def check_same_run(out_dir: Path, before: RunRecord, settings: TrainSettings) -> None:
    """Refuse to continue a run with settings that would change what it learns."""
    then, now = before.content, _plain(settings.content())
    changed = [
        f"{name}: {then.get(name)} then, {now.get(name)} now"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]
    if changed:
        raise SettingsChangedError(
            f"{out_dir}: begun with other settings: {'; '.join(changed)}",
            hint="give the settings that it was begun with, or another --out-dir",
        )


def check_folder(out_dir: Path) -> None:
    """Make the folder of a run, unless something else lives there."""
    if out_dir.exists() and not out_dir.is_dir():
        raise ConfigError(f"{out_dir}: a file, expected a folder for the run")
    known = (RUN_NAME, "data", "checkpoints", LOCK_NAME)
    if out_dir.is_dir() and any(out_dir.iterdir()):
        if not any((out_dir / name).exists() for name in known):
            raise ConfigError(
                f"{out_dir}: holds other files than those of a run", hint="give another --out-dir"
            )
        return
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, out_dir) from error


def _load_tokenizer(out_dir: Path, entry: TokenizerFile | None) -> Tokenizer | None:
    if entry is None:
        return None
    path = out_dir / entry.file
    try:
        data = path.read_bytes()
    except OSError as error:
        raise storage_error(error, path) from error
    ids = SpecialIds(bos=entry.bos_id, eos=entry.eos_id, pad=entry.pad_id)
    tokenizer = load_definition(data, entry.file, special_ids=ids)
    if tokenizer.fingerprint != entry.fingerprint:
        raise DamageError(
            f"{path}: its fingerprint is {tokenizer.fingerprint[:19]}, "
            f"{RUN_NAME} says {entry.fingerprint[:19]}",
            hint="copy the tokenizer file of the store here",
        )
    return tokenizer


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as they come back from a JSON file."""
    return msgspec.json.decode(msgspec.json.encode(values))
