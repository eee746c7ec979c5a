"""Splitting a text: exact for every text, and its parts are always the whole."""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenmill.errors import BadDocumentError, ConfigError
from tokenmill.sources import split_text
from tokenmill.tokenizer import load_tokenizer

TEXTS = st.text(st.sampled_from("ab\n\r é猫😀|"), max_size=40)


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have characters and lines fall on the borders of reads."""
    monkeypatch.setattr(sys.modules["tokenmill.sources.split_text"], "_READ_BYTES", 3)


def parts(tmp_path: Path, text: str, *, ratio: str, **options: str) -> tuple[str, str]:
    source = tmp_path / "input.txt"
    source.write_bytes(text.encode())
    folder = tmp_path / "parts"
    for name in ("train.txt", "val.txt"):
        (folder / name).unlink(missing_ok=True)
    split_text(source, folder, ratio=ratio, **options)  # pyright: ignore[reportArgumentType]
    train, val = ((folder / name).read_bytes() for name in ("train.txt", "val.txt"))
    assert train + val == text.encode()
    return train.decode(), val.decode()


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=TEXTS, percent=st.integers(0, 100))
def test_characters_are_cut_exactly(tmp_path: Path, text: str, percent: int):
    cut = len(text) * percent // 100
    found = parts(tmp_path, text, ratio=str(percent / 100), by="characters")
    assert found == (text[:cut], text[cut:])


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=TEXTS, percent=st.integers(0, 100))
def test_lines_are_cut_exactly(tmp_path: Path, text: str, percent: int):
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1].removesuffix("\n")
    lines = lines if lines[-1] else lines[:-1]
    cut = len(lines) * percent // 100
    found = parts(tmp_path, text, ratio=str(percent / 100), by="lines")
    assert found == ("".join(lines[:cut]), "".join(lines[cut:]))


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=st.lists(st.text(st.sampled_from("ab\n é猫"), max_size=6), max_size=12),
    percent=st.integers(0, 100),
)
def test_documents_are_cut_exactly(tmp_path: Path, texts: list[str], percent: int):
    whole = "<|>".join(texts)
    count = sum(1 for text in texts if text.strip())
    train, val = parts(tmp_path, whole, ratio=str(percent / 100), by="documents", separator="<|>")
    found = [sum(1 for text in part.split("<|>") if text.strip()) for part in (train, val)]
    assert found == [count * percent // 100, count - count * percent // 100]


def test_documents_are_lines_that_are_not_blank(tmp_path: Path):
    assert parts(tmp_path, "a\n\n\nb\nc\n", ratio="0.34", by="documents") == (
        "a\n\n\n",
        "b\nc\n",
    )


@pytest.mark.parametrize("by", ["characters", "lines", "documents"])
@pytest.mark.parametrize("text", ["", "\n", "猫", "a\n"])
@pytest.mark.parametrize("ratio", ["0", "0.5", "1"])
def test_empty_and_tiny_files_have_two_parts(tmp_path: Path, by: str, text: str, ratio: str):
    train, val = parts(tmp_path, text, ratio=ratio, by=by)
    assert train + val == text


def test_the_share_is_the_decimal_number_that_was_written(tmp_path: Path):
    """As a binary number 0.29 times 100 is below 29."""
    assert int(0.29 * 100) == 28
    train, _ = parts(tmp_path, "x" * 100, ratio="0.29", by="characters")
    assert len(train) == 29


def test_a_compressed_file_is_expanded(tmp_path: Path):
    path = tmp_path / "input.txt.gz"
    path.write_bytes(gzip.compress("naïve\n猫\nx\ny\n".encode()))
    found = split_text(path, tmp_path, ratio=0.5, by="documents")
    assert found.train.read_text() == "naïve\n猫\n"
    assert found.val.read_text() == "x\ny\n"


def test_jsonl_keeps_its_suffix(tmp_path: Path):
    path = tmp_path / "input.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}\n')
    found = split_text(path, tmp_path, ratio=0.5, by="documents")
    assert found.train == tmp_path / "train.jsonl"
    assert found.val.read_text() == '{"text": "b"}\n'


@pytest.mark.parametrize("by", ["characters", "lines", "documents"])
@pytest.mark.parametrize("data", [b"abc\xffdef", b"abcdef\xe7\x8c", b"\x80"])
def test_text_that_is_not_utf8_is_refused(tmp_path: Path, by: str, data: bytes):
    path = tmp_path / "input.txt"
    path.write_bytes(data)
    with pytest.raises(BadDocumentError) as caught:
        split_text(path, tmp_path / "parts", ratio=0.5, by=by)  # pyright: ignore[reportArgumentType]
    if by != "documents":
        place = {b"abc\xffdef": 3, b"abcdef\xe7\x8c": 6, b"\x80": 0}[data]
        assert f"byte {place}:" in str(caught.value)
    assert not (tmp_path / "parts").exists()


def test_the_same_again_is_complete_and_other_content_stays(tmp_path: Path):
    path = tmp_path / "input.txt"
    path.write_text("0123456789")
    assert not split_text(path, tmp_path, ratio=0.5).was_complete
    assert split_text(path, tmp_path, ratio=0.5).was_complete
    (tmp_path / "val.txt").unlink()
    assert not split_text(path, tmp_path, ratio=0.5).was_complete
    assert (tmp_path / "val.txt").read_text() == "56789"
    with pytest.raises(ConfigError, match="is there with other content"):
        split_text(path, tmp_path, ratio=0.6)
    assert (tmp_path / "train.txt").read_text() == "01234"


def test_a_file_is_never_written_over_by_its_own_part(tmp_path: Path):
    path = tmp_path / "train.txt"
    path.write_text("0123456789")
    with pytest.raises(ConfigError, match="its own parts"):
        split_text(path, tmp_path, ratio=0.5)
    assert path.read_text() == "0123456789"


@pytest.mark.parametrize("ratio", ["-0.1", "1.1", "nine", "nan"])
def test_a_ratio_out_of_range_is_refused(tmp_path: Path, ratio: str):
    path = tmp_path / "input.txt"
    path.write_text("x")
    with pytest.raises(ConfigError, match="ratio must be from 0 to 1"):
        split_text(path, tmp_path / "parts", ratio=ratio)


def test_a_folder_is_refused(tmp_path: Path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ConfigError, match="expected one file"):
        split_text(tmp_path, tmp_path / "parts", ratio=0.5)


@pytest.mark.skipif(
    "TINYSHAKESPEARE" not in os.environ,
    reason="the variable TINYSHAKESPEARE does not name the file (tokenmill fetch tinyshakespeare)",
)
def test_tiny_shakespeare_gives_the_golden_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    found = split_text(os.environ["TINYSHAKESPEARE"], tmp_path, ratio="0.9", by="characters")
    assert (found.num_train, found.num_val) == (1_003_854, 111_540)
    whole = found.train.read_bytes() + found.val.read_bytes()
    golden = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    assert hashlib.sha256(whole).hexdigest() == golden
    tokenizer = load_tokenizer("gpt2")
    counts = [len(tokenizer.encode(path.read_text())) for path in (found.train, found.val)]
    assert counts == [301_966, 36_059]
