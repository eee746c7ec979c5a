"""`tokenmill check` as people meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmill.cli import run

pytest.importorskip("torch")

NAMES = [
    "files", "UTF-8", "documents", "round trip", "dataset", "loader", "throughput", "preprocessing",
]  # fmt: skip
FAST = ["--context-length", "16", "--seconds", "0.05", "--num-workers", "0"]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "train.txt", tmp_path / "val.txt"]
    for path in paths:
        path.write_text("".join(f"Document {i} says hëllo.\n" for i in range(100)))
    return [str(path) for path in paths]


def outcomes(text: str) -> dict[str, bool]:
    lines = [line.partition(":")[0].partition(" ") for line in text.splitlines()]
    return {name: word == "PASS" for word, _, name in lines}


def test_good_files_pass_every_check(files: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(["check", *files, *FAST[:-2], "--num-workers", "2"]) == 0
    assert outcomes(capsys.readouterr().out) == dict.fromkeys(NAMES, True)


def test_a_slow_loader_fails(files: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(["check", *files, *FAST, "--min-tokens-per-second", "1e15", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["passed"]
    assert {check["name"]: check["passed"] for check in report["checks"]} == {
        **dict.fromkeys(NAMES, True),
        "throughput": False,
    }


def test_bytes_that_are_no_text_are_found(files: list[str], capsys: pytest.CaptureFixture[str]):
    with Path(files[1]).open("ab") as file:
        file.write(b"caf\xe9\n")
    assert run(["check", *files, *FAST]) == 4
    out = capsys.readouterr().out
    assert [name for name, passed in outcomes(out).items() if not passed] == ["UTF-8"]
    assert "val.txt" in out


def test_missing_and_empty_files_fail(files: list[str], capsys: pytest.CaptureFixture[str]):
    assert run(["check", files[0], files[1] + ".not", *FAST]) != 0
    assert not outcomes(capsys.readouterr().out)["files"]
    Path(files[1]).write_text("\n")
    assert run(["check", *files, *FAST]) == 2
    found = outcomes(capsys.readouterr().out)
    assert found["files"]
    assert not found["documents"]
