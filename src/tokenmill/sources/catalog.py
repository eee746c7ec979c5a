"""A catalog: one JSON file that gives datasets names, so that a whole cluster can use them.

    {"wiki": {"dataset_path": "raw/wiki", "data_content": "text", "corpuses": ["en", "de"], …},
     "wiki-gpt2": {"dataset_path": "stores/wiki", "tokenized_info": {"tokenizer": "gpt2"}, …}}

Each entry is a description (see `describe`); its name is the key. Paths may be relative to the
folder of the file.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.config import dump_mapping, read_mapping
from tokenmill.errors import ConfigError
from tokenmill.files import atomic_write, exclusive_lock
from tokenmill.sources.describe import Description, decode_description, to_mapping


@dataclass(frozen=True, slots=True)
class NamedDataset:
    """What a name in a catalog stands for."""

    description: Description
    corpus: str | None = None
    """The corpus, for `name:corpus`."""

    @property
    def path(self) -> str:
        """Where the dataset is: raw data, or the folder of a store."""
        assert self.description.dataset_path is not None
        return self.description.dataset_path

    @property
    def is_tokenized(self) -> bool:
        """Whether the files there are token ids."""
        return self.description.tokenized_info is not None


def read_catalog(path: str | Path) -> dict[str, Description]:
    """Return the datasets of a catalog by name, in the order of the file."""
    file = Path(path)
    if file.suffix.lower() != ".json":
        raise ConfigError(f"{file}: a catalog is a .json file")
    return {
        name: decode_description(_entry(value, name, file), path=file.absolute(), name=name)
        for name, value in read_mapping(file).items()
    }


def resolve_name(name: str, catalog: str | Path) -> NamedDataset:
    """Return the dataset that `name` or `name:corpus` stands for in a catalog.

    An unknown name is a `ConfigError` that suggests the nearest one.
    """
    known = read_catalog(catalog)
    found = find_name(name, known)
    if found is None:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known) or 'none'}"
        raise ConfigError(f"{catalog}: no dataset {name!r}", hint=hint)
    return found


def find_name(name: str, known: dict[str, Description]) -> NamedDataset | None:
    """Return what a name stands for among the datasets of a catalog; None if nothing."""
    if name in known:
        return NamedDataset(known[name])
    dataset, _, corpus = name.rpartition(":")
    return NamedDataset(known[dataset], corpus) if dataset in known and corpus else None


def add_to_catalog(
    path: str | Path, name: str, description: Description, *, replace: bool = False
) -> None:
    """Give a dataset a name in a catalog, which is made if it is not there.

    Others may add to it at the same time; readers see the file before or after, never in between.
    """
    if not name.strip() or set(name) & set("/:\\") or name != name.strip() or name.startswith("."):
        raise ConfigError(
            f"{name!r} is not a name for a dataset: no slashes, colons or blanks around it"
        )
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(file.with_name(f".{file.name}.lock")):
        mapping: dict[str, Any] = read_mapping(file) if file.exists() else {}
        if name in mapping and not replace:
            raise ConfigError(f"{file}: {name!r} is in it already", hint="use --replace")
        entry = to_mapping(description)
        del entry["name"]
        mapping[name] = entry
        decode_description(entry, path=file.absolute(), name=name)  # what is written can be read
        with atomic_write(file) as output:
            output.write(dump_mapping(mapping, file.suffix.lower()))


def _entry(value: Any, name: str, file: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: {name}: expected a mapping, found {type(value).__name__}")
    return {key: item for key, item in value.items() if key != "name"}
