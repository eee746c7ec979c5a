"""Choose a packing by name."""

from __future__ import annotations

from typing import Literal, get_args

from tokenmill.dataset.best_fit import BestFitRows
from tokenmill.dataset.padded import PaddedRows
from tokenmill.dataset.rows import Rows
from tokenmill.dataset.token_source import TokenSource
from tokenmill.dataset.windows import WindowRows
from tokenmill.errors import ConfigError

Packing = Literal["concat", "best-fit", "pad", "sliding"]


def open_rows(
    source: TokenSource,
    *,
    seq_len: int,
    packing: Packing = "concat",
    mask_boundaries: bool = False,
    stride: int | None = None,
    pad_last: bool = False,
) -> Rows:
    """Return the rows that a packing makes of a source; without a row, raise `ConfigError`.

    Args:
        seq_len: Inputs in a row.
        mask_boundaries: Whether the last token of a document predicts nothing. Otherwise it
            predicts the first token of what follows in the row.
        stride: Distance of rows of `sliding`, 1 unless given.
        pad_last: Whether `concat` keeps the tokens after the last whole row, in a padded row.
    """
    _check(packing, seq_len, stride=stride, pad_last=pad_last)
    rows: Rows
    if packing == "pad":
        rows = PaddedRows(source, seq_len=seq_len)
    elif packing == "best-fit":
        rows = BestFitRows(source, seq_len=seq_len, mask_boundaries=mask_boundaries)
    else:
        rows = WindowRows(
            source,
            seq_len=seq_len,
            stride=seq_len if packing == "concat" else stride or 1,
            mask_boundaries=mask_boundaries,
            pad_last=pad_last,
        )
    if not rows.num_rows:
        raise _no_rows(source, seq_len, packing)
    return rows


def _check(packing: str, seq_len: int, *, stride: int | None, pad_last: bool) -> None:
    if packing not in get_args(Packing):
        raise ConfigError(f"packing is {packing!r}, expected one of {', '.join(get_args(Packing))}")
    if seq_len < 1:
        raise ConfigError(f"the context length is {seq_len}, expected at least 1")
    if stride is not None and (packing != "sliding" or stride < 1):
        raise ConfigError(
            f"stride is {stride} for packing {packing}: only sliding has one, of at least 1"
        )
    if pad_last and packing != "concat":
        raise ConfigError(f"packing {packing} has no last row to pad: only concat drops tokens")


def _no_rows(source: TokenSource, seq_len: int, packing: Packing) -> ConfigError:
    if not source.num_tokens:
        return ConfigError("there are no tokens to make rows of", hint="choose another split")
    return ConfigError(
        f"{source.num_tokens:,} tokens make no row of packing {packing}: "
        f"a context of {seq_len:,} needs {seq_len + 1:,}",
        hint="choose a shorter context, or packing best-fit or pad, which fill rows up",
    )
