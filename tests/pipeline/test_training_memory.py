"""Training stays within `memory_mib`, all its processes together, whatever the text."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tokenmill.pipeline.train_memory import MIN_MEMORY_MIB, MemoryPlan

PAGE_BYTES = resource.getpagesize()
MEBIBYTE = 1 << 20


def write_new_words(path: Path, num_bytes: int) -> None:
    """Write random letters: nearly every word is a new one, the worst that can come."""
    rng = np.random.default_rng(1)
    with path.open("wb") as file:
        while file.tell() < num_bytes:
            letters = rng.integers(97, 123, size=10_000_000, dtype=np.uint8)
            ends = np.cumsum(rng.integers(4, 13, size=len(letters) // 8))
            ends = ends[ends < len(letters)]
            letters[ends] = ord(" ")
            letters[ends[::50]] = ord("\n")
            file.write(letters.tobytes())


def tree_bytes(root: int) -> int:
    """Return the resident bytes of a process and its descendants."""
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting.extend(map(int, (task / "children").read_text().split()))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    return total


def train(source: Path, output: Path, **options: object) -> int:
    """Train in processes of their own; return the highest sum of their memory."""
    command = [sys.executable, "-m", "tokenmill", "tokenizer", "train", str(source)]
    command += ["-o", str(output), "--vocab-size", "1000", "--progress", "none"]
    for name, value in options.items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak = 0
    while process.poll() is None:
        peak = max(peak, tree_bytes(process.pid))
        time.sleep(0.01)
    assert process.returncode == 0
    return peak


def test_memory_stays_within_the_bound(tmp_path: Path):
    source = tmp_path / "text.txt"
    write_new_words(source, 40_000_000)
    memory_mib = MIN_MEMORY_MIB + 64
    peak = train(source, tmp_path / "out", memory_mib=memory_mib, workers=2)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["num_words_left_out"] > 1_000_000  # there was more than could be held
    assert peak < memory_mib * MEBIBYTE


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"workers": 2},
        {"workers": 5, "memory_mib": 1024},
        {"workers": 2, "pattern": r"\w+|\W"},  # no compiled counter
        {"workers": 2, "unit_bytes": 1 << 30},
    ],
    ids=str,
)
def test_memory_stays_within_the_bound_on_a_large_text(how: dict[str, object], tmp_path: Path):
    source = tmp_path / "text.txt"
    write_new_words(source, 400_000_000)
    options = {"memory_mib": 512, **how}
    peak = train(source, tmp_path / "out", **options)
    assert peak < int(str(options["memory_mib"])) * MEBIBYTE


@pytest.mark.parametrize("threads_per_process", [1, 2])
@pytest.mark.parametrize("wanted", [1, 2, 7, 100])
@pytest.mark.parametrize("memory_mib", [MIN_MEMORY_MIB, 512, 4096, 1 << 20])
def test_workers_get_as_much_as_there_is(memory_mib: int, wanted: int, threads_per_process: int):
    plan = MemoryPlan(
        memory_mib=memory_mib, wanted_workers=wanted, threads_per_process=threads_per_process
    )
    assert 1 <= plan.workers <= wanted
    assert plan.processes * plan.threads >= plan.workers
    assert plan.workers * plan.sum_bytes < memory_mib * MEBIBYTE
    assert plan.word_bytes < memory_mib * MEBIBYTE
