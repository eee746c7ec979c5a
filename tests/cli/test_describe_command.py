"""`tokenmill describe`: every way through the questions ends in a valid file, or in none."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tokenmill.cli import run
from tokenmill.config import read_mapping
from tokenmill.sources import read_description

QUESTIONS = [
    "Format of the description",
    "Write it to",
    "Name",
    "Path of the data",
    "What it is",
    "Date of the download",
    "Source of the download",
    "Content",
    "Field of the content",
    "Corpus 1",
    "Corpus 2",
    "Corpora are",
    "Folder in which theirs are",
    "Is it tokenized",
    "Tokenizer",
    "Names of the files begin with",
    "and end with",
    "Type of the ids",
]
BEFORE_CORPORA = ["", "", "", "", "a text", "2024-02-29", "https://example.org", "", "body"]


def answer(monkeypatch: pytest.MonkeyPatch, folder: Path, lines: list[str], *flags: str) -> int:
    """Run the command with answers; every line is one, and then the input ends."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return run(["describe", str(folder), "--ask", *flags])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "wiki"
    for name in ("en", "de", "fr"):
        (folder / "dumps" / name).mkdir(parents=True)
        line = json.dumps({"body": f"text in {name}"})
        (folder / "dumps" / name / "a.jsonl").write_text(f"{line}\n")
    return folder


WAYS = list(
    product(
        ["json", "yaml"],
        [[], ["en"], ["en", "de", "fr"]],
        ["data_dirs", "configs"],
        [False, True],
    )
)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_path_through_the_questions_ends_in_a_valid_file(
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    way: tuple[str, list[str], str, bool],
):
    kind, corpora, strategy, tokenized = way
    lines = [kind, *BEFORE_CORPORA[1:], *corpora, ""]
    if len(corpora) > 1:
        lines += [strategy, *(["dumps"] if strategy == "data_dirs" else [])]
    lines += ["y", "my-tokenizer", "part", "bin", "uint32"] if tokenized else ["n"]
    assert answer(monkeypatch, data, lines) == 0
    path = data / f"metadata.{kind}"
    mapping = read_mapping(path)
    expected: dict[str, Any] = {
        "name": "wiki",
        "description": "a text",
        "date_downloaded": "2024-02-29",
        "download_source": "https://example.org",
        "data_content": "text",
        "content_field": "body",
        "corpuses": corpora,
        "corpus_separation_strategy": strategy if len(corpora) > 1 else None,
        "corpus_data_dir_parent": "dumps" if len(corpora) > 1 and strategy == "data_dirs" else None,
        "tokenized_info": {
            "tokenizer": "my-tokenizer",
            "file_prefix": "part",
            "file_extension": "bin",
            "dtype": "uint32",
        }
        if tokenized
        else None,
    }
    assert mapping == expected
    assert read_description(path).dataset_path == str(data)
    assert sys.stdin.read() == "", "a question was not asked"
    asked = capsys.readouterr().err
    places = [asked.find(question) for question in QUESTIONS if question in asked]
    assert places == sorted(places), "the questions came in another order"


