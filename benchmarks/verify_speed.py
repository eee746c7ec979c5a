"""How fast `tokenmill verify --level full` reads a store, next to SHA-256 alone on the same bytes.

Both find the store in the page cache. GB/s per core divides by processor time, not by wall time, so
that the number does not depend on how many threads run; what `--level structure` takes is taken
off, since a process start would hide the rate of so small a store.

    python benchmarks/verify_speed.py --store STORE
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import time
from pathlib import Path

from measure import (
    DATA,
    TOKENMILL,
    Finished,
    best_seconds,
    corpus_facts,
    print_table,
    report,
    run,
    warm,
)
from tokenize_speed import run_tokenize


def main() -> None:
    """Make a store from the corpus unless one is given, and time its verification."""
    parser = argparse.ArgumentParser(description="Measure the speed of tokenmill verify.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder made by corpus.py")
    parser.add_argument("--store", type=Path, help="an existing store to verify instead")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    if arguments.store:
        _measure(arguments.store, repeats=arguments.repeats)
        return
    corpus_facts(arguments.data)
    store = arguments.data / f"out-{os.getpid()}"
    try:
        run_tokenize(arguments.data / "docs.txt", store)
        _measure(store, repeats=arguments.repeats)
    finally:
        shutil.rmtree(store, ignore_errors=True)


def _measure(store: Path, *, repeats: int) -> None:
    files = sorted(path for path in store.rglob("*") if path.is_file() and "_run" not in path.parts)
    num_bytes = sum(path.stat().st_size for path in files)
    warm(*files)
    full = _verify(store, "full", repeats=repeats)
    structure = _verify(store, "structure", repeats=repeats)
    hashing = best_seconds(
        lambda: [_sha256(path) for path in files], repeats=repeats, timer=time.process_time
    )
    gigabytes = num_bytes / 1e9
    result = report(
        "verify_speed",
        store_gb=gigabytes,
        wall_seconds=full.seconds,
        gb_per_core_second=gigabytes / (full.cpu_seconds - structure.cpu_seconds),
        sha256_gb_per_core_second=gigabytes / hashing,
        best_of=repeats,
    )
    print_table([("what", "value"), *result.items()])


def _verify(store: Path, level: str, *, repeats: int) -> Finished:
    """Return the run that took least processor time."""
    command = [TOKENMILL, "verify", store, "--level", level, "--json"]
    return min((run(command) for _ in range(repeats)), key=lambda finished: finished.cpu_seconds)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
