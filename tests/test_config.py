from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.config import (
    environment_layer,
    field_docs,
    parse_value,
    parse_yaml,
    read_mapping,
    resolve,
    set_layer,
)
from tokenmill.errors import ConfigError


class Weights(msgspec.Struct, frozen=True):
    wiki: float = 1.0
    code: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Slurm:
    account: str | None = None
    num_nodes: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings with every kind of type that a job uses."""

    sources: tuple[str, ...]
    """Files, folders or globs,
    read in this order."""
    tokenizer: str = "gpt2"
    """Its name."""
    format: Literal["auto", "text", "jsonl"] = "auto"
    separator: str | None = None
    workers: int | None = None
    val_ratio: float = 0.0
    eos: bool = True
    slurm: Slurm = field(default_factory=Slurm)
    weights: Weights | None = None
    labels: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.val_ratio < 0:
            raise ConfigError(f"val_ratio must be at least 0, got {self.val_ratio}")


def settings(*layers: dict[str, Any]) -> Settings:
    return resolve(Settings, {"sources": ["a.txt"]}, *layers)


def mapping(folder: Path, name: str, text: str | bytes) -> dict[str, Any]:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_mapping(path)


# -- layers


def test_a_later_layer_wins_and_none_means_not_given():
    found = settings({"workers": 2, "eos": False}, {"workers": 3, "eos": None}, {"workers": None})
    assert (found.workers, found.eos) == (3, False)


def test_names_may_be_written_with_hyphens():
    assert settings({"val-ratio": 0.1}).val_ratio == 0.1


def test_one_setting_in_two_spellings_is_refused():
    with pytest.raises(ConfigError, match="'val_ratio' is given twice"):
        settings({"val-ratio": 0.1, "val_ratio": 0.2})


def test_an_unknown_setting_is_refused_with_the_nearest_known_one():
    with pytest.raises(ConfigError, match="unknown setting 'tokeniser'; did you mean 'tokenizer'"):
        settings({"tokeniser": "gpt2"})


def test_an_unknown_setting_like_no_other_is_refused_with_all_known_ones():
    with pytest.raises(ConfigError, match="unknown setting 'zzz'; known are eos, format, labels"):
        settings({"zzz": 1})


@pytest.mark.parametrize("group", ["slurm", "weights"])
def test_an_unknown_nested_setting_is_refused(group: str):
    with pytest.raises(ConfigError, match=f"unknown setting '{group}.acount'"):
        settings({group: {"acount": "x"}})


def test_nested_settings_are_merged_key_by_key():
    found = settings(
        {"slurm": {"account": "x", "num-nodes": 2}, "weights": {"code": 3}},
        set_layer(["slurm.num_nodes=4", "weights.wiki=0.5"]),
    )
    assert found.slurm == Slurm(account="x", num_nodes=4)
    assert found.weights == Weights(wiki=0.5, code=3)


def test_merging_leaves_the_layers_as_they_were():
    file = {"slurm": {"account": "x"}}
    settings(file, {"slurm": {"num_nodes": 4}})
    assert file == {"slurm": {"account": "x"}}


def test_a_free_mapping_keeps_its_keys_and_empty_values():
    assert settings({"labels": {"my-key": None}}).labels == {"my-key": None}


def test_null_takes_back_what_a_lower_layer_gave():
    file = {"separator": "<|end|>", "workers": 3, "slurm": {"account": "x"}}
    found = settings(file, set_layer(["separator=null", "workers=null", "slurm.account=null"]))
    assert (found.separator, found.workers, found.slurm.account) == (None, None, None)


def test_a_missing_setting_is_named():
    with pytest.raises(ConfigError, match="the setting 'sources' is missing"):
        resolve(Settings, {"workers": 2})


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"workers": "many"}, r"workers: expected `int \| null`, got `str` \('many' was given\)"),
        ({"workers": 1.5}, r"workers: expected .* \(1.5 was given\)"),
        ({"workers": True}, r"workers: expected .* \(True was given\)"),
        ({"eos": 2}, "eos: expected `bool`"),
        ({"tokenizer": 5}, "tokenizer: expected `str`, got `int`"),
        ({"sources": "a.txt"}, "sources: expected `array`, got `str`"),
        ({"sources": [3]}, r"sources\[0\]: expected `str`, got `int`"),
        ({"slurm": {"num_nodes": "x"}}, r"slurm.num_nodes: expected `int`.*\('x' was given\)"),
        ({"slurm": 3}, r"slurm: expected `object`, got `int`"),
        ({"format": "xml"}, "format: invalid enum value 'xml'.*\n.*one of auto, text, jsonl"),
        ({"val_ratio": -1}, "val_ratio must be at least 0, got -1"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(layer: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        settings(layer)


# -- environment and --set


def test_the_environment_gives_settings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TOKENMILL_SOURCES", '["a.txt", "b.txt"]')
    monkeypatch.setenv("TOKENMILL_WORKERS", "3")
    monkeypatch.setenv("TOKENMILL_EOS", "false")
    monkeypatch.setenv("TOKENMILL_VAL_RATIO", "1e-3")
    monkeypatch.setenv("TOKENMILL_TOKENIZER", "1.10")
    monkeypatch.setenv("TOKENMILL_SEPARATOR", "")
    found = resolve(Settings, environment_layer(Settings))
    assert found.sources == ("a.txt", "b.txt")
    assert (found.workers, found.eos, found.val_ratio) == (3, False, 0.001)
    assert found.tokenizer == "1.10"
    assert found.separator is None


@pytest.mark.parametrize("text", ["1", "007", "1.10", "true", "1e3", "a=b", "<|end|>"])
def test_a_text_setting_takes_any_typed_text_as_it_is(text: str):
    assert settings(set_layer([f"separator={text}"])).separator == text


@given(st.text())
def test_quoted_text_is_the_text_between_the_quotes(text: str):
    assert parse_value(msgspec.json.encode(text).decode()) == text


@given(st.integers())
def test_typed_numbers_become_numbers_where_the_setting_is_one(number: int):
    assert settings(set_layer([f"workers={number}"])).workers == number


def test_a_power_of_ten_is_a_whole_number():
    assert settings(set_layer(["workers=1e6"])).workers == 1_000_000


@pytest.mark.parametrize("text", ["workers", "=3", "", ".a=1", "a.=1", "a..b=1"])
def test_an_assignment_needs_names_and_a_value(text: str):
    with pytest.raises(ConfigError, match="expected NAME=VALUE"):
        set_layer([text])


def test_a_name_cannot_be_both_a_value_and_a_group():
    with pytest.raises(ConfigError, match="another --set makes 'a' a value"):
        set_layer(["a=1", "a.b=2"])


# -- files


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "workers: 2\nslurm: {account: x}\n"),
        ("a.YML", "workers: 2\nslurm:\n  account: x\n"),
        ("a.toml", 'workers = 2\n[slurm]\naccount = "x"\n'),
        ("a.json", '{"workers": 2, "slurm": {"account": "x"}}'),
        ("b.json", b'\xef\xbb\xbf{"workers": 2, "slurm": {"account": "x"}}'),
        ("b.toml", b"\xef\xbb\xbfworkers = 2\nslurm = {account = 'x'}\n"),
    ],
)
def test_the_three_formats_say_the_same(tmp_path: Path, name: str, text: str | bytes):
    assert mapping(tmp_path, name, text) == {"workers": 2, "slurm": {"account": "x"}}


@pytest.mark.parametrize("text", ["", "# nothing is set\n"])
def test_a_yaml_file_with_everything_commented_out_sets_nothing(tmp_path: Path, text: str):
    assert mapping(tmp_path, "a.yaml", text) == {}


@pytest.mark.parametrize("name", ["a.yaml", "a.toml"])
def test_dates_are_text(tmp_path: Path, name: str):
    text = {"a.yaml": "day: 2024-05-01", "a.toml": "day = 2024-05-01"}[name]
    assert mapping(tmp_path, name, text) == {"day": "2024-05-01"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a: 1\nb: [1\n", "line 3, column 1"),
        ("a.yaml", "a: &x 1\nb: *x\n", "line 2, column 4: YAML aliases are not allowed"),
        ("a.yaml", "a: 1\nb: 2\na: 3\n", "line 3, column 1: the key 'a' occurs twice"),
        ("a.yaml", "a:\n- b: 1\n  b: 2\n", "line 3, column 3: the key 'b' occurs twice"),
        ("a.yaml", "a: 1\n---\nb: 1\n", "but found another document"),
        ("a.yaml", "a: !!python/object:os.system x", "could not determine a constructor"),
        ("a.yaml", "on: 1\n", "the key True is bool, expected text: quote it"),
        ("a.yaml", "a: {1: 2}\n", "the key 1 is int"),
        ("a.yaml", "[" * 100_000, "nested too deeply"),
        ("a.yaml", "- a\n", "holds list, expected a mapping"),
        ("a.yaml", b"a: \xff\n", "utf-8|UTF-8"),
        ("a.toml", "a = 1\nb = \n", "line 2, column 5"),
        ("a.toml", "a = 1\na = 2\n", "line 2"),
        ("a.toml", "a = " + "[" * 100_000, "nested too deeply"),
        ("a.json", '{"a": 1,\n "b" 2}', "line 2 column 6"),
        ("a.json", '{"a": 1, "a": 2}', "the key 'a' occurs twice"),
        ("a.json", '{"a": NaN}', "NaN is not JSON"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", "", "line 1 column 1"),
        ("a.json", "null", "holds NoneType"),
        ("a.json", b'{"a": "\xff"}', "utf-8"),
        ("a.ini", "a = 1", "the name ends in '.ini', expected .yaml"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_file_that_is_wrong_is_refused_by_name_and_place(
    tmp_path: Path, name: str, text: str | bytes, message: str
):
    with pytest.raises(ConfigError, match=message) as caught:
        mapping(tmp_path, name, text)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in caught.value.message


def test_a_missing_file_is_a_wrong_setting(tmp_path: Path):
    with pytest.raises(ConfigError, match="No such file"):
        read_mapping(tmp_path / "gone.yaml")


@given(st.dictionaries(st.text("abc", min_size=1), st.integers() | st.booleans() | st.none()))
def test_json_is_yaml(values: dict[str, Any]):
    assert parse_yaml(msgspec.json.encode(values)) == values


# -- help texts


def test_the_string_under_a_field_is_its_help():
    assert field_docs(Settings) == {
        "sources": "Files, folders or globs,\nread in this order.",
        "tokenizer": "Its name.",
    }


def test_a_class_inside_a_function_has_help_too():
    @dataclass
    class Inner:
        size: int = 1
        """How large."""

    assert field_docs(Inner) == {"size": "How large."}
