"""Sources, tokenizer and engine put together: documents become a store.

Names are loaded when they are first used: `tokenmill tokenize --help` needs the settings alone, and
must not wait for encoders.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenmill.pipeline.dry_run import Estimate, estimate
    from tokenmill.pipeline.run import Outcome, tokenize, tokenize_corpus
    from tokenmill.pipeline.settings import TokenizeSettings
    from tokenmill.pipeline.status import Status, run_status

_HOMES = {
    "Estimate": "dry_run",
    "Outcome": "run",
    "Status": "status",
    "TokenizeSettings": "settings",
    "estimate": "dry_run",
    "run_status": "status",
    "tokenize": "run",
    "tokenize_corpus": "run",
}

__all__ = [
    "Estimate",
    "Outcome",
    "Status",
    "TokenizeSettings",
    "estimate",
    "run_status",
    "tokenize",
    "tokenize_corpus",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenmill.pipeline' has no attribute {name!r}")
    return getattr(import_module(f"tokenmill.pipeline.{_HOMES[name]}"), name)
