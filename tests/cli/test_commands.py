"""The command line as people meet it: results, exit codes, messages."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tokenmill.cli import COMMANDS, run


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"Document {i} says hello, wörld.\n" for i in range(500)))
    return path


@pytest.fixture
def store(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert run(["tokenize", str(text), "-o", str(tmp_path / "store"), "--progress", "none"]) == 0
    capsys.readouterr()
    return tmp_path / "store"


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_command_has_help_that_ends_with_examples(
    verb: str, capsys: pytest.CaptureFixture[str]
):
    assert run([verb, "--help"]) == 0
    assert f"tokenmill {verb}" in capsys.readouterr().out.split("Examples:")[1]


def test_tokenize_prints_one_json_object(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["tokenize", str(text), "-o", str(tmp_path / "s"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["num_documents"] == 500
    assert facts["was_complete"] is False


def test_the_same_command_again_says_complete(
    text: Path, store: Path, capsys: pytest.CaptureFixture[str]
):
    before = (store / "metadata.json").read_bytes()
    assert run(["tokenize", str(text), "-o", str(store)]) == 0
    assert "complete: nothing was left to do" in capsys.readouterr().out
    assert (store / "metadata.json").read_bytes() == before


def test_other_settings_refuse_and_show_the_difference(
    text: Path, store: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["tokenize", str(text), "-o", str(store), "--shard-tokens", "5"]) == 2
    assert "shard_tokens: 100000000 then, 5 now" in capsys.readouterr().err


def test_changed_input_refuses_and_names_the_file(
    text: Path, store: Path, capsys: pytest.CaptureFixture[str]
):
    with text.open("a") as file:
        file.write("one more\n")
    assert run(["tokenize", str(text), "-o", str(store)]) == 2
    assert f"{text}: " in capsys.readouterr().err


def test_a_broken_document_stops_with_exit_4_or_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "good"}\n{"text": 5}\n{"no": "text"}\n{"text": "fine"}\n')
    output = tmp_path / "store"
    assert run(["tokenize", str(path), "-o", str(output)]) == 4
    assert f"{path}: byte 17: not-text" in capsys.readouterr().err
    skip = ["tokenize", str(path), "-o", str(output), "--on-error", "skip"]
    assert run([*skip, "--max-errors", "1"]) == 4
    assert run([*skip, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["num_documents"] == 2
    assert facts["counts"]["rejected"] == {"not-text": 1, "missing-text": 1}
    lines = [json.loads(line) for line in (output / "rejects.jsonl").read_text().splitlines()]
    assert [(line["position"], line["reason"]) for line in lines] == [
        (17, "not-text"),
        (29, "missing-text"),
    ]
    assert lines[0]["source"] == str(path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["tokenize", "no-such-file.txt", "-o", "out"],
        ["tokenize", "TEXT", "-o", "out", "--tokenizer", "./no-such-tokenizer"],
        ["tokenize", "TEXT", "-o", "out", "--val-ratio", "1.5"],
        ["tokenize", "TEXT", "-o", "out", "--set", "shard_token=5"],
        ["tokenize", "TEXT", "-o", "out", "--dtype", "uint8"],
        ["tokenize", "-o", "out"],
        ["tokenize", "TEXT", "-o", "out", "--bos", "--set", "eos=maybe"],
        ["info", "."],
        ["verify", "no-such-store"],
        ["status", "."],
        ["no-such-verb"],
    ],
)
def test_a_mistake_is_exit_2_in_words(
    arguments: list[str],
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(tmp_path)
    assert run([str(text) if a == "TEXT" else a for a in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err
    assert "Traceback" not in captured.err
    assert not (tmp_path / "out").exists()


def test_an_unknown_setting_suggests_the_nearest(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["tokenize", str(text), "-o", str(tmp_path / "s"), "--set", "shard_token=5"]
    assert run(arguments) == 2
    assert "did you mean 'shard_tokens'" in capsys.readouterr().err


def test_settings_come_from_a_file_the_environment_flags_and_set_in_this_order(
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "run.yaml").write_text("shard_tokens: 1000\nval_ratio: 0.1\nmax_tokens: 900\n")
    monkeypatch.setenv("TOKENMILL_VAL_RATIO", "0.2")
    monkeypatch.setenv("TOKENMILL_MAX_TOKENS", "800")
    arguments = ["tokenize", str(text), "-o", str(tmp_path / "s"), "--json"]
    arguments += ["--config", str(tmp_path / "run.yaml"), "--max-tokens", "700"]
    assert run([*arguments, "--set", "eos=false"]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings["shard_tokens"] == 1000
    assert settings["val_ratio"] == 0.2
    assert settings["max_tokens"] == 700
    assert settings["eos"] is False


def test_max_tokens_stops_exactly_there(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["tokenize", str(text), "-o", str(tmp_path / "s"), "--max-tokens", "777"]
    assert run([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["num_tokens"] == 777
    assert facts["splits"]["train"]["last_document_cut"] is True
    assert facts["counts"]["num_truncated_documents"] == 1


def test_a_dry_run_writes_nothing_and_estimates(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["tokenize", str(text), "-o", str(tmp_path / "s"), "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not (tmp_path / "s").exists()
    assert found["num_files"] == 1
    assert found["num_documents"] == pytest.approx(500, rel=0.1)
    assert found["num_tokens"] > 500
    assert found["fits"] is True
    assert run(["tokenize", str(text), "-o", str(tmp_path / "s"), "--dry-run"]) == 0
    assert "nothing was written" in capsys.readouterr().out


def test_info_shows_a_document_and_draws_lengths(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    svg = tmp_path / "lengths.svg"
    assert run(["info", str(store), "--document", "7", "--lengths", str(svg)]) == 0
    shown = capsys.readouterr().out
    assert "Document| 7| says| hello" in shown
    assert svg.read_text().startswith("<svg")
    assert run(["info", str(store), "--document", "7", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["document"]
    assert document["text"].startswith("Document 7 says hello, wörld.")


def test_verify_is_exit_3_and_names_the_damaged_file(
    store: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["verify", str(store), "--level", "full"]) == 0
    shard = store / "train_000000.npy"
    data = bytearray(shard.read_bytes())
    data[500] ^= 4
    shard.write_bytes(data)
    assert run(["verify", str(store), "--level", "full", "--json"]) == 3
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "train_000000.npy" in report["problems"][0]["file"]


def test_status_tells_complete_from_stopped(
    text: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["status", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "complete"
    (store / "metadata.json").unlink()
    assert run(["status", str(store)]) == 0
    assert "stopped" in capsys.readouterr().out


def test_a_second_run_on_the_same_output_is_exit_6(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run_folder = tmp_path / "s" / "_run"
    run_folder.mkdir(parents=True)
    with (run_folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(["tokenize", str(text), "-o", str(tmp_path / "s")]) == 6
    assert "in use by another run" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_at_a_safe_point_with_exit_75(number: int, tmp_path: Path):
    source = tmp_path / "long.txt"
    with source.open("w") as file:
        for i in range(400_000):
            file.write(f"line {i} of a text that takes a while, {i * 7919 % 1000003}\n" * 3)
    output = tmp_path / "store"
    arguments = [sys.executable, "-m", "tokenmill", "tokenize", str(source), "-o", str(output)]
    process = subprocess.Popen(
        [*arguments, "--workers", "1", "--unit-bytes", "1000000"],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(output.glob("_run/parts/*.json")):
        time.sleep(0.01)
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 75, errors
    assert "run the same command again" in errors
    assert "Traceback" not in errors
    assert not list(output.rglob("*.partial"))
    assert not (output / "metadata.json").exists()


def test_progress_lines_go_to_stderr(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["tokenize", str(text), "-o", str(tmp_path / "s"), "--progress", "json", "--json"]
    assert run(arguments) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)
    assert all(json.loads(line) for line in captured.err.splitlines())
