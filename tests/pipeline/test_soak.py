"""Longer campaigns: `make soak`."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from faults import WATCHED, command, count_calls, needs_strace, run

import tokenmill
from tokenmill.store import verify

SETTINGS = [
    (),
    ("--val-ratio", "0.3"),
    ("--val-documents", "9"),
    ("--shuffle", "4"),
    ("--shuffle", "5", "--val-ratio", "0.1", "--max-tokens", "61234"),
    ("--max-tokens", "43210"),
    ("--workers", "5"),
]


@pytest.mark.soak
@pytest.mark.parametrize("extra", SETTINGS, ids=" ".join)
def test_killed_a_hundred_times_every_kind_of_run_ends_at_its_digest(
    extra: tuple[str, ...], corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    rng = random.Random(" ".join(extra))
    run(command(corpus, tmp_path / "whole", tiny_tokenizer, *extra)).check_returncode()
    digest = tokenmill.open_store(tmp_path / "whole").digest
    num_kills = 0
    while num_kills < 100:
        output, patience = tmp_path / "store", 0.3
        while not (output / "metadata.json").exists():
            process = subprocess.Popen(
                command(corpus, output, tiny_tokenizer, *extra),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                process.wait(timeout=rng.uniform(0.2, patience))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                num_kills += 1
                patience *= 1.1  # so that it gets done in the end
        run(command(corpus, output, tiny_tokenizer, *extra)).check_returncode()
        assert tokenmill.open_store(output).digest == digest
        assert verify(output, level="full").ok
        shutil.rmtree(output)


@pytest.mark.soak
@needs_strace
@pytest.mark.parametrize("call", WATCHED)
def test_killed_at_every_system_call_a_run_continues(
    call: str, corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    whole = tmp_path / "whole"
    total = count_calls(command(corpus, whole, tiny_tokenizer), tmp_path)[call]
    digest = tokenmill.open_store(whole).digest
    for place in range(max(total - 120, 1), total + 1):
        output = tmp_path / f"store{place}"
        inject = f"{call}:signal=KILL:when={place}"
        run(command(corpus, output, tiny_tokenizer), inject=inject)
        run(command(corpus, output, tiny_tokenizer)).check_returncode()
        assert tokenmill.open_store(output).digest == digest
        shutil.rmtree(output)
