"""Units: a pure function of the files; small files share one."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.errors import ConfigError
from tokenmill.sources import SourceFile, Unit, cut_units

KINDS = st.sampled_from([("text", "", True), ("jsonl", "zst", False), ("csv", "", False)])


@given(
    kinds=st.lists(st.tuples(KINDS, st.integers(0, 50)), max_size=12), unit_bytes=st.integers(1, 60)
)
def test_units_cover_each_file_once_and_in_order(kinds, unit_bytes: int):
    files = [
        SourceFile(f"{number}", size, "", kind, compression, splittable)
        for number, ((kind, compression, splittable), size) in enumerate(kinds)
    ]
    units = cut_units(files, unit_bytes=unit_bytes)
    assert units == cut_units(files, unit_bytes=unit_bytes)
    spans = [span for unit in units for span in unit.spans]
    assert [span.file for span in spans] == sorted(span.file for span in spans)
    for number, file in enumerate(files):
        mine = [span for span in spans if span.file == number]
        if file.splittable:
            assert mine[0].start == 0
            assert mine[-1].stop == file.size
            assert all(a.stop == b.start for a, b in pairwise(mine))
            assert all(span.stop - span.start <= unit_bytes for span in mine)
        else:
            assert [(span.start, span.stop) for span in mine] == [(0, 0)]


def test_small_files_share_a_unit():
    files = [SourceFile(str(number), 1000, "", "text", "", True) for number in range(100_000)]
    units = cut_units(files, unit_bytes=1 << 20)
    assert len(units) == 96
    assert sum(len(unit.spans) for unit in units) == 100_000


def test_units_travel_as_json():
    files = [SourceFile("a", 100, "v", "text", "", True), SourceFile("b", 3, "v", "json")]
    units = cut_units(files, unit_bytes=30)
    assert msgspec.json.decode(msgspec.json.encode(units), type=list[Unit]) == units
    assert msgspec.json.decode(msgspec.json.encode(files), type=list[SourceFile]) == files


def test_a_unit_has_at_least_a_byte():
    with pytest.raises(ConfigError, match="at least 1"):
        cut_units([], unit_bytes=0)


def test_a_folder_of_many_formats_is_one_sequence(read_all, tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\n")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "three"}\n')
    (tmp_path / "c.csv").write_bytes(b"text\nfour\n")
    (tmp_path / "d.json").write_bytes(b'["five"]')
    (tmp_path / "e.txt").write_bytes(b"")
    (tmp_path / "f.txt").write_bytes(b"six")
    expected = [(0, 0, "one"), (0, 4, "two"), (1, 0, "three"), (2, 0, "four"), (3, 0, "five")]
    for unit_bytes in (1, 5, 20, 1 << 20):
        found = read_all(tmp_path, unit_bytes=unit_bytes)
        assert found.documents == [*expected, (5, 0, "six")]
    assert found.num_units == 1
