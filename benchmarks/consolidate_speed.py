"""How fast `tokenmill consolidate` is for each core, and what memory it takes.

The shards are holes in sparse files, so the ids are zeros: hashing costs the same for all ids, and
a store of any size takes no room before. What is written is written for real: choose a disk with
room. MB/s are of token ids; a core's rate divides by processor time, not by wall time. The two
hashes that the format asks for are timed alone as well: no implementation can be faster.

    python benchmarks/consolidate_speed.py --gb 4 --folder /dev/shm
    python benchmarks/consolidate_speed.py --gb 20
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import time
from pathlib import Path

import numpy as np

from measure import DATA, TOKENMILL, best_seconds, print_table, report, run
from tokenmill.store import sample_ids

SHARD_TOKENS = 100_000_000
SEQ_LEN = 2048


def main() -> None:
    """Make sparse shards of both types of ids, and consolidate them."""
    parser = argparse.ArgumentParser(description="Measure the speed of tokenmill consolidate.")
    parser.add_argument("--gb", type=float, default=2.0, help="gigabytes of token ids")
    parser.add_argument("--folder", type=Path, default=DATA, help="where to write them")
    parser.add_argument("--dtype", choices=["uint16", "uint32"], action="append")
    arguments = parser.parse_args()
    rows: list[tuple[object, ...]] = [("what", "value")]
    for dtype in arguments.dtype or ["uint16", "uint32"]:
        store = arguments.folder / f"consolidate-{os.getpid()}"
        try:
            num_bytes = make_shards(store, dtype, num_bytes=int(arguments.gb * 1e9))
            rows += measure(store, dtype, num_bytes=num_bytes).items()
        finally:
            shutil.rmtree(store, ignore_errors=True)
    print_table(rows)


def make_shards(folder: Path, dtype: str, *, num_bytes: int) -> int:
    """Write shards that are all hole; return the bytes of their ids."""
    folder.mkdir(parents=True)
    left = num_bytes // np.dtype(dtype).itemsize
    for number in range(-(-left // SHARD_TOKENS)):
        num_tokens = min(left, SHARD_TOKENS)
        path = folder / f"train_{number:06d}.npy"
        np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=(num_tokens,))
        left -= num_tokens
    return num_bytes // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize


def measure(folder: Path, dtype: str, *, num_bytes: int) -> dict[str, object]:
    """Consolidate without and with reading back, each once."""
    command = [TOKENMILL, "consolidate", folder, "--seq-len", str(SEQ_LEN), "--progress", "none"]
    plain = run([*command, "--skip-validation"], sample_memory=True)
    start = run([*command])  # complete: what a process costs that does nothing
    (folder / "tokens.bin").unlink()
    full = run(command)
    megabytes = num_bytes / 1e6
    return report(
        "consolidate_speed",
        dtype=dtype,
        token_gb=num_bytes / 1e9,
        seq_len=SEQ_LEN,
        mb_per_second=megabytes / plain.seconds,
        mb_per_core_second=megabytes / (plain.cpu_seconds - start.cpu_seconds),
        validated_mb_per_core_second=megabytes / (full.cpu_seconds - start.cpu_seconds),
        hashes_alone_mb_per_core_second=_hashes_alone(dtype),
        peak_mb=plain.peak_bytes / 1e6,
    )


def _hashes_alone(dtype: str) -> float:
    """Return the rate of the two hashes that the format asks for, and nothing else."""
    ids = np.zeros((1 << 25) // np.dtype(dtype).itemsize, dtype=dtype)

    def hash_both() -> None:
        hashlib.sha256(ids.data).digest()
        sample_ids(ids, SEQ_LEN)

    return ids.nbytes / 1e6 / best_seconds(hash_both, timer=time.process_time)


if __name__ == "__main__":
    main()
