"""What the tests of consolidation share: plain shards, flips, and the expected files."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenmill.store import ConsolidateReport, ConsolidateSettings, consolidate

LEVELS = ("structure", "sample", "full")


def run(folder: Path, *, seq_len: int = 4, **changes: Any) -> ConsolidateReport:
    return consolidate(folder, ConsolidateSettings(seq_len=seq_len, workers=2, **changes))


def expected_files(ids: Sequence[int], *, seq_len: int, dtype: str) -> tuple[bytes, bytes]:
    """Make both files in the plainest way."""
    tokens = b"".join(struct.pack("<H" if dtype == "uint16" else "<I", token) for token in ids)
    samples = b""
    for start in range(0, len(ids) - seq_len + 1, seq_len):
        wide = b"".join(struct.pack("<I", token) for token in ids[start : start + seq_len])
        samples += hashlib.blake2b(wide, digest_size=8).digest()
    return tokens, samples


def write_plain(folder: Path, ids: Sequence[int], *, size: int, dtype: str = "uint16") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, max(len(ids), 1), size)):
        array = np.array(ids[start : start + size], dtype=dtype)
        np.save(folder / f"train_{number:06d}.npy", array)


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << place % 8
    path.write_bytes(data)
