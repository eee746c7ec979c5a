"""Settings: read files strictly, layer them, and turn them into a frozen dataclass with helpful errors."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tokenmill.errors import ConfigError

T = TypeVar("T")
ENVIRONMENT_PREFIX = "TOKENMILL_"


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML, TOML or JSON file that holds one mapping."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="check the path") from error
    try:
        value = _parse(data, path.suffix.lower())
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(
            f"{path}: holds {type(value).__name__}, expected a mapping of names to values"
        )
    return value


def resolve(config_class: type[T], *layers: dict[str, Any]) -> T:
    """Merge layers, later ones first in rank, and build `config_class` from the result.

    A value of None means "not given". Unknown names are errors that suggest the nearest known one.
    """
    names = {field.name for field in dataclasses.fields(config_class)}  # pyright: ignore[reportArgumentType]
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            name = key.replace("-", "_")
            if name not in names:
                raise ConfigError(f"unknown setting {key!r}{_nearest(name, names)}")
            if value is not None:
                merged[name] = value
    try:
        return msgspec.convert(merged, config_class, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"settings: {error}") from error


def environment_layer(config_class: type[Any]) -> dict[str, Any]:
    """Return the settings of `config_class` that TOKENMILL_* variables give."""
    names = (field.name for field in dataclasses.fields(config_class))
    found = {name: os.environ.get(ENVIRONMENT_PREFIX + name.upper()) for name in names}
    return {name: parse_value(text) for name, text in found.items() if text is not None}


def set_layer(assignments: tuple[str, ...]) -> dict[str, Any]:
    """Turn `--set a.b=value` items into a nested mapping; values are read as JSON, else as text."""
    layer: dict[str, Any] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set {assignment!r}: expected NAME=VALUE")
        *parents, last = path.split(".")
        target = layer
        for parent in parents:
            target = target.setdefault(parent, {})
        target[last] = parse_value(text)
    return layer


def parse_value(text: str) -> Any:
    """Read a value typed by a person: JSON where it is JSON, otherwise the text itself.

    >>> parse_value("3"), parse_value("true"), parse_value("a,b")
    (3, True, 'a,b')
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


@cache
def field_docs(config_class: type[Any]) -> dict[str, str]:
    """Return the string under each field of a config dataclass: it is the help text of the setting."""
    tree = ast.parse(inspect.getsource(config_class)).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(following, ast.Expr):
            value = following.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docs[ast.unparse(field.target)] = inspect.cleandoc(value.value)
    return docs


def _parse(data: bytes, suffix: str) -> Any:
    if suffix == ".toml":
        return tomllib.loads(data.decode())
    if suffix in {".yaml", ".yml"}:
        return parse_yaml(data)
    return msgspec.json.decode(data)


def parse_yaml(data: bytes) -> Any:
    """Read YAML with the safe loader; aliases are refused, since a few of them can expand without bound."""
    import yaml  # only where YAML is used: --help stays fast

    loader = yaml.CSafeLoader(data)
    try:
        while loader.check_event():
            if isinstance(loader.get_event(), yaml.AliasEvent):
                raise ValueError("YAML aliases are not allowed here")
        return yaml.load(data, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    finally:
        loader.dispose()


def _nearest(name: str, names: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(names), n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(names))}"
