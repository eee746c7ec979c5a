"""`tokenmill bench` as people meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmill.cli import run


@pytest.fixture
def store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"Document {i} says hello.\n" for i in range(300)))
    command = ["tokenize", str(text), "-o", str(tmp_path / "store"), "--progress", "none"]
    assert run(command) == 0
    capsys.readouterr()
    return tmp_path / "store"


SHORT = ["--seq-len", "16", "--batch-size", "2", "--seconds", "0.01"]


def test_every_packing_is_measured_with_and_without_masks(
    store: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["bench", "loader", str(store), *SHORT, "--threads", "0", "--threads", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [tuple(line.split()[:2]) for line in lines[1:]]
    packings = ("concat", "best-fit", "pad", "sliding")
    assert found == [(packing, threads) for packing in packings for threads in ("0", "2")]
    assert all(len(line.split()) == 4 for line in lines[1:])


def test_one_json_object_is_printed(store: Path, capsys: pytest.CaptureFixture[str]):
    options = [*SHORT, "--packing", "concat", "--threads", "1", "--json"]
    assert run(["bench", "loader", str(store), *options]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [(result["packing"], result["with_masks"]) for result in results] == [
        ("concat", False),
        ("concat", True),
    ]
    assert all(result["tokens_per_second"] > 0 for result in results)
