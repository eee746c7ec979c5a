"""Settings: read files strictly, layer them, and make a frozen dataclass of the result."""

from __future__ import annotations

import ast
import dataclasses
import datetime
import difflib
import inspect
import json
import os
import re
import textwrap
import threading
import tomllib
import types
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from tokenmill.errors import ConfigError

T = TypeVar("T")
ENVIRONMENT_PREFIX = "TOKENMILL_"
MAX_YAML_DEPTH = 100
"""Deeper nesting is refused: the C loader recurses, and would take the process down."""

_CONVERTING = threading.Lock()  # msgspec's first use of a type by two threads is not safe


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML, TOML or JSON file that holds one mapping.

    Names must be text and may not occur twice; dates come back as text, as JSON would have them.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="check the path") from error
    try:
        value = _plain(_parse(data, path.suffix.lower()))
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(
            f"{path}: holds {type(value).__name__}, expected a mapping of names to values"
        )
    return value


def dump_mapping(mapping: dict[str, Any], suffix: str) -> bytes:
    """Return a mapping as the text of a .json, .yaml or .yml file, which `read_mapping` reads."""
    if suffix == ".json":
        return json.dumps(mapping, indent=2, ensure_ascii=False).encode() + b"\n"
    if suffix in {".yaml", ".yml"}:
        import yaml  # only where YAML is used: --help stays fast

        return yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True).encode()
    raise ConfigError(f"the name ends in {suffix!r}, expected .json, .yaml or .yml")


def resolve(config_class: type[T], *layers: dict[str, Any]) -> T:
    """Merge `layers`, of which later ones win, and build `config_class` from the result.

    A value of None means "not given"; what `parse_value` makes of the text null takes back what
    lower layers gave. Mappings are merged key by key. Unknown names are errors that suggest the
    nearest known one.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        _merge(merged, layer, config_class)
    for field in dataclasses.fields(config_class):  # pyright: ignore[reportArgumentType]
        if field.name not in merged and _is_required(field):
            raise ConfigError(f"the setting {field.name!r} is missing")
    try:
        with _CONVERTING:
            return msgspec.convert(merged, config_class, strict=False)
    except msgspec.ValidationError as error:
        raise _explain(error, merged, config_class) from error


def environment_layer(config_class: type[Any]) -> dict[str, Any]:
    """Return the settings of `config_class` that TOKENMILL_* variables give; empty ones do not."""
    names = (field.name for field in dataclasses.fields(config_class))
    found = {name: os.environ.get(ENVIRONMENT_PREFIX + name.upper()) for name in names}
    return {name: parse_value(text) for name, text in found.items() if text}


def set_layer(assignments: Iterable[str]) -> dict[str, Any]:
    """Turn `--set a.b=value` items into a nested mapping; see `parse_value` for the values.

    >>> set_layer(["workers=2", "slurm.account=x"])
    {'workers': '2', 'slurm': {'account': 'x'}}
    """
    layer: dict[str, Any] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        *parents, last = path.split(".")
        if not equals or not all((*parents, last)):
            raise ConfigError(f"--set {assignment!r}: expected NAME=VALUE or NAME.NAME=VALUE")
        target = layer
        for parent in parents:
            target = target.setdefault(parent, {})
            if not isinstance(target, dict):
                raise ConfigError(f"--set {assignment!r}: another --set makes {parent!r} a value")
        target[last] = parse_value(text)
    return layer


def parse_value(text: str) -> Any:
    """Read a value typed by a person: lists, mappings and quoted text are JSON, the rest is text.

    Numbers stay text until `resolve` knows the type of the setting: a tokenizer called 1.10 keeps
    its name. The word null gives a mark that takes back what lower layers gave.

    >>> parse_value("3"), parse_value('["a", 2]'), parse_value("[ab]*.txt")
    ('3', ['a', 2], '[ab]*.txt')
    """
    if text == "null":
        return msgspec.UNSET
    if not text.startswith(("[", "{", '"')):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


@cache
def field_docs(config_class: type[Any]) -> dict[str, str]:
    """Return the string under each field of a config dataclass: the help text of the setting."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(config_class))).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(following, ast.Expr):
            value = following.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docs[ast.unparse(field.target)] = inspect.cleandoc(value.value)
    return docs


