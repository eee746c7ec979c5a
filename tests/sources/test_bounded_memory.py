"""Hostile input does not take the machine with it: measured in processes of their own."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MEGABYTE = 1 << 20
READ = r"""
import json, re, sys
from pathlib import Path
from tokenmill.sources import SourceSettings, cut_units, find_files, read_unit


def megabytes(name):
    # Not ru_maxrss: that begins with what the parent had when it started this process.
    return int(re.search(name + r":\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024


settings = SourceSettings(places=(sys.argv[1],), **json.loads(sys.argv[2]))
files = find_files(settings)
num_documents, num_bytes, reasons, held = 0, 0, set(), 0
for unit in cut_units(files):
    for batch in read_unit(files, unit, settings):
        num_documents += len(batch.texts)
        num_bytes += batch.num_bytes
        reasons |= {reject.reason for reject in batch.rejects}
        held = max(held, megabytes("VmRSS"))
        del batch
print(json.dumps([num_documents, num_bytes, sorted(reasons), megabytes("VmHWM"), held]))
"""


class Outcome(NamedTuple):
    num_documents: int
    num_bytes: int
    reasons: list[str]
    peak: int
    """Most memory used, in MiB."""
    held: int
    """Most memory used while a batch is at hand, in MiB."""


def read_in_process(path: Path, **settings) -> Outcome:
    command = [sys.executable, "-c", READ, str(path), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    return Outcome(*json.loads(done.stdout))


def write_bomb(path: Path, *, start: bytes = b"", num_megabytes: int, end: bytes = b"") -> None:
    frame = zstd.compress(b"a" * MEGABYTE)
    packed = zstd.compress(start) + frame * num_megabytes + zstd.compress(end)
    path.write_bytes(packed)
    assert len(packed) < 100_000


@pytest.mark.parametrize("name", ["a.txt.zst", "a.jsonl.zst", "a.json.zst", "a.csv.zst"])
def test_a_bomb_stays_bounded(tmp_path: Path, name: str):
    path = tmp_path / name
    write_bomb(path, num_megabytes=256)
    found = read_in_process(path)
    assert found.num_documents == (name == "a.txt.zst")
    assert found.reasons in ([], ["bad-json"], ["too-long"])
    assert found.peak < 1000


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.json.zst"])
def test_a_bomb_in_a_string_stays_bounded(tmp_path: Path, name: str):
    path = tmp_path / name
    write_bomb(path, start=b'{"text": "', num_megabytes=256, end=b'"}')
    found = read_in_process(path)
    assert (found.num_documents, found.num_bytes) == (1, 256 * MEGABYTE)
    assert found.peak < 1000


def test_a_gzip_bomb_stays_bounded(tmp_path: Path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(bytes(MEGABYTE)) * 256)
    found = read_in_process(path)
    assert (found.num_documents, found.num_bytes) == (1, 256 * MEGABYTE)
    assert found.peak < 1000


@pytest.mark.parametrize(
    "name", ["a.txt.zst", "a.jsonl.zst", "a.json.zst", "a.csv.zst", "a.md.zst"]
)
def test_a_document_over_the_limit_is_never_held(tmp_path: Path, name: str):
    path = tmp_path / name
    write_bomb(path, start=b'"', num_megabytes=500, end=b'"')
    settings = {"format": "file"} if name == "a.md.zst" else {}
    found = read_in_process(path, max_document_bytes=8 * MEGABYTE, **settings)
    assert found.reasons == ["too-long"]
    assert found.peak < 150


def test_a_csv_row_of_many_lines_over_the_limit_is_never_held(tmp_path: Path):
    path = tmp_path / "a.csv.zst"
    lines = zstd.compress((b"a" * 1000 + b'""\n') * 1000) * 200
    path.write_bytes(zstd.compress(b'text\n"') + lines + zstd.compress(b'"\nafter\n'))
    found = read_in_process(path, max_document_bytes=8 * MEGABYTE)
    assert (found.num_documents, found.num_bytes, found.reasons) == (1, 5, ["too-long"])
    assert found.peak < 200


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_endless_nesting_stays_bounded(tmp_path: Path, suffix: str):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b'{"text": "a", "x": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}")
    found = read_in_process(path)
    assert (found.num_documents, found.reasons) == (0, ["bad-json"])
    assert found.peak < 200


def test_a_long_line_takes_its_size_twice_at_most(tmp_path: Path):
    check_long_line(tmp_path / "a.txt", num_megabytes=40)


@pytest.mark.slow
def test_a_line_of_500_megabytes_takes_its_size_twice_at_most(tmp_path: Path):
    check_long_line(tmp_path / "a.txt", num_megabytes=500)


def check_long_line(path: Path, *, num_megabytes: int) -> None:
    path.write_bytes(b"a\n")
    idle = read_in_process(path).peak
    with path.open("wb") as file:
        file.write(b"before\n")
        for _ in range(num_megabytes):
            file.write(b"x" * MEGABYTE)
        file.write(b"\nafter\n")
    found = read_in_process(path)
    assert (found.num_documents, found.num_bytes) == (3, num_megabytes * MEGABYTE + 11)
    assert found.peak - idle < 2.2 * num_megabytes + 10
    assert found.held - idle < 1.1 * num_megabytes + 10  # the text, and no longer its bytes


def test_rows_that_share_a_long_value_stay_bounded(tmp_path: Path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    indices = pa.array([0] * 2000, pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * MEGABYTE]))
    table = pa.table({"text": column})
    # Without its schema it is read as plain strings, as the files of other writers are.
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd", store_schema=False)
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as writer:
        writer.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        found = read_in_process(tmp_path / name)
        assert (found.num_documents, found.num_bytes) == (2000, 2000 * MEGABYTE)
        assert found.peak < 400


def test_a_large_row_group_is_read_in_pieces(tmp_path: Path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    words = [f"{number} " * 1000 for number in range(20_000)]  # about 100 MB
    path = tmp_path / "a.parquet"
    options = {"compression": "none", "use_dictionary": False}
    pq.write_table(pa.table({"text": words}), path, row_group_size=1 << 30, **options)
    found = read_in_process(path)
    assert (found.num_documents, found.num_bytes) == (20_000, sum(map(len, words)))
    assert found.peak < 180
