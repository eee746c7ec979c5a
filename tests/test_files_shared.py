from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tokenmill import files
from tokenmill.errors import BusyError, StorageError
from tokenmill.files import exclusive_lock, is_locked, partial_path, publish_new


def fail(code: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


def python(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


# -- publishing


def published(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(params=["hard links", "no hard links"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no hard links":
        monkeypatch.setattr(os, "link", fail(errno.EPERM))


@pytest.mark.usefixtures("links")
def test_only_the_first_attempt_is_published(tmp_path: Path):
    path, first, second = tmp_path / "a", tmp_path / ".1", tmp_path / ".2"
    first.write_text("first")
    second.write_text("second")
    assert publish_new(first, path) is True
    assert publish_new(second, path) is False
    assert path.read_text() == "first"
    assert published(tmp_path) == ["a"]


@pytest.mark.usefixtures("links")
def test_of_many_threads_exactly_one_wins(tmp_path: Path):
    num_threads, num_races = 4, 50
    barrier = threading.Barrier(num_threads)
    wins: list[tuple[int, int]] = []

    def race(thread: int) -> None:
        for number in range(num_races):
            path = tmp_path / f"{number:03d}"
            partial = partial_path(path)
            partial.write_text(str(thread))
            barrier.wait()
            if publish_new(partial, path):
                wins.append((number, thread))

    threads = [threading.Thread(target=race, args=[thread]) for thread in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number, _ in wins) == list(range(num_races))
    assert all((tmp_path / f"{number:03d}").read_text() == str(t) for number, t in wins)
    assert published(tmp_path) == [f"{number:03d}" for number in range(num_races)]


RACE = """
import errno, os, sys
from pathlib import Path
from tokenmill.files import partial_path, publish_new
folder, me, has_links = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "True"
def no_link(*_):
    raise OSError(errno.EPERM, "no links here")
if not has_links:
    os.link = no_link
print("ready", flush=True)
sys.stdin.readline()
for number in range(200):
    path = folder / f"{number:03d}"
    partial = partial_path(path)
    partial.write_text(me)
    if publish_new(partial, path):
        print(number)
"""


@pytest.mark.parametrize("has_links", [True, False])
def test_of_two_processes_exactly_one_wins_each_of_200_races(tmp_path: Path, has_links: bool):
    racers = [python(RACE, tmp_path, me, has_links) for me in range(2)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    wins = [{int(number) for number in racer.communicate()[0].split()} for racer in racers]
    assert wins[0] | wins[1] == set(range(200))
    assert not wins[0] & wins[1]
    assert all((tmp_path / f"{n:03d}").read_text() == str(me) for me in (0, 1) for n in wins[me])
    assert len(published(tmp_path)) == 200


def test_a_link_that_was_made_but_reported_as_taken_is_a_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    link = os.link

    def link_twice(source: Path, target: Path) -> None:  # as NFS does when an answer is lost
        link(source, target)
        link(source, target)

    (tmp_path / ".1").write_text("first")
    monkeypatch.setattr(os, "link", link_twice)
    assert publish_new(tmp_path / ".1", tmp_path / "a") is True
    assert published(tmp_path) == ["a"]


def test_a_failed_publication_removes_the_attempt_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / ".1").write_text("first")
    monkeypatch.setattr(os, "link", fail(errno.ENOSPC))
    with pytest.raises(StorageError, match="/a: No space left on device"):
        publish_new(tmp_path / ".1", tmp_path / "a")
    assert published(tmp_path) == []


# -- locks

HOLDER = """
import sys
from pathlib import Path
from tokenmill.files import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def hold(path: Path) -> None:
    with exclusive_lock(path):
        pass


@contextmanager
def holder(path: Path) -> Generator[subprocess.Popen[str]]:
    process = python(HOLDER, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_second_process_is_told_who_holds_the_lock(tmp_path: Path):
    lock = tmp_path / "lock"
    with holder(lock) as process:
        with pytest.raises(BusyError, match=rf"another run \(pid {process.pid} on "):
            hold(lock)
        assert is_locked(lock)


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_the_lock_is_free_when_its_holder(tmp_path: Path, how: str):
    lock = tmp_path / "lock"
    with holder(lock) as process:
        if how == "is killed":
            process.send_signal(signal.SIGKILL)
        process.communicate("\n")
        assert not is_locked(lock)
        with exclusive_lock(lock):
            assert is_locked(lock)
            assert lock.read_text().startswith(f"pid {os.getpid()} on ")
    assert not is_locked(lock)


def test_one_process_cannot_take_the_lock_twice(tmp_path: Path):
    lock = tmp_path / "lock"
    with exclusive_lock(lock), pytest.raises(BusyError), exclusive_lock(lock):
        pass
    assert not is_locked(lock)


FORKER = """
import os, sys
from pathlib import Path
from tokenmill.files import exclusive_lock, is_locked
lock = Path(sys.argv[1])
reader, writer = os.pipe()
with exclusive_lock(lock):
    if not os.fork():
        os.close(writer)
        os.read(reader, 1)  # until the parent ends
        os._exit(0)
print(is_locked(lock))
"""


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path):
    output, _ = python(FORKER, tmp_path / "lock").communicate()
    assert output == "False\n"


def test_looking_at_a_lock_keeps_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lock = tmp_path / "lock"
    lock.touch()
    looker = lock.open("rb")
    fcntl.flock(looker, fcntl.LOCK_SH)
    monkeypatch.setattr(files.time, "sleep", lambda _: looker.close())
    with exclusive_lock(lock):
        assert looker.closed


def test_no_lock_file_means_not_locked(tmp_path: Path):
    assert not is_locked(tmp_path / "lock")


def test_a_lock_that_cannot_be_made_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(StorageError, match="/gone/lock: No such file"):
        hold(tmp_path / "gone" / "lock")
    monkeypatch.setattr(fcntl, "flock", fail(errno.ENOSYS))
    with pytest.raises(StorageError, match=r"lock: cannot be locked: Function not implemented"):
        hold(tmp_path / "lock")
    with pytest.raises(StorageError, match="Function not implemented"):
        is_locked(tmp_path / "lock")
