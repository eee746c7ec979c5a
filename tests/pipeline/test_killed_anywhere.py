"""Promise 3: killed anywhere, the same command continues and ends at the same digest."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from faults import WATCHED, command, count_calls, needs_strace, run

import tokenmill
from tokenmill.store import verify

KILLS_PER_CALL = 8
"""Times 8 system calls: 64 places in a run."""


@pytest.fixture(scope="module")
def digest(corpus: Path, tiny_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    output = tmp_path_factory.mktemp("whole") / "store"
    run(command(corpus, output, tiny_tokenizer)).check_returncode()
    return tokenmill.open_store(output).digest


def is_store(output: Path) -> bool:
    return (output / "metadata.json").exists()


@needs_strace
@pytest.mark.parametrize("call", WATCHED)
def test_killed_at_a_system_call_a_run_continues(
    call: str, corpus: Path, tiny_tokenizer: Path, tmp_path: Path, digest: str
):
    total = count_calls(command(corpus, tmp_path / "count", tiny_tokenizer), tmp_path)[call]
    first = min(total, 300 if call in {"openat", "close"} else 1)  # earlier ones load Python
    places = [first + (total - first) * i // KILLS_PER_CALL for i in range(KILLS_PER_CALL)]
    killed = 0
    for number in range(0, KILLS_PER_CALL, 2):  # killed twice, then left alone
        output = tmp_path / f"store{number}"
        for place in places[number : number + 2]:
            inject = f"{call}:signal=KILL:when={place}"
            done = run(command(corpus, output, tiny_tokenizer), inject=inject)
            killed += done.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}
        run(command(corpus, output, tiny_tokenizer)).check_returncode()
        _check(output, digest)
    assert killed >= KILLS_PER_CALL // 2


def test_killed_at_random_times_a_run_continues(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path, digest: str
):
    rng = random.Random(3)
    started = time.monotonic()
    run(command(corpus, tmp_path / "whole", tiny_tokenizer)).check_returncode()
    seconds = time.monotonic() - started
    for attempt in range(6):
        output, kills = tmp_path / f"store{attempt}", 0
        while not is_store(output):
            process = subprocess.Popen(
                command(corpus, output, tiny_tokenizer),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                # later kills come later, so that the run gets done in the end
                process.wait(timeout=rng.uniform(0.4, 1.0 + 0.3 * kills) * seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills += 1
        run(command(corpus, output, tiny_tokenizer)).check_returncode()
        _check(output, digest)


def test_a_shuffled_run_with_a_split_and_a_limit_continues_too(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    extra = ("--shuffle", "9", "--val-ratio", "0.2", "--max-tokens", "50001")
    run(command(corpus, tmp_path / "whole", tiny_tokenizer, *extra)).check_returncode()
    expected = tokenmill.open_store(tmp_path / "whole").digest
    output, wait = tmp_path / "store", 0.25
    while not is_store(output):
        process = subprocess.Popen(command(corpus, output, tiny_tokenizer, *extra))
        try:
            process.wait(timeout=wait)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        wait += 0.05
    _check(output, expected)


def _check(output: Path, digest: str) -> None:
    assert tokenmill.open_store(output).digest == digest
    assert verify(output, level="full").problems == ()
    names = {path.name for path in output.rglob("*")}
    assert not [name for name in names if name.endswith((".partial", ".part"))]