def parse_yaml(data: bytes) -> Any:
    """Read YAML with the safe loader, more strictly: problems are `ValueError`.

    Aliases are refused, since a few of them can stand for data without bound; so are keys that
    occur twice and nesting deeper than `MAX_YAML_DEPTH`.
    """
    import yaml  # only where YAML is used: --help stays fast

    loader_class = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(data, Loader=loader_class))
        loader = loader_class(data)
        try:
            node = loader.get_single_node()
            _check_keys(node)
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise ValueError(f"{_place(error.problem_mark)}{error.problem}") from error
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _parse(data: bytes, suffix: str) -> Any:
    data = data.removeprefix(b"\xef\xbb\xbf")  # some editors open a file with this mark
    if suffix == ".toml":
        return tomllib.loads(data.decode())
    if suffix in {".yaml", ".yml"}:
        value = parse_yaml(data)
        return {} if value is None else value  # everything commented out
    if suffix == ".json":
        # Not msgspec: this one names line and column, and can refuse a key that occurs twice.
        return json.loads(data, object_pairs_hook=_once, parse_constant=_no_number)
    raise ValueError(f"the name ends in {suffix!r}, expected .yaml, .yml, .toml or .json")


def _check_events(events: Iterable[Any]) -> None:
    depth = 0
    for event in events:
        kind = type(event).__name__
        if kind == "AliasEvent":
            raise ValueError(f"{_place(event.start_mark)}YAML aliases are not allowed here")
        if kind in {"MappingStartEvent", "SequenceStartEvent"}:
            depth += 1
        elif kind in {"MappingEndEvent", "SequenceEndEvent"}:
            depth -= 1
        if depth > MAX_YAML_DEPTH:
            raise ValueError(f"{_place(event.start_mark)}nested too deeply")


def _check_keys(node: Any) -> None:
    if node is None or isinstance(node.value, str):
        return
    seen: set[tuple[str, str]] = set()
    for item in node.value:
        key, value = item if isinstance(item, tuple) else (None, item)
        if key is not None and isinstance(key.value, str):
            if (key.tag, key.value) in seen:
                raise ValueError(f"{_place(key.start_mark)}the key {key.value!r} occurs twice")
            seen.add((key.tag, key.value))
        _check_keys(value)


def _place(mark: Any) -> str:
    return "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f"the key {key!r} occurs twice")
        mapping[key] = value
    return mapping


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _plain(value: Any) -> Any:
    """Check that all keys are text, and turn dates into the text that they were."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(
                    f"the key {key!r} is {type(key).__name__}, expected text: quote it"
                )
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value


def _merge(target: dict[str, Any], layer: dict[str, Any], kind: Any, *, prefix: str = "") -> None:
    """Put `layer` over `target`, both settings of the class `kind`; with None, of no class."""
    known = None if kind is None else _fields(kind)
    given: set[str] = set()
    for key, value in layer.items():
        name = key if known is None else key.replace("-", "_")
        if known is not None and name not in known:
            raise ConfigError(f"unknown setting {prefix + key!r}{_nearest(name, known, prefix)}")
        if name in given:
            raise ConfigError(f"the setting {prefix + name!r} is given twice, with '-' and '_'")
        given.add(name)
        if value is msgspec.UNSET:
            target.pop(name, None)
        elif isinstance(value, dict):
            below = target.get(name)
            target[name] = below if isinstance(below, dict) else {}
            inner = None if known is None else _config_class(known[name])
            _merge(target[name], value, inner, prefix=f"{prefix}{name}.")
        elif value is not None or known is None:
            target[name] = value


def _fields(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the settings that a dataclass or struct has."""
    hints = get_type_hints(kind)
    if issubclass(kind, msgspec.Struct):
        return {name: hints[name] for name in kind.__struct_fields__}
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _config_class(hint: Any) -> Any:
    """Return the dataclass or struct that a field holds, if it holds one."""
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        is_struct = isinstance(option, type) and issubclass(option, msgspec.Struct)
        if is_struct or dataclasses.is_dataclass(option):
            return option
    return None


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.init and field.default is missing and field.default_factory is missing


def _explain(
    error: msgspec.ValidationError, values: dict[str, Any], kind: type[Any]
) -> ConfigError:
    """Say which setting does not fit, what it is and what it could be."""
    match = re.fullmatch(r"(?P<what>.*) - at `\$\.(?P<name>[\w.]+)(?P<rest>.*)`", str(error))
    if match is None:
        return ConfigError(f"settings: {error}")
    name, what = match["name"], match["what"]
    found: Any = values
    for part in name.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    hint = _fields(kind).get(name)
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    choices = [
        str(c) for option in options if get_origin(option) is Literal for c in get_args(option)
    ]
    return ConfigError(
        f"{name}{match['rest']}: {what[:1].lower()}{what[1:]} ({found!r} was given)",
        hint=f"one of {', '.join(choices)}" if choices else None,
    )


def _nearest(name: str, names: Iterable[str], prefix: str) -> str:
    near = difflib.get_close_matches(name, sorted(names), n=1)
    if near:
        return f"; did you mean {prefix + near[0]!r}?"
    return f"; known are {', '.join(prefix + known for known in sorted(names))}"
