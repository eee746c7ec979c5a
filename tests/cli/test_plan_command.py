"""`tokenmill plan` as people meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmill.cli import run

PLAN = """
seq_len: 16
batch_size: 4
num_steps: 50
sources:
  - {path: store, name: text, weight: 3}
  - {path: store, name: again, weight: 1, split: val}
amendments:
  - {at_step: 10, skip_steps: 5, note: spike}
"""


@pytest.fixture
def plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"Document {i} says hello, wörld.\n" for i in range(300)))
    command = ["tokenize", str(text), "-o", str(tmp_path / "store"), "--val-ratio", "0.3"]
    assert run([*command, "--progress", "none"]) == 0
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    capsys.readouterr()
    return path


def test_explain_tells_sources_steps_and_amendments(plan: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["plan", "explain", str(plan), "--tokens-per-second", "2e6"]) == 0
    out = capsys.readouterr().out
    for part in ("50 steps", "text", "again", "skip of 5 steps", "(spike)", "storage must deliver"):
        assert part in out


def test_explain_prints_one_json_object(plan: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["plan", "explain", str(plan), "--steps", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["plan"]["num_tokens"] == 8 * 4 * 16
    assert told["plan"]["sources"][0]["num_samples"] == 24
    assert told["bytes_per_second"] == 2 * told["tokens_per_second"]


def test_which_finds_the_documents_of_a_step_and_the_steps_of_a_document(
    plan: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["plan", "which", str(plan), "--step", "12", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["place"] for row in rows] == [0, 1, 2, 3]
    row = next(row for row in rows if row["source"] == "text")
    part = row["documents"][0]
    assert part["file"].endswith("text.txt")
    document = str(part["document"])
    command = ["plan", "which", str(plan), "--document", document, "--source", "text"]
    assert run([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["appearances"]
    assert (12, row["place"]) in [(item["step"], item["place"]) for item in found]
    assert run(command) == 0
    assert f"step 12, row {row['place']}, epoch" in capsys.readouterr().out


def test_which_shows_the_rows_of_a_rank(plan: Path, capsys: pytest.CaptureFixture[str]):
    command = ["plan", "which", str(plan), "--step", "0", "--rank", "1", "--world-size", "2"]
    assert run(command) == 0
    out = capsys.readouterr().out
    assert "row 2: " in out
    assert "row 1: " not in out
    assert "text.txt at " in out


@pytest.mark.parametrize("choice", [[], ["--step", "1", "--document", "2"]])
def test_which_needs_a_step_or_a_document(
    choice: list[str], plan: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["plan", "which", str(plan), *choice]) == 2
    assert "either --step or --document" in capsys.readouterr().err


def test_a_step_after_the_run_is_wrong_usage(plan: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["plan", "which", str(plan), "--step", "50"]) == 2
    assert "step 50 is outside [0, 50)" in capsys.readouterr().err


def test_a_mistake_in_the_file_is_named_with_its_place(
    plan: Path, capsys: pytest.CaptureFixture[str]
):
    plan.write_text(PLAN.replace("weight: 1", "wieght: 1"))
    assert run(["plan", "explain", str(plan)]) == 2
    error = capsys.readouterr().err
    assert "sources[1]: unknown setting 'wieght'; did you mean 'weight'?" in error
