"""Descriptions beside raw data: read strictly, written whole, told from other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenmill.errors import ConfigError
from tokenmill.sources import (
    Description,
    TokenizedInfo,
    find_description,
    read_description,
    write_description,
)

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
NAMES = st.text("abcXYZ-_.é 1", min_size=1, max_size=8).filter(
    lambda name: name == name.strip() and name not in {".", ".."}
)
INFO = st.builds(TokenizedInfo, tokenizer=TEXT, file_prefix=TEXT, dtype=st.just("uint32"))


@st.composite
def descriptions(draw: st.DrawFn) -> Description:
    corpora = draw(st.lists(NAMES, unique=True, max_size=3))
    strategy: Any = None
    if len(corpora) > 1:
        strategy = draw(st.sampled_from(["data_dirs", "configs"]))
    parent = draw(st.sampled_from([None, "sub", "a/b"])) if strategy == "data_dirs" else None
    return Description(
        name=draw(TEXT.filter(str.strip)),
        dataset_path=draw(st.sampled_from([None, "/data/x", "hf://org/name"])),
        description=draw(TEXT),
        date_downloaded=draw(st.sampled_from(["", "2024-01-31"])),
        download_source=draw(TEXT),
        content_field=draw(st.sampled_from(["text", "a.b", "yes", "1"])),
        corpuses=tuple(corpora),
        corpus_separation_strategy=strategy,
        corpus_data_dir_parent=parent,
        tokenized_info=draw(st.none() | INFO),
    )


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(described=descriptions(), suffix=st.sampled_from([".json", ".yaml", ".yml"]))
def test_what_is_written_is_read(tmp_path: Path, described: Description, suffix: str):
    path = tmp_path / f"metadata{suffix}"
    write_description(path, described, replace=True)
    found = read_description(path)
    if described.dataset_path is None:
        assert found.dataset_path == str(tmp_path)
    changed = {"dataset_path": described.dataset_path}
    assert {**_fields(found), **changed} == _fields(described)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    path.unlink()


def _fields(described: Description) -> dict[str, object]:
    return {name: getattr(described, name) for name in described.__struct_fields__}


def test_a_path_is_relative_to_the_file(tmp_path: Path):
    path = tmp_path / "metadata.yaml"
    path.write_text("name: x\ndata_content: text\ndataset_path: raw/x\n")
    assert read_description(path).dataset_path == str(tmp_path / "raw/x")


def test_a_file_that_users_bring_is_read(tmp_path: Path):
    path = tmp_path / "metadata.yaml"
    path.write_text(
        "name: c4\ndataset_path: /data/c4\ndescription: crawl\ndate_downloaded: 2023-01-31\n"
        "download_source: web\ndata_content: text\ncontent_field: text\ncorpuses: [en, de]\n"
        "corpus_separation_strategy: configs\ncorpus_data_dir_parent: null\ntokenized_info: null\n"
    )
    found = read_description(path)
    assert found.corpuses == ("en", "de")
    assert found.date_downloaded == "2023-01-31"


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"name": "x", "corpora": ["a"]}, "corpora"),
        ({"corpuses": []}, "name"),
        ({"name": "x", "corpuses": ["a", "b"]}, "no corpus_separation_strategy"),
        ({"name": "x", "corpuses": ["a", "a"]}, "listed twice"),
        ({"name": "x", "corpuses": ["../a"]}, "not a name for a corpus"),
        ({"name": "x", "corpuses": ["/etc"]}, "not a name for a corpus"),
        ({"name": "x", "corpuses": [""]}, "not a name for a corpus"),
        ({"name": "x", "corpuses": "a"}, "corpuses"),
        ({"name": "x", "data_content": "books"}, "data_content"),
        ({"name": "x", "content_field": ""}, "content_field"),
        ({"name": "", "content_field": "a"}, "name is empty"),
        ({"name": "x", "corpus_data_dir_parent": "a"}, "data_dirs"),
        ({"name": "x", "tokenized_info": {"dtype": "uint16"}}, "tokenizer"),
        ({"name": "x", "tokenized_info": True}, "tokenized_info"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, mapping: dict[str, object], message: str):
    path = tmp_path / "metadata.json"
    path.write_text(json.dumps(mapping))
    with pytest.raises(ConfigError, match=message) as caught:
        read_description(path)
    assert str(path) in str(caught.value)


def test_other_files_of_that_name_are_not_taken_for_descriptions(tmp_path: Path):
    path = tmp_path / "metadata.json"
    assert find_description(tmp_path) is None
    for text in ('{"format": 1, "splits": {}}', "[1, 2]", "not json", '{"name": "x"}', ""):
        path.write_text(text)
        assert find_description(tmp_path) is None
    path.write_text('{"name": "x", "data_content": "text"}')
    assert find_description(tmp_path) == path


def test_a_broken_description_is_not_passed_over(tmp_path: Path):
    (tmp_path / "metadata.json").write_text('{"name": "x", "content_field": "a"')
    with pytest.raises(ConfigError, match=r"metadata\.json"):
        find_description(tmp_path)


def test_two_descriptions_are_refused(tmp_path: Path):
    described = Description(name="x")
    write_description(tmp_path / "metadata.json", described)
    write_description(tmp_path / "metadata.yaml", described)
    with pytest.raises(ConfigError, match="described twice"):
        find_description(tmp_path)


def test_a_failed_write_leaves_nothing(tmp_path: Path):
    path = tmp_path / "metadata.json"
    with pytest.raises(ConfigError):
        write_description(path, Description(name="x", corpuses=("a", "b")))
    with pytest.raises(ConfigError):
        write_description(tmp_path / "metadata.txt", Description(name="x"))
    assert not list(tmp_path.iterdir())
    write_description(path, Description(name="x"))
    with pytest.raises(ConfigError, match="is there already"):
        write_description(path, Description(name="y"))
    assert read_description(path).name == "x"
