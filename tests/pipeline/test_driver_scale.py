"""The driver's work for a run grows with its units, not with their square: counted, not timed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.pipeline.layout import Stream

if TYPE_CHECKING:
    from types import FrameType

    import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OURS = ("tokenmill.pipeline.", "tokenmill.engine.")


def count_lines(function: Any, **arguments: Any) -> int:
    """Run a function; count the lines of our code that it goes through, each turn of a loop."""
    number = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal number
        if not frame.f_globals.get("__name__", "").startswith(OURS):
            return None
        number += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(**arguments)
    finally:
        sys.settrace(before)
    return number


def test_a_driver_does_as_much_for_every_unit_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from plan_scale import drive  # pyright: ignore[reportMissingImports]

    counts: list[int] = []
    for factor in (1, 4):
        folder = tmp_path / str(factor)
        folder.mkdir()
        # more workers too: more shards are in the making at a time
        how = {"num_units": 200 * factor, "num_workers": 20 * factor, "shard_tokens": 20_000_000}
        counts.append(count_lines(drive, folder=folder, **how))
    assert counts[1] < 4.4 * counts[0]


def test_laying_out_all_shards_at_once_looks_at_every_part_once_or_so():
    def lay_out(num_units: int) -> None:
        stream = Stream("train")
        for unit in range(num_units):
            stream.extend(unit, 1000)
        layouts = stream.take_shards(1700, complete=True)
        assert sum(layout.num_tokens for layout in layouts) == 1000 * num_units
        assert stream.slots == []

    small, large = (count_lines(lay_out, num_units=number) for number in (300, 1200))
    assert large < 4.8 * small
