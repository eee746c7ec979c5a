"""Long documents come as bytes and give the same text as short ones, piece by piece."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.sources import (
    Batch,
    SourceSettings,
    cut_units,
    find_files,
    long_text,
    read_unit,
)
from tokenmill.sources.long_text import LongText

TEXTS = st.text(
    st.one_of(
        st.sampled_from('\\"\n\t/ab é猫😀\u2028\x00'),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=200,
)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_text, "PIECE_BYTES", 16)  # room for a pair of surrogates


@given(TEXTS)
@settings(max_examples=400)
def test_pieces_of_utf8_join_to_the_text(text: str):
    pieces = list(LongText(memoryview(text.encode()), False).pieces())
    assert "".join(pieces) == text
    assert all(len(piece.encode()) <= 16 for piece in pieces)


@given(TEXTS, st.booleans())
@settings(max_examples=400)
def test_pieces_of_a_json_string_join_to_the_text(text: str, ascii_only: bool):
    inside = json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode()
    assert "".join(LongText(memoryview(inside), True).pieces()) == text


def read_all(path: Path, *, long_bytes: int | None, **more: str) -> list[Batch]:
    source = SourceSettings(places=(str(path),), long_bytes=long_bytes, **more)  # type: ignore[arg-type]
    files = find_files(source)
    return [batch for unit in cut_units(files) for batch in read_unit(files, unit, source)]


def texts_of(batches: list[Batch]) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    for batch in batches:
        if batch.long_text is not None:
            assert batch.texts == []
            text = "".join(batch.long_text.pieces())
            assert batch.num_bytes == len(text.encode())
            found.append((int(batch.positions[0]), text))
        else:
            found += zip(batch.positions.tolist(), batch.texts, strict=True)
    return found


LONG = 'naïve 猫 😀 and plain words \\ " \t' * 70_000  # about 3 MB: a batch of its own


@pytest.mark.parametrize("name", ["a.txt", "crlf.txt", "a.jsonl", "a.parquet", "whole.txt"])
def test_a_long_document_has_the_same_text_and_place_as_before(name: str, tmp_path: Path):
    path = tmp_path / name
    texts, more = ["short", LONG, "end"], {}
    if name == "a.jsonl":
        path.write_text(
            "".join(json.dumps({"id": 1, "text": text}, indent=None) + " \n" for text in texts)
        )
    elif name == "a.parquet":
        pq.write_table(pa.table({"text": texts}), path)
    elif name == "whole.txt":
        path.write_text(LONG)
        more = {"format": "file"}
    else:
        end = "\r\n" if name == "crlf.txt" else "\n"
        path.write_bytes("".join(text + end for text in texts).encode())
    plain = read_all(path, long_bytes=None, **more)
    kept = read_all(path, long_bytes=1 << 20, **more)
    assert sum(batch.long_text is not None for batch in kept) == 1
    assert texts_of(kept) == texts_of(plain)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_long_document_that_is_not_utf8_is_rejected_as_before(name: str, tmp_path: Path):
    path = tmp_path / name
    data = LONG.replace("\\", "").replace('"', "").replace("\t", "").encode()
    broken = data[:2_000_000] + b"\xff" + data[2_000_000:]
    path.write_bytes(b'{"text": "%b"}\n' % broken if name == "a.jsonl" else broken + b"\n")
    for long_bytes in (None, 1 << 20):
        (batch,) = read_all(path, long_bytes=long_bytes)
        assert batch.long_text is None
        assert [reject.reason for reject in batch.rejects] == ["invalid-utf8"]
        assert batch.texts == []


def test_a_long_blank_line_is_blank(tmp_path: Path):
    path = tmp_path / "blank.txt"
    path.write_text(" " * 3_000_000 + "\nword\n")
    batches = read_all(path, long_bytes=1 << 20)
    assert sum(batch.num_blank for batch in batches) == 1
    assert texts_of(batches) == [(3_000_001, "word")]
