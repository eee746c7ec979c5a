"""Hostile input does not take the machine with it: measured in processes of their own."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

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

settings = SourceSettings(places=(sys.argv[1],), **json.loads(sys.argv[2]))
files = find_files(settings)
num_documents, num_bytes, reasons = 0, 0, []
for unit in cut_units(files):
    for batch in read_unit(files, unit, settings):
        num_documents += len(batch.texts)
        num_bytes += batch.num_bytes
        reasons += [reject.reason for reject in batch.rejects]
        del batch
# Not ru_maxrss: that begins with what the parent had when it started this process.
peak = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024
print(json.dumps([num_documents, num_bytes, sorted(set(reasons)), peak]))
"""


def read_in_process(path: Path, **settings) -> tuple[int, int, list[str], int]:
    """Return documents, bytes of text, reasons of rejects and peak memory in MiB."""
    command = [sys.executable, "-c", READ, str(path), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    num_documents, num_bytes, reasons, peak = json.loads(done.stdout)
    return num_documents, num_bytes, reasons, peak


def write_zstd_bomb(
    path: Path, *, start: bytes = b"", num_megabytes: int, end: bytes = b""
) -> None:
    frame = zstd.compress(b"a" * MEGABYTE)
    packed = zstd.compress(start) + frame * num_megabytes + zstd.compress(end)
    path.write_bytes(packed)
    assert len(packed) < 100_000


@pytest.mark.parametrize("name", ["a.txt.zst", "a.jsonl.zst", "a.json.zst", "a.csv.zst"])
def test_a_bomb_stays_bounded(tmp_path: Path, name: str):
    path = tmp_path / name
    write_zstd_bomb(path, num_megabytes=256)
    num_documents, _, reasons, peak = read_in_process(path)
    assert num_documents == (name == "a.txt.zst")
    assert reasons in ([], ["bad-json"], ["too-long"])
    assert peak < 1000


@pytest.mark.parametrize("name", ["a.jsonl.zst", "a.json.zst"])
def test_a_bomb_in_a_string_stays_bounded(tmp_path: Path, name: str):
    path = tmp_path / name
    write_zstd_bomb(path, start=b'{"text": "', num_megabytes=256, end=b'"}')
    num_documents, num_bytes, _, peak = read_in_process(path)
    assert (num_documents, num_bytes) == (1, 256 * MEGABYTE)
    assert peak < 1000


def test_a_gzip_bomb_stays_bounded(tmp_path: Path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(bytes(MEGABYTE)) * 256)
    num_documents, num_bytes, _, peak = read_in_process(path)
    assert (num_documents, num_bytes) == (1, 256 * MEGABYTE)
    assert peak < 1000


@pytest.mark.parametrize(
    "name", ["a.txt.zst", "a.jsonl.zst", "a.json.zst", "a.csv.zst", "a.md.zst"]
)
def test_a_document_over_the_limit_is_never_held(tmp_path: Path, name: str):
    path = tmp_path / name
    write_zstd_bomb(path, start=b'"', num_megabytes=700, end=b'"')
    settings = {"format": "file"} if name == "a.md.zst" else {}
    *_, reasons, peak = read_in_process(path, max_document_bytes=8 * MEGABYTE, **settings)
    assert reasons == ["too-long"]
    assert peak < 150


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_endless_nesting_stays_bounded(tmp_path: Path, suffix: str):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b'{"text": "a", "x": ' + b"[" * 2_000_000 + b"]" * 2_000_000 + b"}")
    num_documents, _, reasons, peak = read_in_process(path)
    assert (num_documents, reasons) == (0, ["bad-json"])
    assert peak < 300


def test_a_long_line_takes_its_size_twice_at_most(tmp_path: Path):
    check_long_line(tmp_path / "a.txt", num_megabytes=40)


@pytest.mark.slow
def test_a_line_of_500_megabytes_takes_its_size_twice_at_most(tmp_path: Path):
    check_long_line(tmp_path / "a.txt", num_megabytes=500)


def check_long_line(path: Path, *, num_megabytes: int) -> None:
    path.write_bytes(b"a\n")
    *_, idle_peak = read_in_process(path)
    with path.open("wb") as file:
        file.write(b"before\n")
        for _ in range(num_megabytes):
            file.write(b"x" * MEGABYTE)
        file.write(b"\nafter\n")
    num_documents, num_bytes, _, peak = read_in_process(path)
    assert (num_documents, num_bytes) == (3, num_megabytes * MEGABYTE + 11)
    assert peak - idle_peak < 2.2 * num_megabytes + 10


def test_rows_that_share_a_long_value_stay_bounded(tmp_path: Path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    indices = pa.array([0] * 3000, pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * MEGABYTE]))
    table = pa.table({"text": column})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    with (
        pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file,
        pa.ipc.new_file(file, table.schema) as w,
    ):
        w.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        num_documents, num_bytes, _, peak = read_in_process(tmp_path / name)
        assert (num_documents, num_bytes) == (3000, 3000 * MEGABYTE)
        assert peak < 400


def test_a_large_row_group_is_read_in_pieces(tmp_path: Path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    words = [f"{number} " * 1000 for number in range(20_000)]  # about 100 MB
    path = tmp_path / "a.parquet"
    options = {"compression": "none", "use_dictionary": False}
    pq.write_table(pa.table({"text": words}), path, row_group_size=1 << 30, **options)
    num_documents, num_bytes, _, peak = read_in_process(path)
    assert (num_documents, num_bytes) == (20_000, sum(map(len, words)))
    assert peak < 200
