"""Flags made from a settings dataclass: its fields and their strings are their only definition."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click

from tokenmill.config import environment_layer, field_docs, read_mapping, resolve, set_layer

Command = Callable[..., Any]

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
progress_option = click.option(
    "--progress",
    type=click.Choice(["auto", "plain", "json", "none"]),
    default="auto",
    show_default=True,
    help="How to show progress on stderr.",
)


class CheckpointName(click.ParamType):
    """A checkpoint of a run: best, last, or the number of a step."""

    name = "best|last|STEP"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the name, or the step as a number."""
        if value in {"best", "last"} or isinstance(value, int):
            return value
        if not str(value).isdigit():
            self.fail(f"{value!r} is neither best, last nor a step", param, ctx)
        return int(value)


checkpoint_option = click.option(
    "--checkpoint",
    type=CheckpointName(),
    default="best",
    show_default=True,
    help="Which weights: best, last or a step.",
)


def group_catalog() -> str | None:
    """Return the file that `tokenmill --catalog FILE …` names."""
    found = click.get_current_context().find_root().obj
    return found.get("catalog") if isinstance(found, dict) else None


def settings_options(
    settings_class: type[Any], *, without: tuple[str, ...] = ()
) -> Callable[[Command], Command]:
    """Add a flag for every field of `settings_class`, and --config and --set.

    Every flag defaults to None, "not given", so that files and the environment can speak.
    """
    hints = typing.get_type_hints(settings_class)
    docs = field_docs(settings_class)
    options = [
        _option(field, hints[field.name], docs.get(field.name, ""))
        for field in dataclasses.fields(settings_class)
        if field.name not in without
    ]
    options.append(
        click.option(
            "--config", type=click.Path(path_type=Path), help="Settings as YAML, TOML or JSON."
        )
    )
    options.append(
        click.option(
            "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Any setting."
        )
    )

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def resolve_settings(
    settings_class: type[Any],
    flags: dict[str, Any],
    *,
    config: Path | None,
    assignments: tuple[str, ...],
) -> Any:
    """Layer defaults, file, environment, flags and --set, in this order."""
    return resolve(
        settings_class,
        read_mapping(config) if config else {},
        environment_layer(settings_class),
        flags,
        set_layer(assignments),
    )


def _option(field: dataclasses.Field[Any], hint: Any, doc: str) -> Callable[[Command], Command]:
    flag = f"--{field.name.replace('_', '-')}"
    if hint is bool:
        flag += f"/--no-{field.name.replace('_', '-')}"
    shown = field.default
    if shown is not None and shown is not dataclasses.MISSING and shown is not False:
        default = {True: "on"}.get(shown, shown) if isinstance(shown, bool) else shown
        doc += f"  [default: {default}]"
    return click.option(flag, field.name, type=_click_type(hint), default=None, help=doc)


def _click_type(hint: Any) -> Any:
    """Return the click type of an annotation: a Literal is a choice, `X | None` is X."""
    if typing.get_origin(hint) in {types.UnionType, typing.Union}:
        hint = next(arg for arg in typing.get_args(hint) if arg is not type(None))
    if typing.get_origin(hint) is Literal:
        return click.Choice(list(hint.__args__))
    return hint
