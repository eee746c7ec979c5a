"""`tokenmill describe`: what is this data? Asks on a terminal; flags answer for scripts."""

from __future__ import annotations

import datetime
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokenmill.cli.options import json_option
from tokenmill.errors import ConfigError

if TYPE_CHECKING:
    from tokenmill.sources import Description

EPILOG = """\b
Examples:
  tokenmill describe data/wiki
  tokenmill describe data/wiki --name wiki --content-field text --corpus en --corpus de \\
      --separation data_dirs --no-ask
  tokenmill describe data/wiki --format yaml --download-source https://example.org --no-ask
  tokenmill tokenize data/wiki:en -o store
"""
_CONTENTS = ("text", "image", "audio", "video", "other")


@click.command("describe", epilog=EPILOG)
@click.argument("folder", metavar="DIR", default=".", type=click.Path(path_type=Path))
@click.option("--format", type=click.Choice(["json", "yaml"]), help="Format of the description.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where to write it.")
@click.option("--name", help="Name of the dataset.")
@click.option("--dataset-path", help="Where the data is, if not beside the description.")
@click.option("--description", help="What it is.")
@click.option("--date-downloaded", metavar="YYYY-MM-DD", help="When it was downloaded.")
@click.option("--download-source", help="Where it came from.")
@click.option("--data-content", type=click.Choice(_CONTENTS), help="What it holds.")
@click.option("--content-field", help="Field or column that holds the content.")
@click.option("--corpus", "corpuses", multiple=True, help="A corpus in it; may be repeated.")
@click.option(
    "--separation",
    "corpus_separation_strategy",
    type=click.Choice(["data_dirs", "configs"]),
    help="Whether corpora are folders or configurations.",
)
@click.option("--corpus-data-dir-parent", help="Folder in which those of the corpora are.")
@click.option("--tokenized/--not-tokenized", default=None, help="Whether it is tokenized already.")
@click.option("--tokenizer", help="With --tokenized: the tokenizer.")
@click.option("--file-prefix", help="With --tokenized: how the names of the files begin.")
@click.option("--file-extension", help="With --tokenized: how they end.")
@click.option("--dtype", type=click.Choice(["uint16", "uint32"]), help="With --tokenized.")
@click.option("--replace", is_flag=True, help="Write over a description that is there.")
@click.option(
    "--ask/--no-ask", default=None, help="Ask what no flag says.  [default: on a terminal]"
)
@json_option
def command(folder: Path, *, replace: bool, ask: bool | None, as_json: bool, **flags: Any) -> None:
    """Describe the data in DIR, so that it is a source by itself.

    Nothing is written before the last answer; Ctrl-C leaves everything as it was.
    """
    from tokenmill.cli.output import print_json
    from tokenmill.sources import to_mapping, write_description

    answers = _Answers(folder, flags, ask=sys.stdin.isatty() if ask is None else ask)
    path = answers.output(replace=replace)
    described = answers.described()
    write_description(path, described, replace=replace)
    if as_json:
        print_json({"path": str(path), **to_mapping(described)})
    else:
        _show(path, described)


