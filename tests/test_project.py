"""Facts about the files around the code: versions, pins and make targets that belong together."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def normalized(requirement: str) -> str:
    """Return the bare name of a requirement, in the spelling that package indexes compare.

    >>> normalized("backports.zstd>=1.2; python_version < '3.14'")
    'backports-zstd'
    """
    name = re.split(r"[\[<>=!~;\s]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {normalized(name): version for name, version in pairs}


def test_every_direct_dependency_is_pinned_for_the_tests():
    extras = project()["optional-dependencies"].values()
    wanted = [*project()["dependencies"], *(item for extra in extras for item in extra)]
    missing = {normalized(item) for item in wanted} - set(pinned()) - {"tokenmill"}
    assert not missing


def test_the_torch_of_the_tests_brings_no_gigabytes_of_libraries():
    assert pinned()["torch"] == "2.13.0"


def test_the_pins_fit_what_the_project_asks_for():
    exact = [item for item in project()["dependencies"] if "==" in item]
    for item in exact:
        name, version = re.split(r"==", item)
        assert pinned()[normalized(name)] == version.strip()


def test_make_alone_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.M)
    assert phony
    for target in phony[1].split():
        assert re.search(rf"^  {target} ", listed, re.M), target


def test_continuous_integration_runs_a_script_that_can_run():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text()


@pytest.mark.parametrize("name", ["demo", "test", "check", "bench", "soak", "clean"])
def test_the_promised_targets_exist(name: str):
    result = subprocess.run(["make", "-n", name], cwd=ROOT, capture_output=True, check=False)
    assert result.returncode == 0
