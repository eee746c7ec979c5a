from __future__ import annotations

import hashlib
import logging
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import DamageError, StorageError
from tokenmill.store import cached_file
from tokenmill.store.cached_file import CachedShard, CachedTable
from tokenmill.store.format import BLOCK_BYTES
from tokenmill.store.remote_cache import RemoteCache

CHUNK_BYTES = 2 * BLOCK_BYTES
DATA = random.Random(5).randbytes(11 * BLOCK_BYTES + 4321)


class Origin:
    """Stands for an object: gives ranges, counts them, and breaks when it is told to."""

    name = "train_000000.npy"
    header = DATA[:128]
    note = ""

    def __init__(self, data: bytes = DATA) -> None:
        self.data = data
        self.num_bytes = len(DATA)
        self.fetched: list[tuple[int, int]] = []
        self.num_broken = 0

    def fetch(self, start: int, stop: int) -> bytes:
        self.fetched.append((start, stop))
        if self.num_broken:
            self.num_broken -= 1
            return bytes(stop - start)
        return self.data[start:stop]

    def read_into(self, out: memoryview, offset: int) -> None:
        out[:] = self.fetch(offset, offset + len(out))

    def pieces(self, sha256: str | None, *, piece_bytes: int = 1 << 20) -> Any:
        data = self.fetch(0, self.num_bytes)
        yield memoryview(data)[128:]
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise self.damage("its SHA-256 is not the one in the metadata")

    def forget(self) -> None:
        pass

    def damage(self, problem: str) -> DamageError:
        return DamageError(f"s3://bucket/{self.name}: {problem}")


def block_sums(data: bytes = DATA) -> np.ndarray[Any, np.dtype[np.uint64]]:
    starts = range(0, len(data), BLOCK_BYTES)
    sums = [xxhash.xxh3_64_intdigest(data[start : start + BLOCK_BYTES]) for start in starts]
    return np.array(sums, dtype=np.uint64)


def open_shard(folder: Path, origin: Origin, *, max_bytes: int = 1 << 30) -> CachedShard:
    cache = RemoteCache(str(folder), max_bytes=max_bytes, chunk_bytes=CHUNK_BYTES)
    sha256 = hashlib.sha256(DATA).hexdigest()
    return CachedShard(origin, sha256, cache=cache, sums=block_sums)  # type: ignore[arg-type]


def open_table(folder: Path, origin: Origin, *, max_bytes: int = 1 << 30) -> CachedTable:
    cache = RemoteCache(str(folder), max_bytes=max_bytes, chunk_bytes=16 * BLOCK_BYTES)
    sha256 = hashlib.sha256(DATA).hexdigest()
    return CachedTable(origin, sha256, cache=cache, is_proved=True)  # type: ignore[arg-type]


