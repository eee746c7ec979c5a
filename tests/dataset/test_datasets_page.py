"""The page on datasets and the examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tokenmill

pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent.parent


def test_the_examples_of_the_page_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/datasets.md").read_text(), re.DOTALL)
    assert len(blocks) >= 7
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "docs/datasets.md", "exec"), names)


@pytest.mark.parametrize("example", ["torch_loop.py", "torchtitan_loader.py"])
def test_examples_run(example: str, tmp_path: Path):
    (tmp_path / "a.txt").write_text("".join(f"line {i} of some text\n" for i in range(2000)))
    tokenmill.tokenize(tmp_path / "a.txt", tmp_path / "store")
    command = [sys.executable, str(ROOT / "examples" / example), "store"]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert result.returncode == 0, result.stderr
    assert ("step 9" in result.stdout) or ("the same: True" in result.stdout)
