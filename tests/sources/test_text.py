"""Text by line, by separator and by file: each document once, however the file is cut."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

PIECES = [
    b"a",
    b"bc",
    b" ",
    b"\t",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n\n\n",
    "é".encode(),
    "語".encode(),
    "😀".encode(),
    "\u3000".encode(),  # white space outside ASCII
    "\u2028".encode(),  # a line separator that ends no line
    b"\xff",
    b"\xe8\xaa",  # the start of a character
    b"\xef\xbb\xbf",
]
contents = st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join)
batch_sizes = st.sampled_from([1, 2, 3, 5, 1 << 20])


def naive_pieces(data: bytes, delimiter: bytes) -> list[tuple[int, bytes, bool]]:
    """Return start, content and whether a delimiter follows, for each piece of a file."""
    pieces, start = [], 0
    while start < len(data):
        end = data.find(delimiter, start)
        is_closed = end >= 0
        end = end if is_closed else len(data)
        pieces.append((start, data[start:end], is_closed))
        start = end + len(delimiter)
    return pieces


def naive_read(data: bytes, separator: str | None):
    """Return documents, rejects and the number of blanks, the slow and simple way."""
    documents, rejects, num_blank = [], [], 0
    for start, content, is_closed in naive_pieces(data, (separator or "\n").encode()):
        piece = content.removesuffix(b"\r") if separator is None and is_closed else content
        if start == 0:
            piece = piece.removeprefix(b"\xef\xbb\xbf")
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            rejects.append((0, start, "invalid-utf8"))
            continue
        if text.strip():
            documents.append((0, start, text))
        else:
            num_blank += 1
    return documents, rejects, num_blank


def check_every_cut(read_all, data: bytes, *, separator: str | None, batch_bytes: int) -> None:
    expected = naive_read(data, separator)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenmill.sources.blocks.BATCH_BYTES", batch_bytes)
        path = Path(folder, "a.txt")
        path.write_bytes(data)
        for unit_bytes in range(1, len(data) + 2):
            found = read_all(path, unit_bytes=unit_bytes, separator=separator)
            assert (found.documents, sorted(found.rejects), found.num_blank) == expected


@settings(max_examples=120, deadline=None)
@given(data=contents, batch_bytes=batch_sizes)
def test_lines_are_the_same_for_every_cut(read_all, data: bytes, batch_bytes: int):
    check_every_cut(read_all, data, separator=None, batch_bytes=batch_bytes)


@settings(max_examples=150, deadline=None)
@given(
    separator=st.sampled_from(["|", "<>", "語", "é|", "--", "aba", "<|end|>", "\n\n", "\r\n"]),
    pieces=st.lists(st.sampled_from([*PIECES, None, None, None]), max_size=12),
    cut=st.integers(0, 6),
    batch_bytes=batch_sizes,
)
def test_pieces_between_separators_are_the_same_for_every_cut(
    read_all, separator: str, pieces: list[bytes | None], cut: int, batch_bytes: int
):
    encoded = separator.encode()
    data = b"".join(encoded if piece is None else piece for piece in pieces) + encoded[:cut]
    check_every_cut(read_all, data, separator=separator, batch_bytes=batch_bytes)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", []),
        (b"a", [(0, "a")]),
        (b"a\nb", [(0, "a"), (2, "b")]),
        (b"a\r\nb\r\n", [(0, "a"), (3, "b")]),
        (b"a\r", [(0, "a\r")]),
        (b"a\r\r\n", [(0, "a\r")]),
        (b"\xef\xbb\xbfa\nb\n", [(0, "a"), (5, "b")]),
        (b"\xef\xbb\xbf\na\n", [(4, "a")]),
        (b" a \n", [(0, " a ")]),
        ("x\u2028y\x0bz\x85".encode(), [(0, "x\u2028y\x0bz\x85")]),
        (b"a\x00b\n", [(0, "a\x00b")]),
    ],
)
def test_a_line_ends_at_the_newline_alone(read_all, tmp_path: Path, data: bytes, expected):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    found = read_all(path)
    assert [(position, text) for _, position, text in found.documents] == expected
    assert not found.rejects


def test_thousands_of_blank_lines_are_counted_and_passed_over(read_all, tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n" * 5000 + b"first\n" + b" \n" * 9000 + b"last" + b"\r\n" * 3000)
    for unit_bytes in (1000, 4999, 5000, 5001, 5006, 1 << 20):
        found = read_all(path, unit_bytes=unit_bytes)
        assert found.documents == [(0, 5000, "first"), (0, 23006, "last")]
        assert found.num_blank == 5000 + 9000 + 2999


def test_more_documents_than_a_batch_holds_keep_their_positions(read_all, tmp_path: Path):
    lines = [f"{number} é" for number in range(30000)]
    path = tmp_path / "a.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    found = read_all(path)
    assert found.texts == lines
    data = path.read_bytes()
    assert all(data[p:].startswith(t.encode()) for _, p, t in found.documents[::1000])


def test_short_and_long_lines_with_all_kinds_of_ends_are_read_alike(read_all, tmp_path: Path):
    path = tmp_path / "a.txt"
    for ends in (["\n"], ["\r\n"], ["\n", "\r\n"]):
        for length in (10, 5000):
            lines = [f"{i} " + "x" * length for i in range(300)]
            data = "".join(line + ends[i % len(ends)] for i, line in enumerate(lines))
            path.write_bytes(data.encode())
            found = read_all(path)
            assert found.texts == lines
            assert found.positions[-1] == len(data) - len(lines[-1] + ends[299 % len(ends)])


def test_invalid_utf8_names_the_byte_in_the_file(read_all, tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nbad \xff\nworse \xe8\xaa\ngood\n")
    found = read_all(path)
    assert found.texts == ["good", "good"]
    assert found.rejects == [(0, 5, "invalid-utf8"), (0, 11, "invalid-utf8")]
    assert "0xff at byte 9 " in found.details[0]
    assert "0xe8 at byte 17 " in found.details[1]


@pytest.mark.parametrize("batch_bytes", [4, 1 << 20])
def test_a_line_over_the_limit_is_rejected_alone(
    read_all, tmp_path: Path, monkeypatch, batch_bytes: int
):
    monkeypatch.setattr("tokenmill.sources.blocks.BATCH_BYTES", batch_bytes)
    path = tmp_path / "a.txt"
    path.write_bytes(b"12345678\n123456789\nab\n" + b"x" * 100 + b"\ny")
    found = read_all(path, max_document_bytes=8)
    assert found.documents == [(0, 0, "12345678"), (0, 19, "ab"), (0, 123, "y")]
    assert found.rejects == [(0, 9, "too-long"), (0, 22, "too-long")]
    assert "100 bytes" in found.details[1]


def test_a_long_line_is_a_batch_of_its_own(read_all, tmp_path: Path):
    path = tmp_path / "a.txt"
    long = "é" * (20 << 20)
    path.write_text(f"before\n{long}\nafter\n", encoding="utf-8")
    found = read_all(path, unit_bytes=3 << 20)
    assert found.documents == [(0, 0, "before"), (0, 7, long), (0, 8 + (40 << 20), "after")]


def test_separators_keep_text_exactly(read_all, tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf one\r\n<|end|>\n two \n<|end|> \n <|end|>three\n")
    found = read_all(path, separator="<|end|>")
    assert found.documents == [(0, 0, " one\r\n"), (0, 16, "\n two \n"), (0, 40, "three\n")]
    assert found.num_blank == 1


def test_each_file_can_be_one_document(read_all, tmp_path: Path):
    (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbfx = 1\r\n\r\ny = 2\n")
    (tmp_path / "b.md").write_bytes(b" \n")
    (tmp_path / "c").write_bytes(b"a\xff")
    (tmp_path / "d.html").write_bytes(b"x" * 101)
    (tmp_path / "e.txt").write_bytes(b"")
    found = read_all(tmp_path, format="file", max_document_bytes=100)
    assert found.documents == [(0, 0, "x = 1\r\n\r\ny = 2\n")]
    assert found.rejects == [(2, 0, "invalid-utf8"), (3, 0, "too-long")]
    assert found.num_blank == 2


def test_utf16_is_recognised(read_all, tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n", encoding="utf-16")
    assert "UTF-16" in read_all(path).details[0]
