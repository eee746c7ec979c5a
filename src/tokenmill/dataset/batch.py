"""What a model is fed: arrays under fixed names, for one row (T,) or for a batch of rows (B, T)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset import masks

IGNORED: Final = -100
"""The label of a token that has nothing to predict; losses of torch leave it out by default."""
PADDING: Final = -1
"""The document id of padding."""


_COMPUTED: Final = {"document_mask", "cu_seqlens", "max_seqlen"}


class Batch(dict[str, Any]):
    """A batch of rows, or one row: arrays by key and by attribute.

    A dict, so that collation, pinning and moving to a device work on it in every trainer. Arrays
    are of numpy or, once converted, tensors of torch. Always there:

    token_ids      int64, the inputs
    labels         int64, what each input should predict; -100 where there is nothing to predict
    document_ids   int32, counted from 0 in each row, -1 for padding
    position_ids   int32, from 0 in each document; a row that starts inside one starts at 0, too

    Only where rows can have padding: attention_mask, bool, true for tokens. Computed when asked for
    as attributes: document_mask (T, T), cu_seqlens and max_seqlen of all rows laid end to end.
    """

    token_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    document_ids: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    attention_mask: NDArray[np.bool_] | None
    document_mask: NDArray[np.bool_]
    cu_seqlens: NDArray[np.int32]
    max_seqlen: int

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in _COMPUTED and "document_ids" in self:
            return _compute(name, self["document_ids"])
        if name == "attention_mask":  # rows without padding need none
            return None
        raise AttributeError(f"this batch has no {name!r}; it has {', '.join(self)}")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def __repr__(self) -> str:
        parts = (f"{key}: {_describe(value)}" for key, value in self.items())
        return f"Batch({', '.join(parts)})"

    def row(self, index: int) -> Batch:
        """Return one row of a batch; its arrays are views."""
        return Batch({key: value[index] for key, value in self.items()})


def concatenate(batches: list[Batch]) -> Batch:
    """Return batches of numpy arrays as one, row after row.

    Where only some have an attention mask, the rows of the others are all tokens.
    """
    if len(batches) == 1:
        return batches[0]
    masked = any("attention_mask" in batch for batch in batches)
    names = list(dict.fromkeys(key for batch in batches for key in batch))
    joined = Batch()
    for name in names:
        if name == "attention_mask" and masked:
            parts = [_attention_mask(batch) for batch in batches]
        else:
            parts = [batch[name] for batch in batches]
        joined[name] = np.concatenate(parts)
    return joined


def _attention_mask(batch: Batch) -> NDArray[np.bool_]:
    mask = batch.attention_mask
    return np.ones(batch.token_ids.shape, dtype=np.bool_) if mask is None else mask


def _compute(name: str, document_ids: Any) -> Any:
    if isinstance(document_ids, np.ndarray):
        return getattr(masks, name)(document_ids)
    from tokenmill.dataset.torch import cu_seqlens, document_mask, max_seqlen

    functions = (cu_seqlens, document_mask, max_seqlen)
    return {function.__name__: function for function in functions}[name](document_ids)


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"{value.dtype} {tuple(shape)}"
