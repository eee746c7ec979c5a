"""Which files belong to a configuration and a split, by the rules that `datasets` follows."""

from __future__ import annotations

import pytest

from tokenmill.errors import ConfigError
from tokenmill.sources.dataset_layout import Choice, choose_files, read_configurations, split_of


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train.jsonl", "train"),
        ("data/train-00000-of-00010.parquet", "train"),
        ("validation.csv", "validation"),
        ("my_val_file.txt", "validation"),
        ("dev/part-3.jsonl.zst", "validation"),
        ("test_1.json", "test"),
        ("data/test/00.parquet", "test"),
        ("evaluation-2.txt", "test"),
        ("data/en-00000-of-00001.parquet", "en"),
        ("data-00000-of-00001.arrow", None),
        ("train/data-00000-of-00002.arrow", "train"),
        ("training2020.txt", "train"),
        ("part-00000-of-00001.parquet", None),
        ("contest.txt", None),
        ("latest/devices.txt", None),
        ("trained.txt", None),
        ("a/b/c.txt", None),
    ],
)
def test_names_speak_of_splits(path: str, split: str | None):
    assert split_of(path) == split


PATHS = ["train-1.txt", "train-2.txt", "val.txt", "test/a.txt", "notes.txt"]


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train", PATHS[:2]),
        ("validation", PATHS[2:3]),
        ("val", PATHS[2:3]),
        ("dev", PATHS[2:3]),
        ("test", PATHS[3:4]),
        ("all", PATHS),
    ],
)
def test_a_split_is_chosen(split: str, expected: list[str]):
    assert choose_files(PATHS, Choice(place="d", split=split)) == expected


def test_without_names_everything_is_train():
    paths = ["a.txt", "b/c.txt"]
    assert choose_files(paths, Choice(place="d", split="train")) == paths
    assert choose_files(paths, Choice(place="d", must_choose=True)) == paths


def test_several_splits_must_be_chosen_from_where_that_is_asked():
    with pytest.raises(ConfigError, match="has the splits train, validation, test") as caught:
        choose_files(PATHS, Choice(place="d", must_choose=True))
    assert "--split" in str(caught.value)


def test_an_unknown_split_shows_those_that_are_there():
    with pytest.raises(ConfigError, match="no split 'en'; there is train, validation, test"):
        choose_files(PATHS, Choice(place="d", split="en"))


def test_a_configuration_without_a_readme_is_a_folder():
    paths = ["en/train/0.parquet", "en/test/0.parquet", "de/train/0.parquet"]
    choice = Choice(place="d", config="en", split="train")
    assert choose_files(paths, choice) == paths[:1]
    with pytest.raises(ConfigError, match="no folder 'fr'; there is de, en"):
        choose_files(paths, Choice(place="d", config="fr"))


def test_the_name_of_a_configuration_says_nothing_of_the_split():
    paths = ["test-suite/train.txt", "test-suite/val.txt"]
    choice = Choice(place="d", config="test-suite", split="train")
    assert choose_files(paths, choice) == paths[:1]


README = """---
license: mit
configs:
- config_name: en
  data_files:
  - split: train
    path: "data/en/*.parquet"
  - split: test
    path: [extra/one.parquet, "extra/two*.parquet"]
- config_name: de
  default: true
  data_dir: german
- config_name: all
  data_files: "**/*.parquet"
- config_name: some
  data_files: {dev: data/en/1.parquet}
---
# A dataset
"""
FILES = [
    "data/en/1.parquet",
    "data/en/2.parquet",
    "data/en/deep/3.parquet",
    "extra/one.parquet",
    "extra/two-1.parquet",
    "german/train.parquet",
    "german/test.parquet",
]


@pytest.mark.parametrize(
    ("config", "split", "expected"),
    [
        ("en", "train", FILES[:2]),
        ("en", "test", FILES[3:5]),
        ("en", "all", [*FILES[:2], *FILES[3:5]]),
        (None, "train", ["german/train.parquet"]),
        ("all", "test", ["german/test.parquet"]),
        ("some", "validation", FILES[:1]),
    ],
)
def test_a_readme_lists_configurations(config: str | None, split: str, expected: list[str]):
    configurations = read_configurations(README.encode(), place="d")
    choice = Choice(place="d", config=config, split=split)
    assert choose_files(FILES, choice, configurations=configurations) == expected


def test_an_unknown_configuration_shows_those_that_are_there():
    configurations = read_configurations(README.encode(), place="d")
    with pytest.raises(ConfigError, match="no configuration 'fr'; there is en, de, all, some"):
        choose_files(FILES, Choice(place="d", config="fr"), configurations=configurations)
    without_default = [c for c in configurations if not c.is_default]
    with pytest.raises(ConfigError, match="has the configurations en, all, some") as caught:
        choose_files(FILES, Choice(place="d"), configurations=without_default)
    assert "d:en" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "# Title\n", "---\nlicense: mit\n---\n", "---\nno end", "---"]
)
def test_a_readme_without_configurations_says_nothing(text: str):
    assert read_configurations(text.encode(), place="d") == []


@pytest.mark.parametrize(
    "head",
    ["configs: 5", "configs: [5]", "configs: [{data_files: [{path: a}]}]", "a: &b []\nc: *b", "{"],
)
def test_a_readme_that_cannot_be_read_is_an_error(head: str):
    with pytest.raises(ConfigError, match=r"README\.md cannot be read"):
        read_configurations(f"---\n{head}\n---\n".encode(), place="d")
