"""`get_dataset`: rows of a store as a map-style dataset."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, SupportsIndex, cast, get_args

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokenmill.dataset.batch import Batch
from tokenmill.dataset.items import Items
from tokenmill.dataset.masks import document_mask as make_document_mask
from tokenmill.dataset.open_source import open_source
from tokenmill.dataset.packing import Packing, open_rows
from tokenmill.dataset.rows import Accounting, Rows
from tokenmill.dataset.token_source import TokenSource
from tokenmill.errors import ConfigError, MissingDependencyError
from tokenmill.remote import is_remote
from tokenmill.sources import resolve_name
from tokenmill.store import CacheSettings

Output = Literal["torch", "numpy"]
SplitName = Literal["train", "validation", "val"]


def get_dataset(  # noqa: PLR0913  (each is a choice that a user makes in this one call)
    path: str | Path,
    context_length: int = 1024,
    *,
    packing: Packing = "concat",
    split: str | None = None,
    validation: float | None = None,
    output: Output = "torch",
    document_mask: bool = False,
    mask_boundaries: bool = False,
    stride: int | None = None,
    pad_last: bool = False,
    dtype: DTypeLike | None = None,
    eos_id: int | None = None,
    vocab_size: int | None = None,
    catalog: str | Path | None = None,
    cache: CacheSettings | None = None,
) -> TokenDataset:
    """Open a store, or plain files of token ids, as a dataset of rows of `context_length` tokens.

    Works with torch's `DataLoader` in every way; `collate_fn=dataset.collate` is faster.

    Args:
        packing: `concat`, `best-fit`, `pad` or `sliding`.
        split: Of a store, one of its splits; `train` unless given. With `validation`, the part of
            the items: `train`, or `validation` alias `val`; both if not given.
        validation: How many of the last items are for validation; below 1, which part of them.
        output: Items as tensors or as arrays.
        document_mask: Whether items carry the dense mask (T, T) of documents.
        mask_boundaries: Whether the last token of a document predicts nothing.
        stride: Distance of the rows of `sliding`, 1 unless given.
        pad_last: Whether `concat` keeps the tokens after the last whole row, in a padded row.
        dtype: Type of the ids of plain `.bin` files.
        eos_id: The id that ends documents in plain files.
        vocab_size: Size of the vocabulary of plain files; then ids beyond it are errors.
        catalog: A file of named datasets, in which `path` is a name unless it exists as a path.
        cache: Where to keep pieces of a store at s3://…, unless TOKENMILL_CACHE_* variables say so.
    """
    _check_output(output)
    if catalog is not None and not is_remote(str(path)) and not Path(path).exists():
        path = resolve_name(str(path), catalog).path
    of_store = split if split is not None and validation is None else "train"
    source = open_source(
        path, of_store, dtype=dtype, eos_id=eos_id, vocab_size=vocab_size, cache=cache
    )
    try:
        rows = open_rows(
            source,
            seq_len=context_length,
            packing=packing,
            mask_boundaries=mask_boundaries,
            stride=stride,
            pad_last=pad_last,
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error
    part = range(rows.num_rows)
    if validation is not None:
        part = split_items(rows.num_rows, validation, split=split)
    return TokenDataset(source, rows, part=part, output=output, document_mask=document_mask)


class TokenDataset:
    """Items by number, each the same whenever and wherever it is read.

    `dataset[i]` is one row, with negative `i` from the end; `dataset[a:b]` and `dataset[[1, 5]]`
    are several, as one batch. A dataset may be pickled, forked and shared by threads.
    """

    def __init__(
        self,
        source: TokenSource,
        rows: Rows,
        *,
        part: range,
        output: Output = "torch",
        document_mask: bool = False,
    ) -> None:
        self.source = source
        self.rows = rows
        self.context_length = rows.seq_len
        self.output: Output = output
        self.document_mask = document_mask
        self._part = part

    @property
    def vocab_size(self) -> int | None:
        """Size of the id space, added tokens included; None for plain files that do not tell."""
        return self.source.vocab_size

    def num_tokens(self) -> int:
        """Return how many tokens the files hold; `accounting` says what becomes of them."""
        return self.source.num_tokens

    def num_files(self) -> int:
        """Return how many files hold the tokens."""
        return self.source.num_files

    def accounting(self) -> Accounting:
        """Return what becomes of every token in an epoch over all items, also of the other part."""
        return self.rows.accounting()

    def collate(self, items: Sequence[Batch]) -> Batch:
        """Return items as one batch: the `collate_fn` for a `DataLoader` over this dataset."""
        if self.output == "torch":
            from tokenmill.dataset.torch import collate

            return collate(items)
        if isinstance(items, Items):
            return items.batch
        return Batch({key: np.stack([item[key] for item in items]) for key in items[0]})

    def __len__(self) -> int:
        return len(self._part)

    def __getitem__(self, index: SupportsIndex | slice | Sequence[int] | NDArray[Any]) -> Batch:
        if isinstance(index, slice):
            return self._read(range(len(self))[index])
        if isinstance(index, Sequence | np.ndarray):
            return self._read(cast("Sequence[int]", index))
        return self._read([operator.index(index)]).row(0)

    def __getitems__(self, indices: Sequence[int]) -> Items:
        """Return items that are read together; torch's `DataLoader` calls this for each batch."""
        return Items(self._read(indices))

    def __iter__(self) -> Iterator[Batch]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return (
            f"TokenDataset({len(self):,} items of {self.context_length:,} tokens, "
            f"{self.num_tokens():,} tokens in {self.num_files():,} files)"
        )

    def _read(self, items: Sequence[int]) -> Batch:
        indices = np.array(items)
        if indices.dtype.kind not in "iu" and len(indices):
            raise TypeError(f"items are numbered by integers, not by {indices.dtype}")
        wrong = (indices < -len(self)) | (indices >= len(self))
        if wrong.any():
            raise IndexError(f"item {indices[wrong][0]} is outside [0, {len(self)})")
        indices = np.where(indices < 0, indices + len(self), indices).astype(np.int64)
        batch = self.rows.read(indices + self._part.start)
        if self.document_mask:
            batch["document_mask"] = make_document_mask(batch.document_ids)
        if self.output == "numpy":
            return batch
        from tokenmill.dataset.torch import to_torch

        return to_torch(batch)