class _Answers:
    """Answers to the questions, in their order: from flags, else from a person, else defaults."""

    def __init__(self, folder: Path, flags: dict[str, Any], *, ask: bool) -> None:
        self._folder = folder
        self._flags = flags
        self._ask = ask

    def output(self, *, replace: bool) -> Path:
        """Return where the description is to be; a file that is there stops it before asking on."""
        suffix = Path(self._flags["output"] or "").suffix.lower().removeprefix(".")
        default = {"yml": "yaml"}.get(suffix, suffix) or "json"
        kind = self._choice("format", "Format of the description", ("json", "yaml"), default)
        text = self._text("output", "Write it to", str(self._folder / f"metadata.{kind}"))
        path = Path(text)
        wanted = {".json"} if kind == "json" else {".yaml", ".yml"}
        if path.suffix.lower() not in wanted:
            raise ConfigError(f"{path}: the name of a {kind} file ends in {min(wanted)}")
        if path.exists() and not replace:
            raise ConfigError(
                f"{path}: is there already", hint="use --replace, or another --output"
            )
        return path

    def described(self) -> Description:
        """Return the description that the answers make."""
        from tokenmill.sources import Description, check_date

        today = datetime.date.today().isoformat() if self._ask else ""
        values: dict[str, Any] = {
            "name": self._text("name", "Name", self._folder.resolve().name, blank=False),
            "dataset_path": self._text(
                "dataset_path", "Path of the data (blank: beside the description)", ""
            )
            or None,
            "description": self._text("description", "What it is", ""),
            "date_downloaded": self._text(
                "date_downloaded", "Date of the download", today, check=check_date
            ),
            "download_source": self._text("download_source", "Source of the download", ""),
            "data_content": self._choice("data_content", "Content", _CONTENTS, "text"),
            "content_field": self._text(
                "content_field", "Field of the content", "text", blank=False
            ),
            "corpuses": self._corpora(),
        }
        return Description(**values, **self._separation(values["corpuses"]), **self._tokenized())

    def _corpora(self) -> tuple[str, ...]:
        from tokenmill.sources import check_corpus

        given = self._flags["corpuses"]
        if given or not self._ask:
            return tuple(given)
        found: list[str] = []

        def check(text: str) -> str:
            if text in found:
                raise ConfigError(f"{text!r} is in the list already")
            return check_corpus(text) if text else ""

        while name := self._prompt(f"Corpus {len(found) + 1} (blank: no more)", "", check=check):
            found.append(name)
        return tuple(found)

    def _separation(self, corpora: tuple[str, ...]) -> dict[str, Any]:
        strategy = self._flags["corpus_separation_strategy"]
        if len(corpora) > 1:
            strategy = self._choice(
                "corpus_separation_strategy", "Corpora are", ("data_dirs", "configs"), "data_dirs"
            )
        parent = self._flags["corpus_data_dir_parent"]
        if strategy == "data_dirs" and len(corpora) > 1:
            question = "Folder in which theirs are (blank: the dataset's own)"
            parent = self._text("corpus_data_dir_parent", question, "") or None
        return {"corpus_separation_strategy": strategy, "corpus_data_dir_parent": parent}

    def _tokenized(self) -> dict[str, Any]:
        from tokenmill.sources import TokenizedInfo

        names = ("tokenizer", "file_prefix", "file_extension", "dtype")
        tokenized = self._flags["tokenized"]
        if tokenized is None:
            tokenized = any(self._flags[name] for name in names)
            if not tokenized and self._ask:
                tokenized = click.confirm("Is it tokenized", default=False, err=True)
        if not tokenized:
            return {}
        if not self._ask and not self._flags["tokenizer"]:
            raise ConfigError("--tokenized needs --tokenizer")
        info = TokenizedInfo(
            tokenizer=self._text("tokenizer", "Tokenizer", "gpt2", blank=False),
            file_prefix=self._text("file_prefix", "Names of the files begin with", "train"),
            file_extension=self._text("file_extension", "and end with", "npy"),
            dtype=self._choice("dtype", "Type of the ids", ("uint16", "uint32"), "uint16"),
        )
        return {"tokenized_info": info}

    def _choice(self, name: str, question: str, options: tuple[str, ...], default: str) -> str:
        if self._flags[name] is not None:
            return self._flags[name]
        if not self._ask:
            return default
        return click.prompt(question, default=default, type=click.Choice(options), err=True)

    def _text(
        self,
        name: str,
        question: str,
        default: str,
        *,
        blank: bool = True,
        check: Callable[[str], str] = str,
    ) -> str:
        given = self._flags[name]
        if given is not None:
            return check(str(given))
        if not self._ask:
            return default
        while not (text := self._prompt(question, default, check=check)) and not blank:
            click.echo("This cannot be blank.", err=True)
        return text

    def _prompt(self, question: str, default: str, *, check: Callable[[str], str]) -> str:
        while True:
            text = click.prompt(question, default=default, show_default=bool(default), err=True)
            try:
                return check(text.strip())
            except ConfigError as error:
                click.echo(f"{error.message}.", err=True)


def _show(path: Path, described: Description) -> None:
    click.echo(f"{path}: describes {described.name!r}")
    corpora = described.corpuses
    if corpora:
        click.echo(f"corpora: {', '.join(corpora)}")
    if described.tokenized_info is None and path.name.startswith("metadata."):
        place = str(path.parent) + (f":{corpora[0]}" if corpora else "")
        click.echo(f"next: tokenmill tokenize {shlex.quote(place)} -o store")
