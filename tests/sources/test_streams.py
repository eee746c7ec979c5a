"""Compressed files: read to their very end, and never longer than they are whole."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenmill.errors import StorageError
from tokenmill.sources import SourceSettings, cut_units, find_files, read_unit
from tokenmill.sources.settings import SourceFile
from tokenmill.sources.streams import CutStreamError, open_stream

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "zst": zstd.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}
TEXTS = [f"document {number} é 語 " + "x" * number for number in range(200)]
CONTENTS = {
    "txt": "\n".join(TEXTS),
    "jsonl": "".join(json.dumps({"text": text}) + "\n" for text in TEXTS),
    "json": json.dumps(TEXTS),
    "csv": "id,text\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(TEXTS)),
    "tsv": "id\ttext\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(TEXTS)),
}


@pytest.mark.parametrize("compression", ["gz", "zst", "bz2", "xz"])
@pytest.mark.parametrize("suffix", list(CONTENTS))
def test_a_compressed_file_gives_what_the_plain_one_gives(
    read_all, tmp_path: Path, suffix: str, compression: str
):
    plain, packed = tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}.{compression}"
    plain.write_text(CONTENTS[suffix], encoding="utf-8")
    packed.write_bytes(COMPRESS[compression](plain.read_bytes()))
    expected, found = read_all(plain), read_all(packed)
    assert found.texts == TEXTS
    assert found.documents == expected.documents
    assert not found.rejects


@pytest.mark.parametrize("compression", list(COMPRESS))
def test_a_whole_compressed_file_can_be_one_document(read_all, tmp_path: Path, compression: str):
    path = tmp_path / f"a.py.{compression}"
    path.write_bytes(COMPRESS[compression](b"x = 1\n" * 300_000))
    assert read_all(path, format="file").texts == ["x = 1\n" * 300_000]
    found = read_all(path, format="file", max_document_bytes=1_700_000)
    assert found.rejects == [(0, 0, "too-long")]
    path.write_bytes(path.read_bytes()[:-1])
    assert read_all(path, format="file").rejects == [(0, 0, "cut-stream")]


@pytest.mark.parametrize("compression", list(COMPRESS))
def test_all_parts_of_a_stream_are_read(read_all, tmp_path: Path, compression: str):
    compress = COMPRESS[compression]
    parts = [compress(b"one\ntw"), compress(b""), compress(b"o\n"), compress(b"three\n" * 100_000)]
    if compression == "zst":
        parts.insert(1, struct.pack("<II", 0x184D2A50, 3) + b"xyz")  # a frame to be skipped
    if compression in {"gz", "xz"}:
        parts.append(bytes(200_000))  # padding
    path = tmp_path / f"a.txt.{compression}"
    path.write_bytes(b"".join(parts))
    found = read_all(path)
    assert found.texts == ["one", "two"] + ["three"] * 100_000
    assert found.positions[:3] == [0, 4, 8]
    assert not found.rejects


@pytest.mark.parametrize("compression", list(COMPRESS))
@pytest.mark.parametrize("tail", [b"garbage that is no stream", b"\0\0\0\0x", b"x"])
def test_what_follows_a_stream_is_not_passed_over(
    read_all, tmp_path: Path, compression: str, tail: bytes
):
    path = tmp_path / f"a.txt.{compression}"
    path.write_bytes(COMPRESS[compression](b"one\ntwo\n") + tail)
    found = read_all(path)
    assert found.documents == [(0, 0, "one"), (0, 4, "two")]
    assert found.rejects == [(0, 8, "cut-stream")]


@pytest.mark.parametrize("compression", list(COMPRESS))
@pytest.mark.parametrize("suffix", list(CONTENTS))
def test_a_cut_stream_gives_whole_documents_and_one_reject(
    read_all, tmp_path: Path, suffix: str, compression: str
):
    content = CONTENTS[suffix].encode()
    path = tmp_path / f"a.{suffix}.{compression}"
    first, second = (COMPRESS[compression](half) for half in (content[:9999], content[9999:]))
    whole = first + second
    path.write_bytes(whole)
    documents = read_all(path).documents
    end = {"txt": len(content), "jsonl": len(content)}.get(suffix, len(TEXTS))
    starts = [position for _, position, _ in documents] + [end]
    num_partial = 0
    for cut in {*range(0, len(whole), 61), len(whole) - 1} - {len(first)}:
        path.write_bytes(whole[:cut])
        found = read_all(path)
        assert found.documents == documents[: len(found.documents)]
        assert [reason for _, _, reason in found.rejects] == ["cut-stream"]
        assert found.rejects[0][1] == (0 if cut == 0 else starts[len(found.documents)])
        num_partial += 0 < len(found.documents) < len(documents)
    assert num_partial


@pytest.mark.parametrize("compression", ["gz", "zst", "bz2", "xz"])
def test_no_flipped_bit_gives_other_text_in_silence(read_all, tmp_path: Path, compression: str):
    content = "\n".join(TEXTS).encode()
    whole = COMPRESS[compression](content)
    if compression == "zst":
        options = {int(zstd.CompressionParameter.checksum_flag): 1}
        whole = zstd.compress(content, options=options)
    path = tmp_path / f"a.txt.{compression}"
    rng = random.Random(5)
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        found = read_all(path)
        assert found.rejects or found.texts == TEXTS


def test_a_gzip_stream_may_expand_by_any_step(tmp_path: Path):
    data = random.Random(1).randbytes(50_000) + bytes(3_000_000)
    path = tmp_path / "a.gz"
    path.write_bytes(zlib.compress(data, wbits=31) * 2)
    file = SourceFile(str(path), path.stat().st_size, "", "text", "gz")
    for size in (1, 4096, 999_983, 10_000_000):
        with open_stream(file) as stream:
            num_reads, total = 0, 0
            while (piece := stream.read(size)) and num_reads < 60:
                assert data[total % len(data) :].startswith(piece[: len(data) - total % len(data)])
                total += len(piece)
                num_reads += 1
            assert total == min(2 * len(data), 60 * size)


def test_a_hostile_header_does_not_take_memory(tmp_path: Path):
    path = tmp_path / "a.xz"
    whole = bytearray(lzma.compress(b"abc"))
    # Block header: size, flags, filter id, size of properties, dictionary (40: 4 GiB), …, CRC.
    whole[12 + 4] = 40
    whole[12 + 8 : 12 + 12] = struct.pack("<I", zlib.crc32(whole[12 : 12 + 8]))
    path.write_bytes(whole)
    file = SourceFile(str(path), len(whole), "", "text", "xz")
    with open_stream(file) as stream, pytest.raises(CutStreamError, match="limit"):
        stream.read(10)


@pytest.mark.parametrize("change", [b"", b"a\n", b"a\nb\nc\nd"])
def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, change: bytes):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\nb\nc")
    settings = SourceSettings(places=(str(path),))
    files = find_files(settings)
    path.write_bytes(change)
    with pytest.raises(StorageError, match="5 bytes when it was listed"):
        list(read_unit(files, cut_units(files)[0], settings))


def test_a_file_that_is_gone_is_a_storage_error(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n")
    settings = SourceSettings(places=(str(path),))
    files = find_files(settings)
    path.unlink()
    with pytest.raises(StorageError, match="No such file"):
        list(read_unit(files, cut_units(files)[0], settings))
