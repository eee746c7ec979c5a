"""What the benchmarks share: timing, peak memory, facts about the machine, JSON lines."""

from __future__ import annotations

import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).parent / "data"
TOKENMILL = str(Path(sys.executable).with_name("tokenmill"))
"""The command as a user types it, from the environment that runs the benchmark."""
_PAGE_BYTES = resource.getpagesize()


def best_seconds(
    function: Callable[[], object],
    *,
    repeats: int = 5,
    timer: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the fastest of `repeats` runs after one warm-up: noise only ever adds time."""
    function()
    return min(timeit.repeat(function, number=1, repeat=repeats, timer=timer))


@dataclass(frozen=True, slots=True)
class Finished:
    """One command that ran to its end: what it took and what it printed."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    stdout: str


def run(
    command: Sequence[str | Path],
    *,
    sample_memory: bool = False,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """Run a command, timed from its start to its end; one that fails ends the benchmark.

    `peak_bytes` is the largest sum of resident memory over the command and its descendants, looked
    at every 20 ms; it is 0 unless asked for, since looking takes time from the command.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        words = [str(word) for word in command]
        process = subprocess.Popen(words, stdout=stdout, stderr=stderr, env=env)
        peak_bytes = 0
        while sample_memory and process.poll() is None:
            peak_bytes = max(peak_bytes, _tree_bytes(process.pid))
            time.sleep(0.02)
        process.wait()
        seconds = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if process.returncode:
            stderr.seek(0)
            complaint = stderr.read().decode(errors="replace")[-2000:]
            sys.exit(f"exit code {process.returncode} from: {shlex.join(words)}\n{complaint}")
        cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        stdout.seek(0)
        return Finished(seconds, cpu_seconds, peak_bytes, stdout.read().decode())


def _tree_bytes(root: int) -> int:
    """Return the resident bytes of a process and all its descendants."""
    total = 0
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting.extend(map(int, (task / "children").read_text().split()))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
    return total


def warm(*paths: Path) -> None:
    """Read files once, so that all contestants find them in the page cache."""
    for path in paths:
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


@cache
def environment() -> dict[str, Any]:
    """Return what a reader needs to judge a number: commit, hardware, versions."""
    libraries = ("fastokens", "tokenizers", "numpy", "pyarrow", "msgspec")
    return {
        "commit": _git("rev-parse", "--short=12", "HEAD") + ("+" if _git("diff", "HEAD") else ""),
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in libraries},
    }


def report(benchmark: str, **values: Any) -> dict[str, Any]:
    """Print one result as one JSON line, rounded to what a measurement is worth, and return it."""
    rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in values.items()}
    facts = {**environment(), "load": round(os.getloadavg()[0], 2)}
    print(json.dumps({"benchmark": benchmark, **rounded, "environment": facts}), flush=True)
    return rounded


def print_table(rows: Iterable[Sequence[object]]) -> None:
    """Print rows in columns, for people; on stderr, since stdout carries the JSON lines."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip(), file=sys.stderr)


def corpus_facts(folder: Path) -> dict[str, int]:
    """Return the counts of the corpus in `folder`; without one, say how to make it."""
    path = folder / "corpus.json"
    if not path.exists():
        sys.exit(f"{path} is missing: run `python benchmarks/corpus.py -o {folder}`")
    return json.loads(path.read_text())


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
