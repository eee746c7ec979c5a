"""From a store to a GPT: the model, the loop, checkpoints, evaluation, samples.

Names are loaded when they are first used: `tokenmill train --help` needs the settings alone, and
must not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenmill.errors import MissingDependencyError

if TYPE_CHECKING:
    from tokenmill.train.checkpoint import Checkpoint, Checkpoints
    from tokenmill.train.evaluate import Evaluation
    from tokenmill.train.generate import sample
    from tokenmill.train.metrics import Metrics, read_metrics
    from tokenmill.train.model import GPT
    from tokenmill.train.model_settings import ModelSettings
    from tokenmill.train.presets import PRESETS
    from tokenmill.train.report import write_report
    from tokenmill.train.run import TrainOutcome, train_model
    from tokenmill.train.run_folder import TrainedModel, open_run, read_run
    from tokenmill.train.sample_settings import SampleSettings
    from tokenmill.train.settings import TrainSettings, resolve_train_settings
    from tokenmill.train.use_run import export_run, generate_from_run, short_sample

_HOMES = {
    "GPT": "model",
    "PRESETS": "presets",
    "Checkpoint": "checkpoint",
    "Checkpoints": "checkpoint",
    "Evaluation": "evaluate",
    "Metrics": "metrics",
    "ModelSettings": "model_settings",
    "SampleSettings": "sample_settings",
    "TrainOutcome": "run",
    "TrainSettings": "settings",
    "TrainedModel": "run_folder",
    "export_run": "use_run",
    "generate_from_run": "use_run",
    "open_run": "run_folder",
    "read_metrics": "metrics",
    "read_run": "run_folder",
    "resolve_train_settings": "settings",
    "sample": "generate",
    "short_sample": "use_run",
    "train_model": "run",
    "write_report": "report",
}

__all__ = [
    "GPT",
    "PRESETS",
    "Checkpoint",
    "Checkpoints",
    "Evaluation",
    "Metrics",
    "ModelSettings",
    "SampleSettings",
    "TrainOutcome",
    "TrainSettings",
    "TrainedModel",
    "export_run",
    "generate_from_run",
    "open_run",
    "read_metrics",
    "read_run",
    "resolve_train_settings",
    "sample",
    "short_sample",
    "train_model",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenmill.train' has no attribute {name!r}")
    try:
        return getattr(import_module(f"tokenmill.train.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name in {"torch", "safetensors"}:
            raise MissingDependencyError(error.name, extra="train", purpose="training") from error
        raise
