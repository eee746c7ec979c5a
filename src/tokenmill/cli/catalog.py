"""`tokenmill catalog`: names for datasets, in one file for everybody."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenmill.cli.options import group_catalog, json_option
from tokenmill.errors import ConfigError, NotAStoreError

if TYPE_CHECKING:
    from tokenmill.sources import Description

EPILOG = """\b
Examples:
  tokenmill catalog add wiki data/wiki --file catalog.json
  tokenmill catalog add wiki-gpt2 stores/wiki --file catalog.json
  tokenmill catalog list --file catalog.json
  tokenmill catalog show wiki --file catalog.json
  tokenmill --catalog catalog.json tokenize wiki:en -o store
"""
_file_option = click.option(
    "--file", "file", metavar="FILE", envvar="TOKENMILL_CATALOG", help="The catalog, a .json file."
)


@click.group("catalog", epilog=EPILOG)
def command() -> None:
    """List, show and add named datasets; the file is that of --file or of `tokenmill --catalog`."""


@command.command("list", epilog=EPILOG)
@_file_option
@json_option
def list_command(*, file: str | None, as_json: bool) -> None:
    """List the datasets of the catalog."""
    from tokenmill.cli.output import print_json
    from tokenmill.sources import read_catalog, to_mapping

    found = read_catalog(_path(file))
    if as_json:
        print_json({name: to_mapping(entry) for name, entry in found.items()})
        return
    width = max(map(len, found), default=0)
    for name, entry in found.items():
        kind = "store" if entry.tokenized_info else entry.data_content
        corpora = f" [{', '.join(entry.corpuses)}]" if entry.corpuses else ""
        click.echo(f"{name:<{width}}  {kind}  {entry.dataset_path}{corpora}")


@command.command("show", epilog=EPILOG)
@click.argument("name")
@_file_option
@json_option
def show_command(name: str, *, file: str | None, as_json: bool) -> None:
    """Show what the catalog says of NAME."""
    from tokenmill.cli.output import print_json
    from tokenmill.sources import resolve_name, to_mapping

    found = resolve_name(name, _path(file))
    mapping = to_mapping(found.description)
    if as_json:
        print_json(mapping)
        return
    for key, value in mapping.items():
        if value not in (None, "", []):
            click.echo(f"{key:<28}{value}")


@command.command("add", epilog=EPILOG)
@click.argument("name")
@click.argument("path", metavar="PATH")
@click.option("--description", default=None, help="What it is; by default what describes it says.")
@click.option("--content-field", default=None, help="Field or column that holds the text.")
@click.option("--replace", is_flag=True, help="Take over a name that is there.")
@_file_option
@json_option
def add_command(
    name: str, path: str, *, replace: bool, file: str | None, as_json: bool, **changes: str | None
) -> None:
    """Give the dataset at PATH the name NAME: a store, described data, any data, or hf://org/name."""
    import msgspec

    from tokenmill.cli.output import print_json
    from tokenmill.sources import add_to_catalog, to_mapping

    given = {key: value for key, value in changes.items() if value is not None}
    found = msgspec.structs.replace(_describe(name, path), **given)
    add_to_catalog(_path(file), name, found, replace=replace)
    if as_json:
        print_json(to_mapping(found))
    else:
        click.echo(f"{_path(file)}: {name} is {found.dataset_path}")


def _describe(name: str, path: str) -> Description:
    """Return what is known of the data at a path."""
    import msgspec

    from tokenmill.sources import Description, TokenizedInfo, find_description, read_description
    from tokenmill.store import read_metadata

    if "://" in path:
        return Description(name=name, dataset_path=path)
    folder = Path(path).absolute()
    if not folder.exists():
        raise ConfigError(f"{path}: no such file or folder")
    described = find_description(folder) if folder.is_dir() else None
    if described is not None:
        found = read_description(described)
        root = found.dataset_path or ""
        root = root if "://" in root else str(Path(root).absolute())
        return msgspec.structs.replace(found, dataset_path=root)
    try:
        metadata = read_metadata(folder)
    except NotAStoreError:
        return Description(name=name, dataset_path=str(folder))
    info = TokenizedInfo(tokenizer=metadata.tokenizer.name, dtype=metadata.dtype)
    return Description(name=name, dataset_path=str(folder), tokenized_info=info)


def _path(file: str | None) -> str:
    found = file or group_catalog()
    if found is None:
        raise ConfigError(
            "no catalog was named",
            hint="use --file FILE, `tokenmill --catalog FILE …` or the variable TOKENMILL_CATALOG",
        )
    return found
