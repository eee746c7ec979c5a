"""Finding files: by place, by suffix, each once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokenmill.errors import ConfigError
from tokenmill.sources import SourceSettings, find_files


def make_files(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"[]")


def found_names(folder: Path, *places: str, **settings) -> list[str]:
    given = tuple(str(folder / place) for place in places)
    files = find_files(SourceSettings(places=given, **settings))
    return [os.path.relpath(file.path, folder) for file in files]


@pytest.mark.parametrize(
    ("name", "format_name", "compression", "splittable"),
    [
        ("a.txt", "text", "", True),
        ("a.TEXT", "text", "", True),
        ("a.jsonl", "jsonl", "", True),
        ("a.b.ndjson", "jsonl", "", True),
        ("a.json", "json", "", False),
        ("a.parquet", "parquet", "", False),
        ("a.arrow", "arrow", "", False),
        ("a.feather", "arrow", "", False),
        ("a.ipc", "arrow", "", False),
        ("a.csv", "csv", "", False),
        ("a.tsv", "csv", "", False),
        ("a.txt.gz", "text", "gz", False),
        ("a.jsonl.zst", "jsonl", "zst", False),
        ("a.json.bz2", "json", "bz2", False),
        ("a.csv.xz", "csv", "xz", False),
    ],
)
def test_the_suffix_says_the_format(
    tmp_path: Path, name: str, format_name: str, compression: str, splittable: bool
):
    make_files(tmp_path, name)
    for place in (tmp_path, tmp_path / name):
        (file,) = find_files(SourceSettings(places=(str(place),)))
        assert (file.format, file.compression, file.splittable) == (
            format_name,
            compression,
            splittable,
        )
        assert file.size == 2
        assert file.version


def test_a_folder_gives_what_is_known_in_sorted_order(tmp_path: Path):
    make_files(
        tmp_path,
        *("b.txt", "a.jsonl", "c/d/e.csv", "README.md", "x.py", ".hidden.txt", ".git/a.txt"),
        *("metadata.json", "c/dataset_info.json", "c/state.json", "notes", "z.gz"),
    )
    assert found_names(tmp_path, ".") == ["a.jsonl", "b.txt", "c/d/e.csv"]


def test_with_a_format_a_folder_gives_all_files_that_are_not_hidden(tmp_path: Path):
    make_files(tmp_path, "a.py", "b", "c.md.gz", ".d", "metadata.json")
    assert found_names(tmp_path, ".", format="file") == ["a.py", "b", "c.md.gz"]
    (*_, packed) = find_files(SourceSettings(places=(str(tmp_path),), format="text"))
    assert (packed.format, packed.compression) == ("text", "gz")


def test_places_keep_their_order_and_globs_are_sorted(tmp_path: Path):
    make_files(tmp_path, "x/2.txt", "x/1.txt", "x/y/3.txt", "a.txt")
    assert found_names(tmp_path, "x/*.txt", "a.txt") == ["x/1.txt", "x/2.txt", "a.txt"]
    assert found_names(tmp_path, "a.txt", "x") == ["a.txt", "x/1.txt", "x/2.txt", "x/y/3.txt"]
    assert found_names(tmp_path, "**/*.txt") == ["a.txt", "x/1.txt", "x/2.txt", "x/y/3.txt"]


def test_an_unknown_suffix_is_an_error_that_names_the_file_and_the_flag(tmp_path: Path):
    make_files(tmp_path, "notes.md", "a.txt", "plain")
    for place in ("notes.md", "*", "plain"):
        with pytest.raises(ConfigError, match=r"notes\.md|plain") as caught:
            found_names(tmp_path, place)
        assert "--format" in str(caught.value)
    assert found_names(tmp_path, "notes.md", format="text") == ["notes.md"]


def test_a_folder_without_data_is_an_error(tmp_path: Path):
    make_files(tmp_path, "README.md")
    with pytest.raises(ConfigError, match="known suffix") as caught:
        found_names(tmp_path, ".")
    assert "--format" in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path):
    for place in ("nothing.txt", "*.txt"):
        with pytest.raises(ConfigError, match=r"no such file|no file matches"):
            found_names(tmp_path, place)


def test_the_same_file_twice_is_an_error(tmp_path: Path, monkeypatch):
    make_files(tmp_path, "x/a.txt", "x/b.txt")
    (tmp_path / "link.txt").symlink_to(tmp_path / "x/a.txt")
    (tmp_path / "folder").symlink_to(tmp_path / "x")
    monkeypatch.chdir(tmp_path)
    for places in (
        ("x/a.txt", "x/a.txt"),
        ("x", "x/b.txt"),
        ("x/*.txt", "./x"),
        ("x/a.txt", str(tmp_path / "x/a.txt")),
        ("link.txt", "x"),
        ("folder", "x"),
        ("x/../x/a.txt", "x/a.txt"),
    ):
        with pytest.raises(ConfigError, match="is read twice"):
            find_files(SourceSettings(places=places))


def test_parquet_inside_another_compression_is_an_error(tmp_path: Path):
    make_files(tmp_path, "a.parquet.gz")
    with pytest.raises(ConfigError, match="compressed inside"):
        found_names(tmp_path, "a.parquet.gz")


def test_a_pipe_is_an_error(tmp_path: Path):
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(ConfigError, match="not a regular file"):
        found_names(tmp_path, "a.txt")


@pytest.mark.parametrize("separator", ["--", "aba", "\n\n", "<<>><<"])
def test_a_separator_that_overlaps_itself_keeps_a_file_whole(tmp_path: Path, separator: str):
    make_files(tmp_path, "a.txt")
    settings = SourceSettings(places=(str(tmp_path),), separator=separator)
    assert [file.splittable for file in find_files(settings)] == [False]


def test_a_separator_needs_text(tmp_path: Path):
    make_files(tmp_path, "a.csv")
    with pytest.raises(ConfigError, match="none of the files is text"):
        found_names(tmp_path, "a.csv", separator="|")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"places": ()}, "no input"),
        ({"format": "xml"}, "unknown format 'xml'"),
        ({"separator": ""}, "separator is empty"),
        ({"separator": "\ud800"}, "not valid Unicode"),
        ({"separator": "x" * 5000}, "at most 4096"),
        ({"separator": "|", "format": "jsonl"}, "applies to text"),
        ({"text_field": "a..b"}, "empty name"),
        ({"text_field": ""}, "empty name"),
        ({"max_document_bytes": 0}, "at least 1"),
    ],
)
def test_wrong_settings_are_refused(settings, message: str):
    with pytest.raises(ConfigError, match=message):
        SourceSettings(**{"places": ("a.txt",), **settings})
