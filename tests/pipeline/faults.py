"""Run the command line in a process that can be killed or be told lies by the system."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

STRACE = shutil.which("strace")

needs_strace = pytest.mark.skipif(
    STRACE is None, reason="STRACE IS MISSING: faults are not tested (apt-get install strace)"
)

WATCHED = ("write", "fsync", "link", "rename", "unlink", "openat", "mkdir", "close")
"""The system calls by which a run changes the disk, and `openat` and `close` around them."""


def command(corpus: Path, output: Path, tokenizer: Path, *extra: str) -> list[str]:
    """A run with many small units and shards: many places to stop at."""
    return [
        *(sys.executable, "-m", "tokenmill", "tokenize", str(corpus), "-o", str(output)),
        *("--tokenizer", str(tokenizer), "--unit-bytes", "20000", "--shard-tokens", "20000"),
        *("--progress", "none", "--workers", "2", *extra),
    ]


def run(arguments: list[str], *, inject: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command, under strace if a fault is to be injected."""
    if inject is not None:
        assert STRACE is not None
        calls = inject.partition(":")[0]
        tracing = ["-f", "-qq", "-o", os.devnull, "-e", f"trace={calls}", "-e", f"inject={inject}"]
        arguments = [STRACE, *tracing, *arguments]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)


def count_calls(arguments: list[str], folder: Path) -> Counter[str]:
    """Run a command undisturbed; count the calls of the thread that makes most of each.

    strace counts the calls of each thread by itself, so this is as far as `when` can reach.
    """
    assert STRACE is not None
    log = folder / "strace.log"
    calls = ",".join(WATCHED)
    tracing = [STRACE, "-f", "-qq", "-o", str(log), "-e", f"trace={calls}"]
    subprocess.run([*tracing, *arguments], capture_output=True, timeout=120, check=True)
    made = re.findall(r"^(\d+) +(\w+)\(", log.read_text(errors="replace"), flags=re.MULTILINE)
    most: Counter[str] = Counter()
    for (_, name), number in Counter(made).items():
        most[name] = max(most[name], number)
    return most
