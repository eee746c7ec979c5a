"""Change tokens at random, the same way in every run: masked tokens, and changes of your own.

Both are transforms of a `Loader`. What they do to a row depends on the seed, the step and the place
of the row in the global batch: not on ranks, threads or where a run was resumed.

    mask = partial(dynamic_masking, seed=1, mask_id=103, num_ids=30522, special_ids=(101, 102))
    Loader(plan, transform=mask)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import numpy as np

from tokenmill.dataset.batch import IGNORED, PADDING, Batch
from tokenmill.dataset.loader import Transform
from tokenmill.errors import ConfigError

Augmentation = Callable[[Batch, np.random.Generator], Batch]
"""Changes one row; all randomness comes from the generator."""

_DRAWS: Final = 4  # values that one count of the generator gives
_BITS: Final = 24  # of chance in each of the two decisions; 16 more are between them
_MASKED, _CHANGED = 0.8, 0.9  # below the first: the mask; below the second: any token
_UINT64_MASK: Final = (1 << 64) - 1


def dynamic_masking(  # noqa: PLR0913  (a function of numbers alone)
    batch: Batch,
    *,
    seed: int,
    step: int,
    mask_id: int,
    num_ids: int,
    special_ids: Collection[int] = (),
    probability: float = 0.15,
    first_row: int = 0,
) -> Batch:
    """Return a batch for learning masked tokens, as BERT does; the given one is not changed.

    Each token is chosen with `probability`. Of those chosen, 80% become `mask_id`, 10% any id below
    `num_ids`, and 10% stay. Labels are the ids of those chosen and -100 elsewhere. Special ids and
    padding are never chosen.

    Args:
        step: With the seed, it decides what is chosen: another step chooses anew.
        first_row: Place of the first row in the global batch.
    """
    if not 0 <= probability <= 1:
        raise ConfigError(f"probability is {probability}, expected 0 to 1")
    if not 0 <= mask_id < num_ids or num_ids > 1 << _BITS:
        raise ConfigError(f"mask_id is {mask_id} and num_ids {num_ids}: expected an id below both")
    ids = np.atleast_2d(batch.token_ids)
    draws = _draw(ids.shape, seed=seed, step=step, first_row=first_row)
    chosen = (draws >> np.uint64(64 - _BITS)) < np.uint64(round(probability * (1 << _BITS)))
    chosen &= np.atleast_2d(batch.document_ids) != PADDING
    if len(special_ids):
        chosen &= ~np.isin(ids, list(special_ids))
    kind = (draws >> np.uint64(_BITS)) & np.uint64(0xFFFF)
    any_id = ((draws & np.uint64((1 << _BITS) - 1)) * np.uint64(num_ids)) >> np.uint64(_BITS)
    changed = np.where(kind < round(_CHANGED * (1 << 16)), any_id.astype(ids.dtype), ids)
    changed = np.where(kind < round(_MASKED * (1 << 16)), mask_id, changed)
    shape = batch.token_ids.shape
    return Batch(
        {
            **batch,
            "token_ids": np.where(chosen, changed, ids).reshape(shape),
            "labels": np.where(chosen, ids, IGNORED).reshape(shape),
        }
    )


def augmentation(function: Augmentation, *, seed: int) -> Transform:
    """Return a transform that changes every row by a function of yours.

    The function gets a copy of the row, which it may change and must return, and a generator made
    from the seed, the step and the place of the row in the global batch.
    """

    def transform(batch: Batch, *, step: int, first_row: int) -> Batch:
        rows: list[Batch] = []
        for index in range(len(batch.token_ids)):
            rng = np.random.default_rng((seed & _UINT64_MASK, step, first_row + index))
            row = Batch({name: array.copy() for name, array in batch.row(index).items()})
            rows.append(function(row, rng))
        return Batch({name: np.stack([row[name] for row in rows]) for name in rows[0]})

    return transform


def _draw(
    shape: tuple[int, ...], *, seed: int, step: int, first_row: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """Return 64 random bits for each place, the same for a place in whichever batch it comes."""
    num_rows, seq_len = shape
    counts = -(-seq_len // _DRAWS)
    generator = np.random.Philox(key=np.array([seed & _UINT64_MASK, step], dtype=np.uint64))
    generator.advance(first_row * counts)
    draws = generator.random_raw(num_rows * counts * _DRAWS)
    return draws.reshape(num_rows, -1)[:, :seq_len]
