"""Memory is bounded: it does not follow the size of the input, of a shard or of a document."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

MEGABYTE = 1_000_000
PROGRAM = """
import re, sys, tokenmill
tokenmill.tokenize(sys.argv[1], sys.argv[2], workers=2, **eval(sys.argv[3]))
status = open("/proc/self/status").read()
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024)
"""  # not ru_maxrss, which a process inherits from the one that started it


def peak_bytes(source: Path, output: Path, **settings: object) -> int:
    arguments = [sys.executable, "-c", PROGRAM, str(source), str(output), repr(settings)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return int(done.stdout)


def write_words(path: Path, num_bytes: int, *, document_words: int) -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(20_000)]
    with path.open("w") as file:
        while file.tell() < num_bytes:
            for _ in range(50):
                file.write(" ".join(rng.choices(words, k=document_words)) + "\n")


@pytest.mark.parametrize("settings", [{}, {"shuffle": 3}, {"val_ratio": 0.1}], ids=str)
def test_memory_does_not_grow_with_the_input(settings: dict, tmp_path: Path):
    peaks: list[int] = []
    for size in (20, 120):
        source = tmp_path / f"{size}.txt"
        write_words(source, size * MEGABYTE, document_words=400)
        settings = {**settings, "shard_tokens": 10_000_000}
        peaks.append(peak_bytes(source, tmp_path / f"store{size}", **settings))
    assert peaks[1] < 600 * MEGABYTE
    assert peaks[1] - peaks[0] < 150 * MEGABYTE


def test_a_long_document_is_held_once_and_as_bytes(tmp_path: Path):
    source = tmp_path / "long.jsonl"
    text = "naïve 猫 😀 and some plain words " * 3_000_000  # 126 MB, or 378 MB as a string
    with source.open("w") as file:
        file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
    del text
    assert peak_bytes(source, tmp_path / "store") < 450 * MEGABYTE