def pieces_on_disk(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9a-f][0-9a-f]/*"))


def wait_for_fetches() -> None:
    for thread in threading.enumerate():
        if thread.name == "fetch-ahead":
            thread.join()


spans = st.lists(
    st.tuples(st.integers(0, len(DATA)), st.integers(0, 3 * BLOCK_BYTES)), min_size=1, max_size=12
)


@given(spans=spans, max_chunks=st.sampled_from([0, 1, 2, 100]))
@settings(max_examples=40, deadline=None)
def test_every_range_is_what_the_origin_holds_whatever_fits_the_cache(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]], max_chunks: int
):
    folder = tmp_path_factory.mktemp("cache")
    shard = open_shard(folder, Origin(), max_bytes=max_chunks * CHUNK_BYTES)
    for start, length in spans:
        stop = min(start + length, len(DATA))
        assert shard.read(start, stop) == DATA[start:stop]
    wait_for_fetches()
    assert sum(p.stat().st_size for p in pieces_on_disk(folder)) <= max_chunks * CHUNK_BYTES


def test_a_random_read_fetches_one_chunk_and_the_next_reads_nothing(tmp_path: Path):
    origin = Origin()
    shard = open_shard(tmp_path, origin)
    assert shard.read(300_000, 300_010) == DATA[300_000:300_010]
    assert shard.read(280_000, 280_010) == DATA[280_000:280_010]
    wait_for_fetches()
    assert origin.fetched == [(2 * CHUNK_BYTES, 3 * CHUNK_BYTES)]
    other = Origin()  # another process
    assert open_shard(tmp_path, other).read(300_000, 300_010) == DATA[300_000:300_010]
    assert not other.fetched


@pytest.mark.parametrize("max_bytes", [1 << 30, 0])
def test_reading_on_fetches_the_next_chunk_meanwhile(tmp_path: Path, max_bytes: int):
    origin = Origin()
    shard = open_shard(tmp_path, origin, max_bytes=max_bytes)
    for start in range(0, len(DATA), 4096):
        assert shard.read(start, min(start + 4096, len(DATA))) == DATA[start : start + 4096]
        wait_for_fetches()
        chunk = start // CHUNK_BYTES
        ahead = 2 if chunk else 1  # one read of a chunk is no sign of more
        assert len(origin.fetched) == min(chunk + ahead, -(-len(DATA) // CHUNK_BYTES))
    wait_for_fetches()
    assert sorted(origin.fetched) == [
        (start, min(start + CHUNK_BYTES, len(DATA))) for start in range(0, len(DATA), CHUNK_BYTES)
    ]


def test_a_fault_while_fetching_ahead_is_only_met_by_who_gets_there(tmp_path: Path):
    origin = Origin(DATA[: 4 * BLOCK_BYTES] + bytes(len(DATA) - 4 * BLOCK_BYTES))
    shard = open_shard(tmp_path, origin)
    shard.read(0, 10)
    shard.read(CHUNK_BYTES, CHUNK_BYTES + 10)
    wait_for_fetches()
    assert (2 * CHUNK_BYTES, 3 * CHUNK_BYTES) in origin.fetched
    with pytest.raises(DamageError, match=r"s3://bucket/train_000000.npy: block 4 "):
        shard.read(2 * CHUNK_BYTES, 2 * CHUNK_BYTES + 10)


def test_damage_on_the_way_is_fetched_again_and_never_kept(tmp_path: Path):
    origin = Origin()
    origin.num_broken = 1
    shard = open_shard(tmp_path, origin)
    assert shard.read(0, 1000) == DATA[:1000]
    assert len(origin.fetched) == 2
    origin.num_broken = 2
    with pytest.raises(DamageError, match="block 8 "):
        shard.read(len(DATA) - 200_000, len(DATA) - 199_000)
    assert len(pieces_on_disk(tmp_path)) == 1
    assert shard.read(len(DATA) - 10, len(DATA)) == DATA[-10:]


def test_reading_again_replaces_a_copy_that_is_spoiled(tmp_path: Path):
    origin = Origin()
    shard = open_shard(tmp_path, origin)
    shard.read(0, 10)
    (copy,) = pieces_on_disk(tmp_path)
    copy.write_bytes(bytes(CHUNK_BYTES))
    assert shard.read(0, 10) == bytes(10), "the cache alone proves nothing"
    assert shard.read_again(0, BLOCK_BYTES) == DATA[:BLOCK_BYTES]
    assert copy.read_bytes() == DATA[:CHUNK_BYTES]


def test_what_was_not_proved_is_not_for_readers_who_prove(tmp_path: Path):
    cache = RemoteCache(str(tmp_path), max_bytes=1 << 30, chunk_bytes=CHUNK_BYTES)
    sha256 = hashlib.sha256(DATA).hexdigest()
    trusting = CachedShard(Origin(bytes(len(DATA))), sha256, cache=cache, sums=None)  # type: ignore[arg-type]
    assert trusting.read(0, 10) == bytes(10)
    assert open_shard(tmp_path, Origin()).read(0, 10) == DATA[:10]


def test_without_a_disk_chunks_are_kept_in_memory_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cached_file, "_KEPT_BYTES", 3 * CHUNK_BYTES)
    (tmp_path / "file").touch()
    origin = Origin()
    shard = open_shard(tmp_path / "file", origin)
    logging.disable(logging.WARNING)
    for chunk in (5, 0, 3, 0, 1, 0, 5):
        shard.read(chunk * CHUNK_BYTES, chunk * CHUNK_BYTES + 10)
        kept = [name for name in cached_file._kept if name[0] == str(tmp_path / "file")]
        assert len(kept) <= 3
    logging.disable(logging.NOTSET)
    wait_for_fetches()
    starts = [start // CHUNK_BYTES for start, _ in origin.fetched]
    assert starts.count(0) == 1, "what is used stays"
    assert starts.count(5) == 2


def test_a_table_is_fetched_once_and_proved(tmp_path: Path):
    origin = Origin()
    table = open_table(tmp_path, origin)
    sha256 = hashlib.sha256(DATA).hexdigest()
    assert table.read_all(sha256) == DATA[128:]
    assert table.read(5000, 6000) == DATA[5000:6000]
    other = Origin()
    assert open_table(tmp_path, other).read_all(sha256) == DATA[128:]
    assert (len(origin.fetched), len(other.fetched)) == (1, 0)


@pytest.mark.parametrize("max_bytes", [1 << 30, 0])
def test_a_spoiled_copy_of_a_table_is_replaced(tmp_path: Path, max_bytes: int):
    sha256 = hashlib.sha256(DATA).hexdigest()
    table = open_table(tmp_path, Origin(), max_bytes=max_bytes)
    table.read(0, 10)
    for copy in pieces_on_disk(tmp_path):
        copy.write_bytes(bytes(len(DATA)))
    for key in [key for key in cached_file._kept if key[0] == str(tmp_path)]:
        cached_file._kept[key] = bytes(len(DATA))
    assert table.read_all(sha256) == DATA[128:]


@pytest.mark.parametrize("chunk_blocks", [16, 1])
def test_a_table_that_is_damaged_where_it_is_stored_is_an_error(tmp_path: Path, chunk_blocks: int):
    origin = Origin(DATA[:-1] + b"!")
    cache = RemoteCache(str(tmp_path), 1 << 30, chunk_bytes=chunk_blocks * BLOCK_BYTES)
    sha256 = hashlib.sha256(DATA).hexdigest()
    table = CachedTable(origin, sha256, cache=cache, is_proved=True)  # type: ignore[arg-type]
    with pytest.raises(DamageError, match=r"s3://bucket/.*SHA-256"):
        table.read_all(sha256)
    assert not pieces_on_disk(tmp_path)


def test_a_large_table_that_fits_nowhere_is_read_where_it_is(tmp_path: Path):
    origin = Origin()
    cache = RemoteCache(str(tmp_path), max_bytes=1000, chunk_bytes=BLOCK_BYTES)
    sha256 = hashlib.sha256(DATA).hexdigest()
    table = CachedTable(origin, sha256, cache=cache, is_proved=True)  # type: ignore[arg-type]
    assert table.read_all(sha256) == DATA[128:]
    assert table.read(77, 99) == DATA[77:99]
    assert origin.fetched[-1] == (77, 99)


def test_threads_share_a_shard_on_a_cache_that_is_too_small(tmp_path: Path):
    shard = open_shard(tmp_path, Origin(), max_bytes=2 * CHUNK_BYTES)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(40):
                start = rng.randrange(len(DATA) - 3000)
                assert shard.read(start, start + 3000) == DATA[start : start + 3000]
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_for_fetches()
    assert not failures


def test_a_child_forked_while_a_chunk_is_on_its_way_reads_it_too(tmp_path: Path):
    slow = SlowOrigin()
    shard = open_shard(tmp_path, slow)
    thread = threading.Thread(target=shard.read, args=(0, 10))
    thread.start()
    slow.started.wait()
    child = os.fork()
    if child == 0:
        good = shard.read(5, 10) == DATA[5:10]
        os._exit(0 if good else 1)
    slow.go_on.set()
    thread.join()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


class SlowOrigin(Origin):
    """Waits in the thread that fetches first; a forked child does not know that thread."""

    def __init__(self) -> None:
        super().__init__()
        self.started, self.go_on = threading.Event(), threading.Event()
        self.pid = os.getpid()

    def fetch(self, start: int, stop: int) -> bytes:
        if os.getpid() == self.pid:
            self.started.set()
            self.go_on.wait()
        return super().fetch(start, stop)


def test_what_the_network_refuses_comes_through(tmp_path: Path):
    class Refusing(Origin):
        def fetch(self, start: int, stop: int) -> bytes:
            raise StorageError("s3://bucket/train_000000.npy: permission denied")

    with pytest.raises(StorageError, match="permission denied"):
        open_shard(tmp_path, Refusing()).read(0, 10)
    assert open_shard(tmp_path, Origin()).read(0, 10) == DATA[:10]
