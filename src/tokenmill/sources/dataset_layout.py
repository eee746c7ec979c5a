"""Which files of a dataset belong to a configuration and a split: rules over names alone.

These are the rules that `datasets` and the hub follow, for a folder and for a repository alike:
configurations that the README lists with their files, else folders; splits that the README names,
else words in the names of files and folders (`train-00000-of-00002.parquet`, `test/part.jsonl`).
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.config import parse_yaml
from tokenmill.errors import ConfigError

ALL_SPLITS = "all"

_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_NUMBERED = re.compile(r"(?P<split>[A-Za-z_]\w*)-\d{5}-of-\d{5}\b.*")
_NOT_A_SPLIT = {"data", "part", "shard", "cache"}
_WORDS = re.compile(r"[^A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration as the README of a dataset lists it."""

    name: str
    patterns: tuple[tuple[str | None, str], ...]
    """Pairs of a split (None: told by names) and a pattern of paths."""
    is_default: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is asked for of a dataset."""

    place: str
    """How the user named it, for errors."""
    config: str | None = None
    split: str | None = None
    must_choose: bool = False
    """Whether several splits without a choice are an error instead of all of them."""


def choose_files(
    paths: Sequence[str], choice: Choice, *, configurations: Sequence[Configuration] = ()
) -> list[str]:
    """Return the paths of the chosen configuration and split, in the given order."""
    if configurations:
        by_split = _by_patterns(paths, _choose_configuration(configurations, choice))
    else:
        inside = list(paths) if choice.config is None else _in_folder(paths, choice)
        if choice.split == ALL_SPLITS:
            return inside
        prefix = "" if choice.config is None else f"{choice.config}/"
        by_split = group_splits(inside, prefix=prefix)
        if choice.split is None and len(by_split) <= 1:
            return inside
    chosen = set(_choose_split(by_split, choice))
    return [path for path in paths if path in chosen]


def group_splits(paths: Iterable[str], *, prefix: str = "") -> dict[str, list[str]]:
    """Sort paths by the split that their names speak of; `prefix` is no part of the names.

    Without any such name all of them are train; else those without one belong to no split.
    """
    found: dict[str, list[str]] = {}
    rest: list[str] = []
    for path in paths:
        split = split_of(path.removeprefix(prefix))
        (rest if split is None else found.setdefault(split, [])).append(path)
    return found or ({"train": rest} if rest else {})


def split_of(path: str) -> str | None:
    """Return the split that the name of a file speaks of, or that of a folder above it.

    >>> [split_of(p) for p in ("data/train-00000-of-00001.parquet", "dev/a.jsonl", "notes.txt")]
    ['train', 'validation', None]
    """
    *folders, name = path.split("/")
    numbered = _NUMBERED.fullmatch(name)
    if numbered is not None and numbered["split"].lower() not in _NOT_A_SPLIT:
        return normal_split(numbered["split"])
    for part in (name.partition(".")[0], *reversed(folders)):
        words = set(_WORDS.split(part.lower()))
        for split, keywords in _KEYWORDS.items():
            if words & set(keywords):
                return split
    return None


def normal_split(name: str) -> str:
    """Return the usual name of a split.

    >>> normal_split("val"), normal_split("en")
    ('validation', 'en')
    """
    for split, keywords in _KEYWORDS.items():
        if name.lower() in keywords:
            return split
    return name


def read_configurations(readme: bytes, *, place: str) -> list[Configuration]:
    """Return the configurations that the head of a README lists; without any, nothing."""
    if not readme.startswith(b"---"):
        return []
    head = re.match(rb"---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", readme, re.DOTALL)
    try:
        mapping = parse_yaml(head[1]) if head else None
        listed = mapping.get("configs") if isinstance(mapping, dict) else None
        if listed is None:
            return []
        return [_configuration(item) for item in listed]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{place}: the configurations in its README.md cannot be read: {error}",
            hint="name the files themselves, for example with a glob",
        ) from error


def _configuration(item: dict[str, Any]) -> Configuration:
    folder = str(item.get("data_dir") or "").strip("/")
    prefix = f"{folder}/" if folder else ""
    files = item.get("data_files")
    pairs: list[tuple[str | None, str]] = []
    if files is None:
        pairs.append((None, "**"))
    elif isinstance(files, str):
        pairs.append((None, files))
    elif isinstance(files, dict):
        pairs += [(split, p) for split, paths in files.items() for p in _several(paths)]
    else:
        for entry in files:
            if isinstance(entry, str):
                pairs.append((None, entry))
            else:
                pairs += [(entry["split"], path) for path in _several(entry["path"])]
    return Configuration(
        name=str(item.get("config_name", "default")),
        patterns=tuple((None if s is None else normal_split(s), f"{prefix}{p}") for s, p in pairs),
        is_default=bool(item.get("default")),
    )


def _several(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _choose_configuration(found: Sequence[Configuration], choice: Choice) -> Configuration:
    names = [configuration.name for configuration in found]
    if choice.config is not None:
        if choice.config not in names:
            raise ConfigError(
                f"{choice.place}: no configuration {choice.config!r}; there is {', '.join(names)}"
            )
        return found[names.index(choice.config)]
    if len(found) == 1:
        return found[0]
    default = [c for c in found if c.is_default] or [c for c in found if c.name == "default"]
    if not default:
        raise ConfigError(
            f"{choice.place}: has the configurations {', '.join(names)}",
            hint=f"choose one: {choice.place}:{names[0]}",
        )
    return default[0]


def _by_patterns(paths: Sequence[str], configuration: Configuration) -> dict[str, list[str]]:
    """Sort paths by split, as the patterns of a configuration do."""
    found: dict[str, list[str]] = {}
    for split, pattern in configuration.patterns:
        matched = [path for path in paths if _fits(path, pattern)]
        if split is None:
            for name, some in group_splits(matched).items():
                found.setdefault(name, []).extend(some)
        else:
            found.setdefault(split, []).extend(matched)
    return found


def _fits(path: str, pattern: str) -> bool:
    pattern = pattern.removeprefix("./")
    if not pattern.count("*") and not re.search(r"[?\[]", pattern):
        return path == pattern or path.startswith(f"{pattern.rstrip('/')}/")
    parts, names = pattern.split("/"), path.split("/")
    return _fit_parts(names, parts)


def _fit_parts(names: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not names
    if pattern[0] == "**":
        if len(pattern) == 1:
            return bool(names)
        return any(_fit_parts(names[start:], pattern[1:]) for start in range(len(names) + 1))
    return (
        bool(names)
        and fnmatch.fnmatchcase(names[0], pattern[0])
        and _fit_parts(names[1:], pattern[1:])
    )


def _in_folder(paths: Sequence[str], choice: Choice) -> list[str]:
    """Return the paths in the folder that is named like the configuration."""
    found = [path for path in paths if path.startswith(f"{choice.config}/")]
    if not found:
        folders = sorted({path.partition("/")[0] for path in paths if "/" in path})
        raise ConfigError(
            f"{choice.place}: no configuration and no folder {choice.config!r}; "
            f"there is {', '.join(folders) or 'none'}"
        )
    return found


def _choose_split(by_split: dict[str, list[str]], choice: Choice) -> list[str]:
    everything = [path for paths in by_split.values() for path in paths]
    if choice.split == ALL_SPLITS:
        return everything
    if choice.split is None:
        if choice.must_choose and len(by_split) > 1:
            raise ConfigError(
                f"{choice.place}: has the splits {', '.join(by_split)}",
                hint=f"choose one with --split, or --split {ALL_SPLITS}",
            )
        return everything
    for name in (choice.split, normal_split(choice.split)):
        if by_split.get(name):
            return by_split[name]
    raise ConfigError(
        f"{choice.place}: no split {choice.split!r}; there is {', '.join(by_split) or 'none'}"
    )
