"""The pages about what comes before and after tokenizing: their examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = ["describe", "fetch-and-split", "consolidate", "sample", "hub", "catalog"]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_the_page_run(page: str, tmp_path: Path):
    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"```(sh|python)\n(.*?)```", text, re.DOTALL)
    assert blocks
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for kind, block in blocks:
        program = ["bash", "-euo", "pipefail", "-c"] if kind == "sh" else [sys.executable, "-c"]
        done = subprocess.run(
            [*program, block],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
