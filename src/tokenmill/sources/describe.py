"""Descriptions of raw data: `metadata.json` or `metadata.yaml` beside it, read strictly.

A description says what the data is, where it is, which field holds the text, and which corpora it
is made of: sub-folders (`data_dirs`) or named configurations (`configs`).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from tokenmill.config import dump_mapping, read_mapping
from tokenmill.errors import ConfigError
from tokenmill.files import OutputFile, partial_path, publish_new, storage_error

NAMES = ("metadata.json", "metadata.yaml", "metadata.yml")
CONTENTS = ("text", "image", "audio", "video", "other")
STRATEGIES = ("data_dirs", "configs")

_TELLING = {
    "data_content",
    "content_field",
    "corpuses",
    "corpus_separation_strategy",
    "corpus_data_dir_parent",
    "tokenized_info",
}
"""A file with none of these keys describes something else."""
_OLDEST_YEAR = 1990
_LARGEST_BYTES = 1 << 20


class TokenizedInfo(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the files of a dataset were tokenized, if they were."""

    tokenizer: str
    file_prefix: str = "train"
    file_extension: str = "npy"
    dtype: str = "uint16"


class Description(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a dataset. The names of the fields are those of the file."""

    name: str
    dataset_path: str | None = None
    """Where the data is; by default in the folder of the file, to which it can be relative."""
    description: str = ""
    date_downloaded: str = ""
    download_source: str = ""
    data_content: Literal["text", "image", "audio", "video", "other"] = "text"
    content_field: str = "text"
    """The field or column that holds the content."""
    corpuses: tuple[str, ...] = ()
    corpus_separation_strategy: Literal["data_dirs", "configs"] | None = None
    """data_dirs: a corpus is a folder; configs: a configuration. One corpus needs neither."""
    corpus_data_dir_parent: str | None = None
    """The folder in which those of the corpora are; by default the dataset's own."""
    tokenized_info: TokenizedInfo | None = None


def check_description(description: Description) -> None:
    """Raise `ConfigError` unless a description makes sense as a whole."""
    problem = next(_problems(description), None)
    if problem is not None:
        raise ConfigError(problem)


def find_description(folder: str | Path) -> Path | None:
    """Return the file that describes the data in a folder; None if there is none."""
    found = [path for name in NAMES if (path := Path(folder) / name).is_file()]
    found = [path for path in found if _is_description(path)]
    if len(found) > 1:
        raise ConfigError(
            f"{folder}: described twice, by {' and by '.join(path.name for path in found)}",
            hint="keep one of them",
        )
    return found[0] if found else None


def read_description(path: Path) -> Description:
    """Read the file that describes a dataset; where the data is comes back as a full path."""
    return decode_description(read_mapping(path), path=path)


def decode_description(mapping: dict[str, Any], *, path: Path, name: str = "") -> Description:
    """Make a description of what stands in the file `path`; `name` is for one that has none."""
    where = f"{path}: " + (f"{name}: " if name else "")
    try:
        values = {"name": name, **mapping} if name else mapping
        description = msgspec.convert(values, Description)
        check_description(description)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{where}{error}", hint="`tokenmill describe` writes such a file"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"{where}{error.message}", hint=error.hint) from error
    root = description.dataset_path or "."
    if "://" not in root:
        root = str(path.parent / root) if root != "." else str(path.parent)
    return msgspec.structs.replace(description, dataset_path=root)


def write_description(path: Path, description: Description, *, replace: bool = False) -> None:
    """Write a description as JSON or YAML, by the suffix of the name, all of it or nothing.

    A file that is there is an error, unless it is to be replaced.
    """
    check_description(description)
    data = dump_mapping(to_mapping(description), path.suffix.lower())
    if path.exists() and not replace:
        raise _exists(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        file = OutputFile(partial)
        try:
            file.write(data)
            file.finish()
        finally:
            file.close()
        if replace:
            partial.replace(path)
        elif not publish_new(partial, path):
            raise _exists(path)
    finally:
        partial.unlink(missing_ok=True)


def to_mapping(description: Description) -> dict[str, Any]:
    """Return a description as a file holds it: an absent path is left out."""
    mapping = msgspec.to_builtins(description)
    mapping["corpuses"] = list(description.corpuses)
    if description.dataset_path is None:
        del mapping["dataset_path"]
    return mapping


def check_date(text: str) -> str:
    """Return a date as YYYY-MM-DD; blank stays blank, anything else is a `ConfigError`.

    >>> check_date("2024-01-31"), check_date(" ")
    ('2024-01-31', '')
    """
    if not text.strip():
        return ""
    try:
        date = datetime.date.fromisoformat(text.strip())
    except ValueError:
        date = datetime.date.min
    if date.year < _OLDEST_YEAR:
        raise ConfigError(f"{text.strip()!r} is not a date: expected YYYY-MM-DD")
    return date.isoformat()


def check_corpus(name: str) -> str:
    """Return the name of a corpus; one that leads out of the dataset is a `ConfigError`."""
    parts = name.split("/")
    if not name.strip() or name != name.strip() or any(p in {"", ".", ".."} for p in parts):
        raise ConfigError(
            f"{name!r} is not a name for a corpus: expected a folder or configuration"
        )
    if any(ord(character) < ord(" ") for character in name):
        raise ConfigError(f"{name!r} is not a name for a corpus: it has control characters")
    return name


def _problems(description: Description) -> Iterator[str]:
    if not description.name.strip():
        yield "name is empty"
    if not all(description.content_field.split(".")):
        yield f"content_field is {description.content_field!r}, expected `a` or `a.b`"
    corpora = description.corpuses
    for name in corpora:
        try:
            check_corpus(name)
        except ConfigError as error:
            yield error.message
    twice = {name for name in corpora if corpora.count(name) > 1}
    if twice:
        yield f"the corpus {min(twice)!r} is listed twice"
    strategy, parent = description.corpus_separation_strategy, description.corpus_data_dir_parent
    if len(corpora) > 1 and strategy is None:
        yield (
            f"{len(corpora)} corpora, but no corpus_separation_strategy: "
            f"expected {' or '.join(STRATEGIES)}"
        )
    if parent and strategy != "data_dirs":
        yield "corpus_data_dir_parent is for corpora that are folders: the strategy data_dirs"
    if parent and (parent.startswith("/") or ".." in parent.split("/")):
        yield f"corpus_data_dir_parent is {parent!r}, expected a folder inside the dataset"


def _is_description(path: Path) -> bool:
    """Tell whether a file with one of our names is ours: a store or another tool may use it too."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise storage_error(error, path) from error
    if len(data) > _LARGEST_BYTES or not any(key.encode() in data for key in _TELLING):
        return False
    mapping = read_mapping(path)  # it speaks of our keys: what is wrong with it must be said
    return "name" in mapping and bool(_TELLING & mapping.keys())


def _exists(path: Path) -> ConfigError:
    return ConfigError(f"{path}: is there already", hint="use --replace, or another --output")
