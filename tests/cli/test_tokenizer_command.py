"""`tokenmill tokenizer` as people meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmill.cli import run
from tokenmill.tokenizer import load_tokenizer


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"Document {i} says hello, wörld.\n" for i in range(400)))
    return path


@pytest.fixture
def trained(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    output = tmp_path / "tok"
    command = ["tokenizer", "train", str(text), "-o", str(output), "--vocab-size", "320"]
    assert run([*command, "--progress", "none", "--workers", "1"]) == 0
    assert "320 ids (63 merges) from 400 documents" in capsys.readouterr().out
    return output


def test_training_again_says_complete(
    text: Path, trained: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["tokenizer", "train", str(text), "-o", str(trained), "--vocab-size", "320"]) == 0
    assert "complete: nothing was left to do" in capsys.readouterr().out


def test_training_shows_merges_and_prints_json(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    command = ["tokenizer", "train", str(text), "-o", str(tmp_path / "t"), "--vocab-size", "300"]
    special = ["--special", "<a>", "--special", "<b>", "--special-first"]
    assert run([*command, *special, "--json", "-v", "--progress", "none"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["special_tokens"] == {"<a>": 0, "<b>": 1}
    assert "merge 1: " in shown.err


def test_convert_goes_there_and_back(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    assert run(["tokenizer", "convert", str(trained), "-o", str(out), "--to", "tiktoken"]) == 0
    assert capsys.readouterr().out.split() == [str(out / "tokenizer.tiktoken")]
    said = ["--pattern", "gpt2", "--special", "<|endoftext|>=256"]
    back = ["tokenizer", "convert", str(out / "tokenizer.tiktoken"), *said, "-o", str(out)]
    assert run([*back, "--to", "tokenizer.json"]) == 0
    assert load_tokenizer(out / "tokenizer.json").fingerprint == load_tokenizer(trained).fingerprint
    assert run([*back[:5], "--special", "nonsense", "-o", str(out)]) == 2


def test_ratio_compares_tokenizers_on_the_same_documents(
    text: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    command = ["tokenizer", "ratio", str(text), "--tokenizer", str(trained), "--tokenizer", "gpt2"]
    assert run([*command, "--plot", str(tmp_path / "r.svg")]) == 0
    first = capsys.readouterr().out
    assert run(command) == 0
    assert capsys.readouterr().out == first
    assert "over 10 documents" in first
    assert (tmp_path / "r.svg").read_text().startswith("<svg")
    assert run([*command, "--all", "--json"]) == 0
    own, gpt2 = json.loads(capsys.readouterr().out)["ratios"]
    assert own["num_documents"] == gpt2["num_documents"] == 400
    assert own["num_bytes"] == gpt2["num_bytes"]
    ids, _ = load_tokenizer("gpt2").encode_batch(text.read_text().splitlines())
    assert gpt2["num_tokens"] == len(ids)


def test_show_prints_tokens_with_ids_and_bytes(capsys: pytest.CaptureFixture[str]):
    assert run(["tokenizer", "show", "gpt2", "Hello wörld"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Hello| w|ör|ld\n15496  'Hello'")
    assert "48 65 6c 6c 6f" in shown
    assert run(["tokenizer", "show", "gpt2", "<|endoftext|>", "--allow-special", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"][0]["id"] == 50256


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "TEXT", "-o", "out", "--vocab-size", "100"],
        ["train", "TEXT", "-o", "out", "--special", "<a>", "--special", "<a>"],
        ["train", "no-such-file", "-o", "out"],
        ["convert", "./no-such-tokenizer", "-o", "out"],
        ["ratio", "TEXT", "--tokenizer", "gpt2", "--docs", "0"],
    ],
)
def test_a_mistake_is_exit_2(arguments: list[str], text: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(text.parent)
    assert run(["tokenizer", *(str(text) if a == "TEXT" else a for a in arguments)]) == 2