def split_items(num_items: int, validation: float, *, split: str | None) -> range:
    """Return the items of a part: the last ones are for validation, the others for training.

    >>> split_items(10, 0.25, split="train"), split_items(10, 4, split="val")
    (range(0, 7), range(6, 10))
    """
    if split is not None and split not in get_args(SplitName):
        names = ", ".join(get_args(SplitName))
        raise ConfigError(f"split is {split!r}, expected one of {names} when validation is given")
    num_validation = _num_validation(num_items, validation)
    if split is None:
        return range(num_items)
    cut = num_items - num_validation
    part = range(cut) if split == "train" else range(cut, num_items)
    if not part:
        raise ConfigError(
            f"{num_validation} of {num_items} items are for validation: none are left for {split}",
            hint="choose another number of items for validation, or a shorter context",
        )
    return part


def _num_validation(num_items: int, validation: float) -> int:
    if 0 < validation < 1:  # as typed in decimal digits: in binary, 100 * 0.07 is more than 7
        return math.ceil(num_items * Fraction(repr(float(validation))))
    if isinstance(validation, bool) or not float(validation).is_integer() or validation < 0:
        raise ConfigError(f"validation is {validation}, expected a number of items or a part of 1")
    if validation > num_items:
        raise ConfigError(f"validation is {validation}, but there are {num_items} items")
    return int(validation)


def _check_output(output: str) -> None:
    if output not in get_args(Output):
        raise ConfigError(f"output is {output!r}, expected one of {', '.join(get_args(Output))}")
    if output == "torch" and find_spec("torch") is None:
        raise MissingDependencyError("torch", extra="train", purpose='output="torch"')
