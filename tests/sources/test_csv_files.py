"""CSV and TSV: cells of one column; what is not a proper row is a reject."""

from __future__ import annotations

import csv
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import ConfigError
from tokenmill.sources import SourceSettings, cut_units, find_files, read_unit


@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(st.text(alphabet='a",;\n\r\t é語😀\u2028\x0b', max_size=10), max_size=8),
    suffix=st.sampled_from(["csv", "tsv"]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    batch_bytes=st.sampled_from([1, 7, 1 << 20]),
)
def test_cells_come_out_as_they_went_in(
    read_all, texts: list[str], suffix: str, line_end: str, batch_bytes: int
):
    content = io.StringIO(newline="")
    delimiter = "\t" if suffix == "tsv" else ","
    writer = csv.writer(content, delimiter=delimiter, lineterminator=line_end, quoting=1)
    writer.writerows([["id", "text"], *enumerate(texts)])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenmill.sources.blocks.BATCH_BYTES", batch_bytes)
        path = Path(folder, f"a.{suffix}")
        path.write_bytes(b"\xef\xbb\xbf" * (batch_bytes == 7) + content.getvalue().encode())
        found = read_all(path)
    assert found.documents == [(0, row, text) for row, text in enumerate(texts)]
    assert not found.rejects


@pytest.mark.parametrize(
    ("rows", "expected", "rejects"),
    [
        (b"", [], []),
        (b"1,a", [(0, "a")], []),
        (b"1,a\n\n\n2,b\n", [(0, "a"), (1, "b")], []),
        (b'1,"a\n\nb"\n2,c\n', [(0, "a\n\nb"), (1, "c")], []),
        (b"1,\n2,NA\n3,null\n", [(0, ""), (1, "NA"), (2, "null")], []),
        (b'1,5" disk\n2,b\n', [(0, '5" disk'), (1, "b")], []),
        (b"1,a,x\n2\n3,b\n", [(2, "b")], [(0, "bad-row"), (1, "bad-row")]),
        (b'1,"a"x\n2,b\n', [(1, "b")], [(0, "bad-row")]),
        (b'1,a\n2,"never closed\n3,b\n', [(0, "a")], [(1, "bad-row")]),
        (b"1,\xff\n\xff,b\n", [(1, "b")], [(0, "invalid-utf8")]),
        (b"bad\xff,1,2\n2,b\n", [(1, "b")], [(0, "bad-row")]),
        (b"1,a\x00b\n", [(0, "a\x00b")], []),
        (
            b"1," + b"x" * 200 + b'\n2,"' + b"x\n" * 200 + b'"\n3,b\n',
            [(2, "b")],
            [(0, "t"), (1, "t")],
        ),
        (b'1,"' + b'x""\n,y' * 200 + b'"\n2,b\n', [(1, "b")], [(0, "too-long")]),
    ],
)
def test_faults_are_rejected_in_their_place(read_all, tmp_path: Path, rows, expected, rejects):
    path = tmp_path / "a.csv"
    path.write_bytes(b"id,text\n" + rows)
    found = read_all(path, max_document_bytes=150)
    assert [(position, text) for _, position, text in found.documents] == expected
    assert [position for _, position, _ in found.rejects] == [position for position, _ in rejects]
    for (_, _, reason), (_, prefix) in zip(found.rejects, rejects, strict=True):
        assert reason.startswith(prefix)


def test_an_empty_file_has_no_documents(read_all, tmp_path: Path):
    path = tmp_path / "a.csv"
    for content in (b"", b"text", b"text\n"):
        path.write_bytes(content)
        assert read_all(path).documents == []


def test_a_long_cell_is_read(read_all, tmp_path: Path):
    text = 'line "quoted", and more\n' * 200_000
    path = tmp_path / "a.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text"], [text], ["after"]])
    assert read_all(path).texts == [text, "after"]


@pytest.mark.parametrize("header", ["id,body", "text,text", "id"])
def test_a_missing_column_is_an_error_that_names_the_columns(tmp_path: Path, header: str):
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n1,a\n", encoding="utf-8")
    settings = SourceSettings(places=(str(path),))
    files = find_files(settings)
    with pytest.raises(ConfigError, match=r"no single column 'text'; found \w+"):
        list(read_unit(files, cut_units(files)[0], settings))