def test_questions_that_do_not_matter_are_not_asked(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert answer(monkeypatch, data, [*BEFORE_CORPORA, "en", "", "n"]) == 0
    asked = capsys.readouterr().err
    assert "Corpora are" not in asked
    assert "Folder in which theirs are" not in asked
    assert "Tokenizer" not in asked


def test_a_wrong_answer_is_asked_again(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    lines = ["xml", "json", "", "", "", "", "yesterday", "2023-13-01", "2023-12-01", "", "books"]
    lines += ["text", "", "en", "en", "../etc", "de", "", "folders", "configs", "maybe", "n"]
    assert answer(monkeypatch, data, lines) == 0
    mapping = read_mapping(data / "metadata.json")
    assert mapping["date_downloaded"] == "2023-12-01"
    assert mapping["corpuses"] == ["en", "de"]
    assert mapping["corpus_separation_strategy"] == "configs"
    told = capsys.readouterr().err
    assert "'yesterday' is not a date" in told
    assert "'en' is in the list already" in told
    assert "'../etc' is not a name for a corpus" in told


def test_the_end_of_input_leaves_nothing(data: Path, monkeypatch: pytest.MonkeyPatch):
    lines = ["yaml", *BEFORE_CORPORA[1:], "en", "de", "", "data_dirs", "dumps", "y", "gpt2", "", ""]
    for number in range(len(lines)):
        assert answer(monkeypatch, data, lines[:number]) == 75
        assert sorted(p.name for p in data.iterdir()) == ["dumps"]
    assert answer(monkeypatch, data, [*lines, "uint16"]) == 0


@pytest.mark.parametrize("num_answers", [0, 3, 9])
def test_ctrl_c_on_a_terminal_leaves_nothing(data: Path, num_answers: int):
    """A real terminal: the command asks without being told to."""
    terminal, side = pty.openpty()
    program = [sys.executable, "-m", "tokenmill", "describe", str(data)]
    process = subprocess.Popen(
        program, stdin=side, stdout=side, stderr=side, close_fds=True, start_new_session=True
    )
    os.close(side)
    shown = b""
    try:
        for question in QUESTIONS[: num_answers + 1]:
            deadline = time.monotonic() + 30
            while question.encode() not in shown and time.monotonic() < deadline:
                shown += os.read(terminal, 4096)
            assert question.encode() in shown
            if question != QUESTIONS[num_answers]:
                os.write(terminal, b"\n")
        assert interrupt(process) == 75
    finally:
        process.kill()
        os.close(terminal)
    assert sorted(path.name for path in data.iterdir()) == ["dumps"]


def interrupt(process: subprocess.Popen[bytes]) -> int:
    """Send the signal of Ctrl-C until it is heard: right before a read, Python does not look."""
    for _ in range(100):
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            continue
    return process.wait(timeout=1)


def test_flags_answer_everything(data: Path, capsys: pytest.CaptureFixture[str]):
    flags = ["--format", "yaml", "--name", "w", "--dataset-path", "dumps", "--description", "d"]
    flags += ["--date-downloaded", "2024-01-31", "--download-source", "s", "--data-content", "text"]
    flags += ["--content-field", "body", "--corpus", "en", "--corpus", "de"]
    flags += ["--separation", "data_dirs", "--corpus-data-dir-parent", "x", "--tokenizer", "t"]
    flags += ["--file-prefix", "p", "--file-extension", "e", "--dtype", "uint16", "--json"]
    assert run(["describe", str(data), "--no-ask", *flags]) == 0
    told = json.loads(capsys.readouterr().out)
    mapping = read_mapping(data / "metadata.yaml")
    assert told == {"path": str(data / "metadata.yaml"), **mapping}
    assert mapping["tokenized_info"] == {
        "tokenizer": "t",
        "file_prefix": "p",
        "file_extension": "e",
        "dtype": "uint16",
    }
    assert read_description(data / "metadata.yaml").dataset_path == str(data / "dumps")


def test_without_a_terminal_nothing_is_asked(data: Path):
    program = [sys.executable, "-m", "tokenmill", "describe", str(data), "--content-field", "body"]
    done = subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert b"next: tokenmill tokenize" in done.stdout
    mapping = read_mapping(data / "metadata.json")
    assert mapping["name"] == "wiki"
    assert mapping["date_downloaded"] == ""


@pytest.mark.parametrize(
    "flags",
    [
        ["--corpus", "en", "--corpus", "en", "--separation", "configs"],
        ["--corpus", "/etc"],
        ["--corpus", "a/../../b"],
        ["--date-downloaded", "31.1.2024"],
        ["--output", "metadata.toml"],
        ["--format", "json", "--output", "metadata.yaml"],
        ["--corpus-data-dir-parent", "x"],
        ["--corpus", "a", "--separation", "data_dirs", "--corpus-data-dir-parent", "../x"],
        ["--tokenized"],
        ["--name", " "],
        ["--content-field", "a..b"],
    ],
)
def test_flags_that_make_no_sense_are_exit_2_and_leave_nothing(
    data: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
):
    monkeypatch.chdir(data)
    assert run(["describe", ".", "--no-ask", *flags]) == 2
    assert sorted(path.name for path in data.iterdir()) == ["dumps"]


def test_a_description_that_is_there_is_kept_before_anything_is_asked(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (data / "metadata.json").write_text("{}")
    assert answer(monkeypatch, data, ["", ""]) == 2
    assert "is there already" in capsys.readouterr().err
    assert (data / "metadata.json").read_text() == "{}"
    assert run(["describe", str(data), "--no-ask", "--replace"]) == 0
    assert read_mapping(data / "metadata.json")["name"] == "wiki"


def test_a_described_folder_is_a_source_by_itself(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    lines = [*BEFORE_CORPORA, "en", "de", "", "data_dirs", "dumps", "n"]
    assert answer(monkeypatch, data, lines) == 0
    capsys.readouterr()
    for place, count in ((str(data), 2), (f"{data}:de", 1)):
        output = tmp_path / f"store{count}"
        assert run(["tokenize", place, "-o", str(output), "--progress", "none", "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["num_documents"] == count
    assert run(["info", str(tmp_path / "store1"), "--document", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["document"]["text"].startswith("text in de")
