"""What a site and its users settle once about their Slurm, in files that lie over each other."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenmill.cluster.quoting import directive_word
from tokenmill.config import parse_value, read_mapping, resolve, set_layer
from tokenmill.errors import ConfigError

SYSTEM_FOLDER = Path("/etc/tokenmill")
FILE_VARIABLE = "TOKENMILL_SLURM_CONF"
"""Names a file (or several, as PATH does) that lies over those of the system and the user."""
_NAMES = ("slurm.yaml", "slurm.yml", "slurm.toml", "slurm.json")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)+)=(?P<value>.*)", re.DOTALL)
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+/=@-]*")
_CONDA_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.+-]*")
_IMAGE_URL = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9_.:/@+-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlurmSettings:
    """Where jobs go."""

    partition: str | None = None
    """Partition, or several with commas between."""
    account: str | None = None
    """Account that the time is charged to."""
    qos: str | None = None
    """Quality of service."""
    slurm_bin_dir: str | None = None
    """Folder of sbatch, srun and scontrol, where they are not on the PATH."""

    def __post_init__(self) -> None:
        for name in ("partition", "account", "qos"):
            value = getattr(self, name)
            if value is not None:
                directive_word(value, what=f"slurm.{name}")
        if self.slurm_bin_dir is not None:
            _check_path(self.slurm_bin_dir, "slurm.slurm_bin_dir")

    def program(self, name: str) -> str:
        """Return how a program of Slurm is called."""
        if self.slurm_bin_dir is None:
            return name
        return str(Path(self.slurm_bin_dir).expanduser().absolute() / name)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentSettings:
    """What is set up in a job before tokenmill runs."""

    modules: tuple[str, ...] = ()
    """Modules to load, in this order."""
    conda_env: str | None = None
    """Name or folder of the conda environment that has tokenmill."""
    venv: str | None = None
    """Folder of the virtual environment that has tokenmill."""
    singularity_image: str | None = None
    """Image (a file, or docker://…) that has tokenmill, for Singularity or Apptainer."""

    def __post_init__(self) -> None:
        given = [n for n in ("conda_env", "venv", "singularity_image") if getattr(self, n)]
        if len(given) > 1:
            both = " and ".join(f"environment.{name}" for name in given)
            raise ConfigError(
                f"{both} are given, but tokenmill runs in one of them",
                hint="take one back with --conf environment.NAME=null",
            )
        for module in self.modules:
            if not _MODULE.fullmatch(module):
                raise ConfigError(f"environment.modules: {module!r} is not the name of a module")
        if self.conda_env is not None and not _CONDA_NAME.fullmatch(self.conda_env):
            _check_path(self.conda_env, "environment.conda_env")
        if self.venv is not None:
            _check_path(self.venv, "environment.venv")
        image = self.singularity_image
        if image is not None and not _IMAGE_URL.fullmatch(image):
            _check_path(image, "environment.singularity_image")
            if "://" in image:
                raise ConfigError(
                    "environment.singularity_image is a URL with characters that none should have",
                    hint="pull the image into a file first, and name the file",
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSettings:
    """The settings of `tokenmill run` that come from files."""

    slurm: SlurmSettings = field(default_factory=SlurmSettings)
    environment: EnvironmentSettings = field(default_factory=EnvironmentSettings)


def read_settings(
    given: Iterable[str], overrides: dict[str, Any], *, system_folder: Path = SYSTEM_FOLDER
) -> ClusterSettings:
    """Layer the files of the system, the user and the environment, then `given`, then `overrides`.

    Each of `given` is a file or `key=value`, such as `slurm.partition=long`; later ones win.
    """
    layers = [read_mapping(path) for path in _standing_files(system_folder)]
    layers += [_given_layer(item) for item in given]
    return resolve(ClusterSettings, *(_with_module_list(layer) for layer in layers), overrides)


def _standing_files(system_folder: Path) -> list[Path]:
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    folders = (system_folder, Path(home).expanduser() / "tokenmill")
    found: list[Path] = []
    for folder in folders:
        here = [folder / name for name in _NAMES if (folder / name).is_file()]
        if len(here) > 1:
            raise ConfigError(f"{here[0]} and {here[1].name} are both there: keep one of them")
        found += here
    named = os.environ.get(FILE_VARIABLE, "").split(os.pathsep)
    return found + [Path(name).expanduser() for name in named if name]


def _given_layer(item: str) -> dict[str, Any]:
    match = _ASSIGNMENT.fullmatch(item)
    if match is not None:
        return set_layer([item])
    if "=" in item and not Path(item).exists():
        name = item.partition("=")[0]  # the value is not repeated: it may be a secret
        raise ConfigError(f"--conf {name}=…: expected a file, or slurm.NAME or environment.NAME")
    return read_mapping(Path(item).expanduser())


def _with_module_list(layer: dict[str, Any]) -> dict[str, Any]:
    """Let modules be written as text: `environment.modules="gcc/12 python/3.11"`."""
    environment = layer.get("environment")
    if not isinstance(environment, dict) or not isinstance(environment.get("modules"), str):
        return layer
    modules = parse_value(environment["modules"])
    if isinstance(modules, str):
        modules = modules.replace(",", " ").split()
    return layer | {"environment": environment | {"modules": modules}}


def _check_path(path: str, what: str) -> None:
    if not path or not path.isprintable() or path.startswith("-"):
        raise ConfigError(
            f"{what} is {path!r}, expected a path without control characters, not starting with -"
        )
