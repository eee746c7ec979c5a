"""A dataset as Grain takes it: length, item by number, plain dicts of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.token_dataset import get_dataset


class RandomAccessSource:
    """Rows of a store as a Grain `RandomAccessDataSource`, which is a length and items by number.

    Items are plain dicts, since the trees of JAX do not look into classes that they do not know.
    `options` are those of `get_dataset`.

        grain.MapDataset.source(RandomAccessSource("store", 1024)).shuffle(seed=1).batch(8)
    """

    def __init__(self, path: str | Path, context_length: int = 1024, **options: Any) -> None:
        self.path = str(path)
        self.dataset = get_dataset(path, context_length, output="numpy", **options)
        self._options = options

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, record_key: SupportsIndex) -> dict[str, NDArray[np.generic]]:
        return dict(self.dataset[record_key])

    def __repr__(self) -> str:
        # Grain compares this with what a checkpoint says, so it names all that decides the items.
        options = "".join(f", {name}={value!r}" for name, value in sorted(self._options.items()))
        return f"RandomAccessSource({self.path!r}, {self.dataset.context_length}{options})"
