"""Choose a packing by name."""

from __future__ import annotations

from typing import Literal, get_args

from tokenmill.dataset.concat import ConcatRows
from tokenmill.dataset.rows import Rows
from tokenmill.dataset.token_source import TokenSource
from tokenmill.errors import ConfigError

Packing = Literal["concat", "best-fit", "pad", "sliding"]


def open_rows(
    source: TokenSource,
    *,
    seq_len: int,
    packing: Packing = "concat",
    mask_boundaries: bool = False,
) -> Rows:
    """Return the rows that a packing makes of a source; one that has none is a `ConfigError`."""
    if packing not in get_args(Packing):
        raise ConfigError(f"packing is {packing!r}, expected one of {', '.join(get_args(Packing))}")
    if seq_len < 1:
        raise ConfigError(f"a row has {seq_len} tokens, expected at least 1")
    rows = ConcatRows(source, seq_len=seq_len, mask_boundaries=mask_boundaries)
    if not rows.num_rows:
        raise ConfigError(
            f"{source.num_tokens} tokens make no row: one of {seq_len} needs {seq_len + 1}",
            hint="choose a shorter context, or another split",
        )
    return rows
