"""The README runs: its commands and its Python, on a small text of the same name."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from tokenmill.cli import COMMANDS, run

README = Path(__file__).parents[1] / "README.md"


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "corpus.txt"
    path.write_text(
        "".join(f"Document number {i} of a small corpus. " * 40 + "\n" for i in range(3000))
    )
    (tmp_path / "data").mkdir()
    lines = b"".join(b'{"text": "Line %d of a page."}\n' % i for i in range(2000))
    (tmp_path / "data" / "page.jsonl.zst").write_bytes(zstd.compress(lines))
    return path


def test_the_commands_run_in_order(text: Path):
    lines = re.findall(r"^    (tokenmill .*?)(?:  +#.*)?$", README.read_text(), flags=re.MULTILINE)
    ran = 0
    for line in lines:
        arguments = shlex.split(line)[1:]
        assert run(arguments) == 0, line
        ran += 1
    assert ran >= 4


def test_the_python_runs(text: Path):
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, names)


def test_the_readme_is_short_and_names_every_command():
    words = README.read_text()
    assert len(words.splitlines()) <= 200
    assert all(f"tokenmill {verb}" in words for verb in COMMANDS)
    assert "GO_HERE" not in words
