"""Turn raw text into training-ready tokens: exactly, fast, at any scale.

    import tokenmill

    store = tokenmill.tokenize("corpus.txt", "store", val_ratio=0.01)
    store.read(0, 1024)

Names are loaded when they are first used, so importing tokenmill costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenmill.dataset import (
        Loader,
        Plan,
        TextDataModule,
        dynamic_masking,
        get_dataset,
        stream_text,
    )
    from tokenmill.errors import TokenmillError
    from tokenmill.pipeline import tokenize, train_tokenizer
    from tokenmill.store import Store, open_store
    from tokenmill.tokenizer import load_tokenizer

__version__ = "0.1.0"

_HOMES = {
    "Loader": "tokenmill.dataset",
    "Plan": "tokenmill.dataset",
    "Store": "tokenmill.store",
    "TextDataModule": "tokenmill.dataset",
    "TokenmillError": "tokenmill.errors",
    "dynamic_masking": "tokenmill.dataset",
    "get_dataset": "tokenmill.dataset",
    "load_tokenizer": "tokenmill.tokenizer",
    "open_store": "tokenmill.store",
    "stream_text": "tokenmill.dataset",
    "tokenize": "tokenmill.pipeline",
    "train_tokenizer": "tokenmill.pipeline",
}

__all__ = [
    "Loader",
    "Plan",
    "Store",
    "TextDataModule",
    "TokenmillError",
    "__version__",
    "dynamic_masking",
    "get_dataset",
    "load_tokenizer",
    "open_store",
    "stream_text",
    "tokenize",
    "train_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
