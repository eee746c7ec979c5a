"""From a store to a GPT: the model, the loop, checkpoints, evaluation, samples.

Names are loaded when they are first used: `tokenmill train --help` needs the settings alone, and
must not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenmill.errors import MissingDependencyError

if TYPE_CHECKING:
    from tokenmill.train.metrics import Metrics, read_metrics
    from tokenmill.train.settings import TrainSettings

_HOMES = {
    "Metrics": "metrics",
    "TrainSettings": "settings",
    "read_metrics": "metrics",
}

__all__ = [
    "Metrics",
    "TrainSettings",
    "read_metrics",
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
