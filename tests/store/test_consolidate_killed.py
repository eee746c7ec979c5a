"""Kill a consolidation at its system calls: the same command again ends at the same files."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tokenmill.store import Metadata, open_store, verify

STRACE = shutil.which("strace")
MEGABYTE = 1 << 20

PROGRAM = """
import sys
from tokenmill.store import ConsolidateSettings, consolidate, consolidation
consolidation.STRETCH_BYTES = 200
consolidation.PIECE_BYTES = 100
settings = ConsolidateSettings(seq_len=4, workers=1, delete_shards=True)
consolidate(sys.argv[1], settings)
"""
MEMORY_PROGRAM = """
import re, sys
from tokenmill.store import ConsolidateSettings, consolidate
made = consolidate(sys.argv[1], ConsolidateSettings(seq_len=2048, skip_validation=True))
status = open("/proc/self/status").read()  # getrusage would count the process that started this one
print(made.splits[0].num_tokens, re.search(r"VmHWM:\\s+(\\d+) kB", status)[1])
"""


def run(folder: Path, *, inject: str | None = None) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-c", PROGRAM, str(folder)]
    if inject is not None:
        assert STRACE is not None
        calls = inject.partition(":")[0]
        tracing = ["-f", "-qq", "-o", os.devnull, "-e", f"trace={calls}", "-e", f"inject={inject}"]
        arguments = [STRACE, *tracing, *arguments]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)


def hashes(folder: Path) -> dict[str, str]:
    """Return what is left of a consolidation for users."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "lock"]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.fixture(scope="module")
def original(
    tmp_path_factory: pytest.TempPathFactory, build_store: Callable[..., Metadata]
) -> Path:
    folder = tmp_path_factory.mktemp("original") / "store"
    build_store(folder, {"train": [list(range(97))] * 4, "val": [[3] * 9]}, shard_tokens=50)
    return folder


@pytest.fixture(scope="module")
def finished(original: Path) -> dict[str, str]:
    folder = original.with_name("finished")
    shutil.copytree(original, folder)
    assert run(folder).returncode == 0
    return hashes(folder)


@pytest.mark.skipif(
    STRACE is None, reason="STRACE IS MISSING: faults are not tested (apt-get install strace)"
)
@pytest.mark.parametrize(
    "call",
    [f"rename:{n}" for n in (1, 3, 5, 6, 7, 8)]
    + [f"fsync:{n}" for n in (1, 6, 14)]
    + [f"unlink:{n}" for n in (2, 6, 8)],
)
def test_a_killed_consolidation_continues(
    tmp_path: Path, original: Path, finished: dict[str, str], call: str
):
    name, number = call.split(":")
    folder = tmp_path / "store"
    shutil.copytree(original, folder)
    killed = run(folder, inject=f"{name}:signal=KILL:when={number}")
    assert killed.returncode == -9, "the run ended before the call at which it was to be killed"
    assert open_store(folder).read(0, 388).tolist() == list(range(97)) * 4
    assert run(folder).returncode == 0
    assert hashes(folder) == finished
    assert verify(folder, "full").ok


def test_memory_stays_bounded_whatever_the_size(tmp_path: Path):
    """Two shards of 128 MiB of ids each, holes that take no room on the disk to begin with."""
    num_tokens = 64 * MEGABYTE
    for number in range(2):
        path = tmp_path / f"train_{number:06d}.npy"
        np.save(path, np.empty(0, dtype=np.uint16))
        header = path.read_bytes().replace(b"(0,), }" + b" " * 8, f"({num_tokens},), }}".encode())
        path.write_bytes(header.ljust(128)[:127] + b"\n")
        os.truncate(path, 128 + 2 * num_tokens)
    found = subprocess.run(
        [sys.executable, "-c", MEMORY_PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    tokens, peak_kilobytes = map(int, found.stdout.split())
    assert tokens == 2 * num_tokens
    assert peak_kilobytes * 1024 < 128 * MEGABYTE
