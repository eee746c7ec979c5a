"""Items that were read together, so that making a batch of them costs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from tokenmill.dataset.batch import Batch


class Items(Sequence[Batch]):
    """The rows of a batch as a sequence of items, each made when it is asked for."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch.token_ids)

    @overload
    def __getitem__(self, index: int) -> Batch: ...
    @overload
    def __getitem__(self, index: slice) -> list[Batch]: ...
    def __getitem__(self, index: int | slice) -> Batch | list[Batch]:
        if isinstance(index, slice):
            return [self.batch.row(i) for i in range(*index.indices(len(self)))]
        return self.batch.row(index)

    def __iter__(self) -> Iterator[Batch]:
        return (self.batch.row(index) for index in range(len(self)))
