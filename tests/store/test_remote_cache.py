from __future__ import annotations

import fcntl
import hashlib
import logging
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.errors import ConfigError, DamageError
from tokenmill.store import CacheSettings, remote_cache
from tokenmill.store.remote_cache import RemoteCache, open_cache

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


def piece_name(number: int, size: int) -> str:
    return f"{hashlib.sha256(str(number).encode()).hexdigest()}-0-{size}"


def content(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def put(cache: RemoteCache, number: int, size: int = 1000) -> bool:
    return cache.put(piece_name(number, size), size, [content(number, size)], sync=False)


def read(cache: RemoteCache, number: int, size: int = 1000) -> bytes | None:
    out = bytearray(size)
    found = cache.read_into(piece_name(number, size), memoryview(out), offset=0, size=size)
    return bytes(out) if found else None


def grow_old(folder: Path, seconds: float) -> None:
    """Let every file have been used so long before."""
    for path in folder.rglob("*"):
        if path.is_file():
            times = path.stat().st_mtime - seconds
            os.utime(path, (times, times))


def total(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("[0-9a-f][0-9a-f]/*"))


actions = st.lists(
    st.tuples(
        st.sampled_from(["put", "read", "discard", "kill ledger"]),
        st.integers(0, 12),
    ),
    max_size=60,
)


@given(actions=actions, max_bytes=st.integers(0, 6000))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_the_bound_holds_and_what_is_read_was_put(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]], max_bytes: int
):
    folder = tmp_path_factory.mktemp("cache")
    cache = RemoteCache(str(folder), max_bytes=max_bytes)
    for action, number in actions:
        size = 100 + 150 * number
        if action == "put":
            assert put(cache, number, size) == (size <= max_bytes)
            assert read(cache, number, size) == (
                content(number, size) if size <= max_bytes else None
            )
        elif action == "read":
            assert read(cache, number, size) in {None, content(number, size)}
        elif action == "discard":
            cache.discard(piece_name(number, size))
            assert read(cache, number, size) is None
        elif action == "kill ledger" and max_bytes:
            folder.joinpath("ledger").write_bytes(b"7" * number)
        assert total(folder) == cache.used_bytes() <= max_bytes
        assert max_bytes or not list(folder.iterdir()), "nothing is made for a cache of nothing"


