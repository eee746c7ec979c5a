"""How much memory `tokenmill tokenize` needs at its peak; the limit is 1.5 GB, whatever the input.

The inputs are the ones that make other tools fail: 5 GB of text in one file, one document of 500 MB
as text and as JSON Lines, with characters of many scripts (a Python string of it would need four
bytes for each), 100,000 small files. The number is the largest sum of resident memory over all
processes of the command, looked at every 20 ms.

    python benchmarks/memory.py --cases big longtext   # all of them by default
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import msgspec

from measure import DATA, corpus_facts, print_table, report
from tokenize_speed import run_tokenize

LIMIT_BYTES = 1_500_000_000
BIG_BYTES = 5_000_000_000
LONG_BYTES = 500_000_000
NUM_SMALL_FILES = 100_000


def main() -> None:
    """Make each input, tokenize it, report the peak, delete it again."""
    parser = argparse.ArgumentParser(description="Measure the memory of tokenmill tokenize.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder made by corpus.py")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    corpus_facts(arguments.data)
    rows: list[tuple[object, ...]] = [("input", "peak MB", "seconds", "limit MB", "")]
    for case in arguments.cases:
        with tempfile.TemporaryDirectory(dir=arguments.data, prefix="memory-") as scratch:
            print(f"making the input {case!r}", file=sys.stderr)
            source = CASES[case](arguments.data, Path(scratch))
            finished = run_tokenize(source, Path(scratch) / "store", sample_memory=True)
        report(
            "memory",
            case=case,
            peak_bytes=finished.peak_bytes,
            seconds=finished.seconds,
            limit_bytes=LIMIT_BYTES,
        )
        verdict = "ok" if finished.peak_bytes <= LIMIT_BYTES else "above the limit"
        peak_mb, limit_mb = finished.peak_bytes // 10**6, LIMIT_BYTES // 10**6
        rows.append((case, peak_mb, f"{finished.seconds:.1f}", limit_mb, verdict))
    print_table(rows)


def _big(data: Path, scratch: Path) -> Path:
    """Repeat the corpus to 5 GB: memory must not grow with the input."""
    path = scratch / "big.txt"
    with path.open("wb") as file:
        while file.tell() < BIG_BYTES:
            with (data / "docs.txt").open("rb") as source:
                shutil.copyfileobj(source, file, 1 << 24)
    return path


def _long_text(data: Path, scratch: Path) -> Path:
    """Join documents in all scripts into one line of 500 MB."""
    path = scratch / "long.txt"
    path.write_bytes(_long_document(data) + b"\n")
    return path


def _long_jsonl(data: Path, scratch: Path) -> Path:
    """Put the same into one JSON object."""
    path = scratch / "long.jsonl"
    path.write_bytes(msgspec.json.encode({"text": _long_document(data).decode()}) + b"\n")
    return path


def _small_files(data: Path, scratch: Path) -> Path:
    """Write the first documents as one file each, again from the start if they are too few."""
    folder = scratch / "small"
    num_files = 0
    while num_files < NUM_SMALL_FILES:
        with (data / "docs.txt").open("rb") as lines:
            for line in islice(lines, NUM_SMALL_FILES - num_files):
                part = folder / f"{num_files // 1000:03d}"
                part.mkdir(parents=True, exist_ok=True)
                (part / f"{num_files:06d}.txt").write_bytes(line[:2000].rpartition(b" ")[0] + b"\n")
                num_files += 1
    return folder


def _long_document(data: Path) -> bytes:
    pieces: list[bytes] = []
    num_bytes = 0
    while num_bytes < LONG_BYTES:
        with (data / "docs.txt").open("rb") as lines:
            for line in lines:
                pieces.append(line.rstrip(b"\n"))
                num_bytes += len(line)
                if num_bytes >= LONG_BYTES:
                    break
    return b" ".join(pieces)


CASES: dict[str, Callable[[Path, Path], Path]] = {
    "big": _big,
    "longtext": _long_text,
    "longjsonl": _long_jsonl,
    "smallfiles": _small_files,
}


if __name__ == "__main__":
    main()
