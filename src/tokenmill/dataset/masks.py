"""Which token may look at which: computed from document ids, when it is asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def document_mask(document_ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return `mask[..., q, k]`: whether q and k are of one document and q does not precede k.

    Padding sees the padding before it, so that no row of the mask is empty.

    >>> document_mask(np.array([0, 0, 1])).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    same = document_ids[..., :, None] == document_ids[..., None, :]
    return np.tril(same)


def cu_seqlens(document_ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return where documents begin in the rows laid end to end, and at last the number of tokens.

    This is what attention over sequences of various lengths takes. Documents end with their row,
    and padding is a document.

    >>> cu_seqlens(np.array([[0, 0, 1], [0, 1, -1]])).tolist()
    [0, 2, 3, 4, 5, 6]
    """
    begins = np.ones(document_ids.shape, dtype=np.bool_)
    begins[..., 1:] = document_ids[..., 1:] != document_ids[..., :-1]
    return np.append(np.flatnonzero(begins), begins.size).astype(np.int32)


def max_seqlen(document_ids: NDArray[np.int32]) -> int:
    """Return the length of the longest document in a row.

    >>> max_seqlen(np.array([[0, 0, 1], [0, 1, -1]]))
    2
    """
    return int(np.diff(cu_seqlens(document_ids)).max(initial=0))
