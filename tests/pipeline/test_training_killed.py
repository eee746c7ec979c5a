"""Promise 3 for training: killed anywhere, the same command continues and writes the same files."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faults import count_calls, needs_strace, run

FILES = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer.tiktoken", "bytes_vocab.json")


def command(source: Path, output: Path, *, workers: int = 2) -> list[str]:
    """With one worker there is one process; of two, one that dies would be replaced."""
    return [
        *(sys.executable, "-m", "tokenmill", "tokenizer", "train", str(source), "-o", str(output)),
        *("--vocab-size", "700", "--unit-bytes", "30000", "--workers", str(workers)),
        *("--held-out", "0.05", "--progress", "none"),
    ]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(4)
    words = ["".join(rng.choices("etaoinsü", k=rng.randint(1, 9))) for _ in range(2_000)]
    path = tmp_path_factory.mktemp("source") / "text.txt"
    path.write_text("".join(" ".join(rng.choices(words, k=25)) + "\n" for _ in range(1_500)))
    return path


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("whole") / "tokenizer"
    run(command(source, output)).check_returncode()
    return contents(output)


def contents(output: Path) -> dict[str, bytes]:
    report = json.loads((output / "report.json").read_text())
    numbers = {name: report[name] for name in ("num_documents", "num_words", "held_out")}
    found = {name: (output / name).read_bytes() for name in FILES}
    assert not [path for path in output.rglob("*") if path.name.endswith(".partial")]
    return {**found, "report": json.dumps(numbers).encode()}


@needs_strace
def test_training_killed_at_a_system_call_continues(
    source: Path, tmp_path: Path, whole: dict[str, bytes]
):
    total = count_calls(command(source, tmp_path / "count", workers=1), tmp_path)
    killed = 0
    for call in ("rename", "write"):
        output = tmp_path / call
        for share in (3, 2):  # a third of the way, then half of what is left
            inject = f"{call}:signal=KILL:when={max(total[call] // share, 1)}"
            done = run(command(source, output, workers=1), inject=inject)
            killed += done.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}
        run(command(source, output)).check_returncode()
        assert contents(output) == whole
    assert killed == 4


@pytest.mark.slow
def test_training_killed_at_random_times_continues(
    source: Path, tmp_path: Path, whole: dict[str, bytes]
):
    rng = random.Random(3)
    started = time.monotonic()
    run(command(source, tmp_path / "whole")).check_returncode()
    seconds = time.monotonic() - started
    for attempt in range(6):
        output, kills = tmp_path / f"tokenizer{attempt}", 0
        while not (output / "report.json").exists():
            process = subprocess.Popen(
                command(source, output), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                # later kills come later, so that the run gets done in the end
                process.wait(timeout=rng.uniform(0.4, 1.0 + 0.3 * kills) * seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
        run(command(source, output)).check_returncode()
        assert contents(output) == whole