def test_the_piece_that_was_not_used_for_the_longest_time_goes_first(tmp_path: Path):
    cache = RemoteCache(str(tmp_path), max_bytes=10_000)
    for number in range(10):
        grow_old(tmp_path, 10)
        assert put(cache, number)
    assert read(cache, 0) is not None  # used: now it is the youngest
    grow_old(tmp_path, 10)
    assert put(cache, 10)
    left = [number for number in range(11) if read(cache, number) is not None]
    assert left == [0, 2, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("size", [0, 999, 1001])
def test_a_piece_of_another_length_is_not_served(tmp_path: Path, size: int):
    cache = RemoteCache(str(tmp_path), max_bytes=10_000)
    assert put(cache, 1)
    name = piece_name(1, 1000)
    (tmp_path / name[:2] / name).write_bytes((content(1, 1000) + b"x")[:size])
    assert not cache.has(name, 1000)
    assert not cache.read_into(name, memoryview(bytearray(10)), offset=0, size=1000)


def test_a_piece_larger_than_the_cache_drives_nothing_out(tmp_path: Path):
    cache = RemoteCache(str(tmp_path), max_bytes=1500)
    assert put(cache, 1)
    assert not put(cache, 2, 1501)
    assert read(cache, 1) == content(1, 1000)


def test_what_is_damaged_on_its_way_is_not_kept(tmp_path: Path):
    cache = RemoteCache(str(tmp_path), max_bytes=10_000)

    def breaking():
        yield b"some"
        raise DamageError("s3://bucket/a: broken")

    with pytest.raises(DamageError):
        cache.put(piece_name(1, 1000), 1000, breaking(), sync=True)
    assert read(cache, 1) is None
    assert cache.used_bytes() == 0


def test_room_is_held_for_pieces_on_their_way_and_not_for_ever(tmp_path: Path):
    cache = RemoteCache(str(tmp_path), max_bytes=2500)
    assert put(cache, 1)
    (tmp_path / "00").mkdir(exist_ok=True)
    partial = tmp_path / "00" / f".{'0' * 32}-1000.partial"  # a process was killed here
    partial.touch()
    (tmp_path / "ledger").unlink()
    assert put(cache, 2)
    assert read(cache, 1) is None, "2,000 bytes and those on their way are too many"
    grow_old(tmp_path, 3600)
    (tmp_path / "ledger").unlink()
    assert put(cache, 3)
    assert not partial.exists()
    assert read(cache, 2) is not None


def test_files_of_others_are_neither_counted_nor_removed(tmp_path: Path):
    (tmp_path / "ab").mkdir()
    mine = [tmp_path / "thesis.tex", tmp_path / "ab" / "photo.jpg"]
    for path in mine:
        path.write_bytes(b"x" * 5000)
    grow_old(tmp_path, 1e6)
    cache = RemoteCache(str(tmp_path), max_bytes=2000)
    for number in range(5):
        assert put(cache, number)
    assert all(path.stat().st_size == 5000 for path in mine)


def test_a_cache_that_cannot_be_written_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").touch()
    cache = RemoteCache(str(tmp_path / "file" / "cache"), max_bytes=10_000)
    with caplog.at_level(logging.WARNING):
        assert not put(cache, 1)
        assert not put(cache, 2)
        assert read(cache, 1) is None
        with cache.turn("a"):
            pass
    assert len(caplog.records) == 1
    assert "reading without it" in caplog.text


def test_a_disk_without_space_leaves_no_half_of_a_piece(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    process = FORK.Process(target=_fill_small_disk, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "ledger"]


def _fill_small_disk(folder: Path) -> None:
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
    logging.disable()
    cache = RemoteCache(str(folder), max_bytes=10_000)
    assert not put(cache, 1)
    assert cache.used_bytes() == 0


def test_the_cache_leaves_room_on_the_disk_for_others(tmp_path: Path, monkeypatch):
    cache = RemoteCache(str(tmp_path), max_bytes=10_000)
    for number in range(5):
        assert put(cache, number)
    disk = os.statvfs(tmp_path)
    monkeypatch.setattr(remote_cache, "_SPARED_BYTES", disk.f_bavail * disk.f_frsize * 2)
    monkeypatch.setattr(os, "statvfs", lambda _: _Disk(blocks=10**6, free=49_000))
    assert not put(cache, 7, 6000)  # 5,000 are there and 1,000 below what is spared
    assert put(cache, 6), "older pieces made way"
    assert cache.used_bytes() <= 4000


class _Disk:
    f_frsize = 1

    def __init__(self, *, blocks: int, free: int) -> None:
        self.f_blocks = blocks
        self.f_bavail = free


def test_one_process_fetches_and_the_others_find_it(tmp_path: Path):
    cache = RemoteCache(str(tmp_path), max_bytes=10_000)
    fetched = tmp_path / "fetched"
    processes = [
        context.Process(target=_fetch_in_turn, args=(cache, fetched))
        for context in (SPAWN, FORK)
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert fetched.read_text() == "x"


def _fetch_in_turn(cache: RemoteCache, fetched: Path) -> None:
    with cache.turn(piece_name(1, 1000)):
        if read(cache, 1) is None:
            with fetched.open("a") as file:
                file.write("x")
            time.sleep(0.05)
            assert put(cache, 1)


def test_a_turn_that_nobody_gives_back_is_not_waited_for(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(remote_cache, "_TURN_SECONDS", 0.05)
    monkeypatch.setattr(remote_cache, "_LOCK_SECONDS", 0.05)
    monkeypatch.setattr(remote_cache, "_said", set())
    cache = RemoteCache(str(tmp_path), max_bytes=10_000)
    assert put(cache, 1)
    with cache.turn("a"), cache.turn("a"):
        pass
    with (tmp_path / "ledger").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not put(cache, 2)
        assert read(cache, 1) is not None


def test_killed_writers_leave_a_cache_that_works(tmp_path: Path):
    cache = RemoteCache(str(tmp_path), max_bytes=300_000)
    for _ in range(3):
        process = SPAWN.Process(target=_put_for_ever, args=(cache,))
        process.start()
        while not cache.used_bytes():
            assert process.exitcode is None
            time.sleep(0.01)
        time.sleep(0.05)
        process.kill()
        process.join()
    assert cache.used_bytes() <= 300_000
    assert put(cache, -1)
    assert read(cache, -1) == content(-1, 1000)


def _put_for_ever(cache: RemoteCache) -> None:
    number = 0
    while True:
        number += 1
        put(cache, number, 20_000)


def test_threads_and_processes_hold_the_bound_together(tmp_path: Path):
    cache = RemoteCache(str(tmp_path), max_bytes=20_000)
    processes = [
        context.Process(target=_put_and_read, args=(cache, seed))
        for seed, context in enumerate((SPAWN, FORK, FORK))
    ]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        if (tmp_path / "ledger").exists():
            with (tmp_path / "ledger").open() as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # else files move while they are counted
                assert total(tmp_path) <= 20_000
        time.sleep(0.02)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert cache.used_bytes() <= 20_000


def _put_and_read(cache: RemoteCache, seed: int) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        rng = random.Random(100 * seed + number)
        try:
            for _ in range(100):
                piece = rng.randrange(40)
                found = read(cache, piece)
                assert found in {None, content(piece, 1000)}
                if found is None:
                    assert put(cache, piece)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_settings_come_from_the_environment_unless_they_are_given(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    cache = open_cache()
    assert cache == RemoteCache("/somewhere/tokenmill/stores", max_bytes=10 << 30)
    monkeypatch.setenv("TOKENMILL_CACHE_DIR", "/fast")
    monkeypatch.setenv("TOKENMILL_CACHE_MIB", "5")
    monkeypatch.setenv("TOKENMILL_CACHE_CHUNK_KIB", "128")
    assert open_cache() == RemoteCache("/fast", max_bytes=5 << 20, chunk_bytes=128 << 10)
    given = CacheSettings(cache_dir="/given", cache_mib=7)
    assert open_cache(given) == RemoteCache("/given", max_bytes=7 << 20)


@pytest.mark.parametrize("wrong", [{"cache_mib": -1}, {"cache_chunk_kib": 100}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        CacheSettings(**wrong)
