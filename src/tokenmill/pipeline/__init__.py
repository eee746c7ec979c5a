"""Sources, tokenizer and engine put together: documents become a store.

Names are loaded when they are first used: `tokenmill tokenize --help` needs the settings alone, and
must not wait for encoders.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenmill.pipeline.dry_run import Estimate, estimate
    from tokenmill.pipeline.ratio import Ratio, compression_ratios
    from tokenmill.pipeline.run import Outcome, tokenize, tokenize_corpus
    from tokenmill.pipeline.settings import TokenizeSettings
    from tokenmill.pipeline.share import ShareOutcome, parse_share, tokenize_share
    from tokenmill.pipeline.single_file import is_single_file, tokenize_file
    from tokenmill.pipeline.status import Status, run_status
    from tokenmill.pipeline.train_settings import TrainSettings
    from tokenmill.pipeline.training import TrainReport, train, train_tokenizer

_HOMES = {
    "Estimate": "dry_run",
    "Outcome": "run",
    "Ratio": "ratio",
    "ShareOutcome": "share",
    "Status": "status",
    "TokenizeSettings": "settings",
    "TrainReport": "training",
    "TrainSettings": "train_settings",
    "compression_ratios": "ratio",
    "estimate": "dry_run",
    "is_single_file": "single_file",
    "parse_share": "share",
    "run_status": "status",
    "tokenize": "run",
    "tokenize_corpus": "run",
    "tokenize_file": "single_file",
    "tokenize_share": "share",
    "train": "training",
    "train_tokenizer": "training",
}

__all__ = [
    "Estimate",
    "Outcome",
    "Ratio",
    "ShareOutcome",
    "Status",
    "TokenizeSettings",
    "TrainReport",
    "TrainSettings",
    "compression_ratios",
    "estimate",
    "is_single_file",
    "parse_share",
    "run_status",
    "tokenize",
    "tokenize_corpus",
    "tokenize_file",
    "tokenize_share",
    "train",
    "train_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenmill.pipeline' has no attribute {name!r}")
    return getattr(import_module(f"tokenmill.pipeline.{_HOMES[name]}"), name)
