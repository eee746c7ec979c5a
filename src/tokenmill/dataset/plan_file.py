"""Plans as files: YAML, TOML or JSON, read strictly.

seq_len: 2048
batch_size: 512
sources:
  - {path: stores/web, weight: 0.7}
  - {path: stores/code, weight: 0.3, max_epochs: 4}
stages:
  - {from_step: 80000, weights: {web: 0.3, code: 0.7}}
amendments:
  - {at_step: 20150, skip_steps: 200, note: spike of the loss}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from tokenmill.config import read_mapping, resolve
from tokenmill.dataset.plan_settings import Amendment, Source, Stage
from tokenmill.errors import ConfigError
from tokenmill.files import atomic_write

_ITEMS: dict[str, type[Any]] = {"sources": Source, "stages": Stage, "amendments": Amendment}
T = TypeVar("T")


def read_plan(plan_class: type[T], path: Path) -> T:
    """Build a plan from a file. Unknown names are errors that suggest the nearest known one."""
    values = read_mapping(path)
    try:
        _check_items(values, "", folder=path.absolute().parent)
        return resolve(plan_class, values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error


def write_plan(plan: Any, path: Path, *, digests: Mapping[str, str]) -> None:
    """Write a plan, with the digests of its sources by their paths."""
    folder = path.absolute().parent
    values = _mapping(plan)
    changes = values.get("amendments", [])
    for source in (s for item in [values, *changes] for s in item.get("sources", [])):
        source["digest"] = digests[source["path"]]
        source["path"] = _relative(source["path"], folder)
    if path.suffix in {".yaml", ".yml"}:
        data = msgspec.yaml.encode(values)
    elif path.suffix == ".json":
        data = msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n"
    else:
        raise ConfigError(f"{path}: a plan is written as .json, .yaml or .yml")
    with atomic_write(path) as file:
        file.write(data)


def _check_items(values: dict[str, Any], place: str, *, folder: Path) -> None:
    """Check each source, stage and amendment by itself, and make paths relative to the file."""
    for field, kind in _ITEMS.items():
        items: Any = values.get(field)
        if items is None:
            continue
        if not isinstance(items, list):
            raise ConfigError(f"{place}{field} is {items!r}, expected a list")
        for number, item in enumerate(cast("list[Any]", items)):
            here = f"{place}{field}[{number}]"
            if not isinstance(item, dict):
                raise ConfigError(f"{here} is {item!r}, expected a mapping of names to values")
            item = cast("dict[str, Any]", item)
            _check_items(item, f"{here}.", folder=folder)
            try:
                resolve(kind, item)
            except ConfigError as error:
                raise ConfigError(f"{here}: {error.message}", hint=error.hint) from error
            if field == "sources" and "://" not in item["path"]:
                item["path"] = str(folder / Path(item["path"]).expanduser())


def _relative(path: str, folder: Path) -> str:
    if "://" in path:
        return path
    absolute = Path(path).absolute()
    return str(absolute.relative_to(folder)) if absolute.is_relative_to(folder) else str(absolute)


def _mapping(value: Any) -> Any:
    """Return a plan or a part of one as plain values, without those that are as by default."""
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        given = {field.name: getattr(value, field.name) for field in fields}
        defaults = {field.name: field.default for field in fields}
        return {name: _mapping(item) for name, item in given.items() if item != defaults[name]}
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, float]", value))
    if isinstance(value, tuple | list):
        return [_mapping(item) for item in cast("Sequence[Any]", value)]
    return value
