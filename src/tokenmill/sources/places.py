"""What a place stands for: a path, a described folder, a name in a catalog, a dataset on a hub.

data/  data/*.jsonl  corpus.txt      files, folders and globs
data:en                              the corpus or configuration `en` of the folder data
s3://bucket/data/*.jsonl             the same three in an object store
wiki  wiki:en                        a name in the catalog, if one is given
hf://org/name[@revision][:config]    a dataset on a hub
"""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from tokenmill.errors import ConfigError, StorageError
from tokenmill.files import FileInfo, is_folder, list_files, open_input
from tokenmill.remote import is_remote, join, object_info, read_object
from tokenmill.sources import hub
from tokenmill.sources.catalog import find_name, read_catalog
from tokenmill.sources.dataset_layout import Choice, choose_files, read_configurations
from tokenmill.sources.describe import NAMES as DESCRIPTION_NAMES
from tokenmill.sources.describe import Description, find_description, read_description
from tokenmill.sources.formats import holds_documents
from tokenmill.sources.settings import SourceSettings

README = "README.md"
_CONVERTED = "refs/convert/parquet"  # a branch of the hub: a folder for each configuration
_HUB_FORMATS = ((".parquet",), (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".json.gz"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The files that a place stands for."""

    infos: list[FileInfo]
    is_folder: bool = False
    """Whether they were found rather than named: then those of unknown formats are passed over."""
    text_field: str = ""
    """The field that a description names; empty without one."""


def open_place(place: str, settings: SourceSettings) -> Iterator[Found]:
    """Yield the files that a place stands for, in order."""
    if place.startswith(hub.SCHEME):
        yield _hub_files(place, hub.parse_place(place), settings=settings)
        return
    if is_remote(place):
        yield from _remote_files(place, settings)
        return
    is_path = os.path.lexists(place) or glob.has_magic(place)
    named = None
    if settings.catalog is not None:
        named = find_name(place, read_catalog(settings.catalog))
    if named is not None:
        if is_path:
            raise ConfigError(
                f"{place!r} is a path here, and a name in {settings.catalog}",
                hint=f"write ./{place} for the path",
            )
        yield from _described(place, named.description, corpus=named.corpus, settings=settings)
        return
    folder, _, corpus = place.rpartition(":")
    if not is_path and corpus and os.path.isdir(folder):  # noqa: PTH112  (a place, not always a path)
        yield from _corpus_of_folder(place, folder, corpus=corpus, settings=settings)
        return
    description = find_description(place) if os.path.isdir(place) else None  # noqa: PTH112
    if description is not None:
        yield from _described(place, read_description(description), settings=settings)
        return
    yield _local_files(place, Choice(place=place, split=settings.split), settings=settings)


def _remote_files(place: str, settings: SourceSettings) -> Iterator[Found]:
    """Yield the objects that a URL stands for; a description among them counts, as in a folder."""
    folder, _, corpus = place.rpartition(":")
    if not is_remote(folder) or glob.has_magic(place) or is_folder(place) or object_info(place):
        folder, corpus = place, ""
    description = None if glob.has_magic(folder) else _remote_description(folder)
    if description is not None:
        yield from _described(place, description, corpus=corpus or None, settings=settings)
        return
    choice = Choice(place=folder, config=corpus or None, split=settings.split)
    yield _local_files(folder, choice, settings=settings)


def _remote_description(folder: str) -> Description | None:
    with tempfile.TemporaryDirectory() as copies:
        for name in DESCRIPTION_NAMES:
            with suppress(FileNotFoundError):
                Path(copies, name).write_bytes(read_object(join(folder, name)))
        found = find_description(copies)
        if found is None:
            return None
        description = read_description(found)
        root = description.dataset_path
        assert root is not None
        if not root.startswith(copies):
            return description
        inside = root.removeprefix(copies).strip("/")
        root = join(folder, inside) if inside else folder.rstrip("/")
        return msgspec.structs.replace(description, dataset_path=root)


def _read_whole(path: str) -> bytes:
    with open_input(path) as file:
        return file.read()


def _corpus_of_folder(
    place: str, folder: str, *, corpus: str, settings: SourceSettings
) -> Iterator[Found]:
    found = find_description(folder)
    if found is not None:
        yield from _described(place, read_description(found), corpus=corpus, settings=settings)
    else:
        choice = Choice(place=folder, config=corpus, split=settings.split)
        yield _local_files(folder, choice, settings=settings)


def _described(
    place: str, description: Description, *, settings: SourceSettings, corpus: str | None = None
) -> Iterator[Found]:
    """Yield the files of a described dataset: of one corpus, or of all in the listed order."""
    if description.data_content != "text":
        raise ConfigError(f"{place}: holds {description.data_content}, expected text")
    if description.tokenized_info is not None:
        raise ConfigError(
            f"{place}: is tokenized already, with {description.tokenized_info.tokenizer}",
            hint="open it as a dataset instead",
        )
    if corpus is not None and corpus not in description.corpuses:
        known = ", ".join(description.corpuses) or "none"
        raise ConfigError(f"{place}: no corpus {corpus!r}; the description lists {known}")
    root = description.dataset_path
    assert root is not None
    strategy = description.corpus_separation_strategy
    if strategy is None:
        yield _with_field(_root_files(place, root, config=None, settings=settings), description)
        return
    chosen = description.corpuses if corpus is None else (corpus,)
    for name in chosen or (None,):
        if strategy == "data_dirs" and name is not None:
            parts = (root.rstrip("/"), description.corpus_data_dir_parent, name)
            folder = "/".join(part for part in parts if part)
            if not is_remote(folder) and not os.path.isdir(folder):  # noqa: PTH112
                raise ConfigError(f"{place}: the corpus {name!r} is not there: no folder {folder}")
            choice = Choice(place=folder, split=settings.split)
            found = _local_files(folder, choice, settings=settings)
        else:
            found = _root_files(place, root, config=name, settings=settings)
        yield _with_field(found, description)


def _with_field(found: Found, description: Description) -> Found:
    return Found(infos=found.infos, is_folder=found.is_folder, text_field=description.content_field)


def _root_files(place: str, root: str, *, config: str | None, settings: SourceSettings) -> Found:
    if root.startswith(hub.SCHEME):
        on_hub = hub.parse_place(root)
        chosen = hub.HubPlace(on_hub.repo, on_hub.revision, config or on_hub.config)
        return _hub_files(place, chosen, settings=settings)
    choice = Choice(place=root, config=config, split=settings.split)
    return _local_files(root, choice, settings=settings)


def _local_files(place: str, choice: Choice, *, settings: SourceSettings) -> Found:
    infos = list_files(place)
    if is_remote(place):
        is_found = not glob.has_magic(place) and [info.path for info in infos] != [place]
    else:
        is_found = os.path.isdir(place)  # noqa: PTH112
    if not is_found:
        if choice.config is not None or choice.split is not None:
            what = "a configuration" if choice.config is not None else "--split"
            raise ConfigError(f"{place}: {what} chooses in a folder, and this is none")
        return Found(infos=infos)
    infos = _without_caches(infos)
    if choice.config is None and choice.split is None:
        return Found(infos=infos, is_folder=True)
    by_path = {os.path.relpath(info.path, place): info for info in infos}
    readme = by_path.get(README)
    data = b"" if readme is None else _read_whole(readme.path)
    configurations = read_configurations(data, place=choice.place)
    paths = [path for path in by_path if holds_documents(path, settings.format)]
    chosen = choose_files(paths, choice, configurations=configurations)
    return Found(infos=[by_path[path] for path in chosen], is_folder=True)


class _State(msgspec.Struct):
    """What `Dataset.save_to_disk` leaves beside its files."""

    data_files: list[dict[str, str]] | None = msgspec.field(name="_data_files", default=None)


def _without_caches(infos: list[FileInfo]) -> list[FileInfo]:
    """Pass over Arrow files that `datasets` keeps beside those of a dataset it has saved."""

    @cache
    def listed(folder: str) -> frozenset[str] | None:
        try:
            state = msgspec.json.decode(_read_whole(f"{folder}/state.json"), type=_State)
        except (StorageError, msgspec.DecodeError):
            return None
        files = state.data_files
        return None if files is None else frozenset(file.get("filename", "") for file in files)

    kept: list[FileInfo] = []
    for info in infos:
        folder, name = os.path.split(info.path)
        known = listed(folder) if name.endswith(".arrow") else None
        if known is None or name in known:
            kept.append(info)
    return kept


def _hub_files(place: str, chosen: hub.HubPlace, *, settings: SourceSettings) -> Found:
    infos = hub.list_repository(chosen)
    by_path = {hub.path_in_repository(info.path): info for info in infos}
    readme = by_path.get(README)
    configurations = []
    if readme is not None:
        configurations = read_configurations(hub.read_whole(readme), place=place)
    paths = [path for path in by_path if _is_data(path, settings.format)]
    if not configurations:
        paths = _of_one_format(paths)
        if chosen.config is None and chosen.revision.startswith(_CONVERTED):
            folders = sorted({path.partition("/")[0] for path in paths})
            if len(folders) > 1:
                raise ConfigError(
                    f"{place}: has the configurations {', '.join(folders)}",
                    hint=f"choose one: {place}:{folders[0]}",
                )
    if not paths:
        raise ConfigError(
            f"{place}: no data files in this repository",
            hint=f"the hub keeps a Parquet copy of many datasets: "
            f"{hub.SCHEME}{chosen.repo}@{_CONVERTED}",
        )
    choice = Choice(place=place, config=chosen.config, split=settings.split, must_choose=True)
    files = choose_files(paths, choice, configurations=configurations)
    return Found(infos=[by_path[path] for path in files], is_folder=True)


def _is_data(path: str, format_name: str) -> bool:
    is_hidden = any(part.startswith(".") for part in path.split("/"))
    return not is_hidden and path != README and holds_documents(path, format_name)


def _of_one_format(paths: list[str]) -> list[str]:
    """Return the Parquet files if there are any, else those of JSON, else all."""
    for suffixes in _HUB_FORMATS:
        found = [path for path in paths if path.lower().endswith(suffixes)]
        if found:
            return found
    return paths
