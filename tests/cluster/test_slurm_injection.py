"""Hostile values in every field of `tokenmill run`, on a real Slurm: no code of theirs runs.

Each value would make a file called canary, in the folder of the job, if a shell or sbatch read it
as more than a value. It is either refused on the login node, or comes through as it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm_jobs import SMALL

import tokenmill
from tokenmill.cli import run

if TYPE_CHECKING:
    from rigs.slurm import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("slurm")]

HOSTILE = [
    "$(touch canary)",
    "`touch canary`",
    ";touch canary;",
    "a' ;touch canary; '",
    'a" ;touch canary; "',
    "a\ntouch canary\n",
    "a\n#SBATCH --output=canary\n",
    "a\r\ntouch canary\r\n",
    "--wrap=touch canary",
    "-o canary",
    "a #SBATCH --output=canary",
    "a|touch canary&touch canary",
    "%j $SLURM_JOB_ID $'\\n'touch canary",
]
FLAGS = [
    *("--mem", "--time", "--constraint", "--partition", "--account", "--qos", "--job-name"),
    *("--array", "--nodes", "--cpus", "--gpus-per-node", "--max-restarts"),
    *("--output", "--error", "--submit-script"),
]
KEYS = [
    *("slurm.partition", "slurm.account", "slurm.qos", "slurm.slurm_bin_dir"),
    *("environment.modules", "environment.conda_env", "environment.venv"),
    "environment.singularity_image",
]


def enter(slurm: Slurm, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process a shell on the cluster."""
    monkeypatch.chdir(folder)
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "none"))


def canaries(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in folder.rglob("canary*")]


def test_hostile_values_in_every_field_run_no_code(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Submit, for each field and value, what the login node lets through."""
    enter(slurm, tmp_path, monkeypatch)
    num_submitted = 0
    for value in HOSTILE:
        fields = [[flag, value] for flag in FLAGS]
        fields += [["--conf", f"{key}={value}"] for key in KEYS]
        for number, field in enumerate(fields):
            script = [] if field[0] == "--submit-script" else ["--submit-script", f"{number}.sh"]
            code = run(["run", *SMALL, *script, *field, "verify", "nowhere"])
            assert code in {0, 2}, (field, code)
            num_submitted += code == 0
    assert num_submitted > len(HOSTILE)
    slurm.wait(seconds=200)
    assert not canaries(tmp_path)


def test_odd_paths_come_through_and_run_no_code(
    slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    enter(slurm, tmp_path, monkeypatch)
    folders: dict[str, Path] = {}
    for number, value in enumerate(HOSTILE):
        # Slurm takes neither line ends nor \ in the path of a log, and this is its folder.
        odd = value.isprintable() and "\\" not in value
        folder = tmp_path / (f"{number} {value}" if odd else str(number))
        folders[value] = folder
        folder.mkdir()
        (folder / value).write_text("A document.\nAnother one.\n")
        log = f"log of {value}".replace("%", "").replace("\\", "")  # these mean something to it
        flags = ["-o", log if log.isprintable() else "log", "--submit-script", f"{value}.sh"]
        monkeypatch.chdir(folder)
        command = ["tokenize", f"./{value}", "-o", f"store {value}", "--format", "text"]
        assert run(["run", *SMALL, *flags, *command]) == 0
    slurm.wait(seconds=200)
    for value, folder in folders.items():
        assert tokenmill.open_store(folder / f"store {value}").num_documents == 2
        logs = [path for path in folder.iterdir() if path.name.startswith("log")]
        assert ["digest" in log.read_text() for log in logs] == [True]
    assert not [path for path in tmp_path.rglob("*") if path.name == "canary"]
