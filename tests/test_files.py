from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tokenmill.errors import ConfigError, StorageError
from tokenmill.files import (
    OutputFile,
    atomic_write,
    list_files,
    open_input,
    storage_error,
    sync_folder,
)


def fail(code: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


class FaultyFile:
    """A raw file that answers a write with what `answer` makes of it."""

    def __init__(self, raw: Any, answer: Callable[[Any, memoryview], int | None]) -> None:
        self.raw, self.answer = raw, answer

    def write(self, view: memoryview) -> int | None:
        return self.answer(self.raw, view)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


def write_badly(path: Path, answer: Callable[[Any, memoryview], int | None], data: bytes) -> None:
    with atomic_write(path) as file:
        file._raw = FaultyFile(file._raw, answer)  # pyright: ignore[reportAttributeAccessIssue]
        file.write(data)


def write_then(path: Path, act: Callable[[], Any]) -> None:
    with atomic_write(path) as file:
        file.write(b"new")
        act()


def throw(error: BaseException) -> None:
    raise error


# -- finding files


def tree(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(name))


def names(place: Path | str, folder: Path) -> list[str]:
    return [info.path.removeprefix(f"{folder}/") for info in list_files(str(place))]


def test_a_folder_is_searched_through_and_sorted_without_hidden_files(tmp_path: Path):
    tree(tmp_path, "b.txt", "a/z.txt", "a/b/c.txt", "a.txt", ".hidden", ".git/config", "a/.x/y")
    assert names(tmp_path, tmp_path) == ["a.txt", "a/b/c.txt", "a/z.txt", "b.txt"]


def test_a_file_is_described_by_size_and_version(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"four")
    os.utime(path, ns=(1, 5))
    (info,) = list_files(str(path))
    assert (info.path, info.size, info.version) == (str(path), 4, "5")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.txt", ["a.txt"]),
        ("*", ["a.txt"]),
        ("*/*.txt", ["x/b.txt"]),
        ("**", ["a.txt", "x/b.txt", "x/y/c.txt", "x/y/d.json"]),
        ("**/*.txt", ["a.txt", "x/b.txt", "x/y/c.txt"]),
        ("x/**/*.txt", ["x/b.txt", "x/y/c.txt"]),
        ("**/y/*", ["x/y/c.txt", "x/y/d.json"]),
        ("**/[cd].*", ["x/y/c.txt", "x/y/d.json"]),
        ("?/**/y/**", ["x/y/c.txt", "x/y/d.json"]),
    ],
)
@pytest.mark.parametrize("is_relative", [False, True])
def test_globs_match_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pattern: str,
    found: list[str],
    is_relative: bool,
):
    tree(tmp_path, "a.txt", "x/b.txt", "x/y/c.txt", "x/y/d.json", ".z/e.txt", "x/.f.txt")
    monkeypatch.chdir(tmp_path)
    assert names(pattern if is_relative else tmp_path / pattern, tmp_path) == found


def test_a_name_that_looks_like_a_glob_is_a_name_if_it_exists(tmp_path: Path):
    tree(tmp_path, "part[1].txt", "part1.txt")
    assert names(tmp_path / "part[1].txt", tmp_path) == ["part[1].txt"]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("gone.txt", "no such file or folder"),
        ("empty", "the folder holds no files"),
        ("*.parquet", "no file matches"),
        ("gone/**/*.txt", "no file matches"),
    ],
)
def test_a_place_without_files_is_refused(tmp_path: Path, place: str, message: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=message):
        list_files(str(tmp_path / place))


def test_linked_folders_are_searched_each_once_by_its_own_name(tmp_path: Path):
    tree(tmp_path, "data/z/a.txt", "elsewhere/b.txt")
    (tmp_path / "data/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/again").symlink_to(tmp_path / "data/z")
    assert names(tmp_path / "data", tmp_path) == ["data/link/b.txt", "data/z/a.txt"]


@pytest.mark.parametrize("place", ["", "**", "**/*.txt"])
def test_links_in_a_circle_give_each_file_once(tmp_path: Path, place: str):
    tree(tmp_path, "x/a.txt", "z.txt")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "x/up").symlink_to("..")
    (tmp_path / "x/itself").symlink_to(".")
    assert names(f"{tmp_path}/{place}".rstrip("/"), tmp_path) == ["x/a.txt", "z.txt"]


@pytest.mark.parametrize("place", ["", "b.txt", "*.txt", "**"])
def test_a_link_to_nothing_is_an_error_that_names_both_ends(tmp_path: Path, place: str):
    tree(tmp_path, "a.txt")
    (tmp_path / "b.txt").symlink_to("gone.txt")
    with pytest.raises(StorageError, match=r"b\.txt: a link to gone\.txt, which is not there"):
        list_files(str(tmp_path / place))


@pytest.mark.parametrize("place", ["", "**/*.txt"])
def test_a_folder_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    tree(tmp_path, "a.txt", "x/b.txt")
    scandir = os.scandir

    def forbidden(folder: str) -> Any:
        if folder.endswith("x"):
            raise PermissionError(errno.EACCES, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(StorageError, match=r"/x: Permission denied(.|\n)*hint"):
        list_files(str(tmp_path / place))


def test_what_cannot_be_read_twice_is_refused(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe", "/dev/null"):
        with pytest.raises(ConfigError, match="not a regular file"):
            list_files(str(place))


def test_a_name_may_hold_a_line_end(tmp_path: Path):
    tree(tmp_path, "a\nb.txt")
    assert names(tmp_path, tmp_path) == ["a\nb.txt"]


def test_a_name_that_metadata_could_not_hold_is_refused(tmp_path: Path):
    name = os.fsdecode(b"caf\xe9.txt")
    try:
        tree(tmp_path, name)
    except OSError:
        pytest.skip("the file system takes UTF-8 names only")
    with pytest.raises(ConfigError, match=r"caf\\xe9\.txt': the name is not UTF-8"):
        list_files(str(tmp_path))


def test_an_input_that_is_gone_is_a_storage_error(tmp_path: Path):
    with pytest.raises(StorageError, match=r"gone\.txt: No such file"):
        open_input(str(tmp_path / "gone.txt"))


def test_an_input_can_be_read_and_searched(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"0123456789")
    with open_input(str(tmp_path / "a")) as file:
        file.seek(4)
        assert file.read(3) == b"456"


# -- writing files


def test_a_file_appears_when_the_block_ends(tmp_path: Path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new ")
        file.write(memoryview(bytearray(b"content")))
        file.write(b"")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new content"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize(
    "error", [ValueError("mine"), KeyboardInterrupt(), OSError(5, "not yours")]
)
def test_a_block_that_fails_leaves_nothing_behind(tmp_path: Path, error: BaseException):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with pytest.raises(type(error)) as caught:
        write_then(path, lambda: throw(error))
    assert caught.value is error
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]


def test_short_writes_are_continued(tmp_path: Path):
    path, data = tmp_path / "a.bin", bytes(range(256)) * 10
    write_badly(path, lambda raw, view: raw.write(view[:100]), data)
    assert path.read_bytes() == data


def test_a_write_that_only_claims_to_have_happened_is_found(tmp_path: Path):
    message = r"a\.bin: 10 bytes were written, but the file holds 0"
    with pytest.raises(StorageError, match=message):
        write_badly(tmp_path / "a.bin", lambda _, view: view.nbytes, bytes(10))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("answer", [0, None])
def test_a_write_that_does_nothing_is_an_error_not_a_loop(tmp_path: Path, answer: int | None):
    with pytest.raises(StorageError, match="accepted none of 10 bytes"):
        write_badly(tmp_path / "a.bin", lambda *_: answer, bytes(10))
    assert list(tmp_path.iterdir()) == []


@contextmanager
def largest_file(num_bytes: int) -> Generator[None]:
    """Limit files inside a test only: around it pytest writes its own output, often to a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_the_system_lets_grow_no_further_is_a_storage_error(tmp_path: Path):
    message = r"a\.bin: File too large(.|\n)*hint"
    with largest_file(1000), pytest.raises(StorageError, match=message):
        write_badly(tmp_path / "a.bin", lambda raw, view: raw.write(view), bytes(3000))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_refused_write_names_the_final_file_and_what_to_do(tmp_path: Path, code: int):
    path = tmp_path / "a.bin"
    with pytest.raises(StorageError) as caught:
        write_badly(path, fail(code), b"x")
    assert caught.value.message == f"{path}: {os.strerror(code)}"
    assert "run the same command again" in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["fsync", "fstat", "replace"])
def test_a_fault_at_the_end_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    path = tmp_path / "a.bin"
    with pytest.raises(StorageError, match=r"a\.bin: .*(.|\n)*hint: the device"):
        write_then(path, lambda: monkeypatch.setattr(os, call, fail(errno.EIO)))
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_a_partial_file_that_cannot_be_removed_does_not_hide_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Path, "unlink", fail(errno.EROFS))
    with pytest.raises(StorageError, match="No space left"):
        write_badly(tmp_path / "a", fail(errno.ENOSPC), b"x")


def test_a_file_is_on_disk_before_its_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.bin"
    synced: list[tuple[str, bool]] = []

    def fsync(descriptor: int) -> None:
        synced.append((str(Path(f"/proc/self/fd/{descriptor}").readlink()), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    with atomic_write(path) as file:
        file.write(b"x")
    assert [(name.endswith(".partial"), exists) for name, exists in synced] == [
        (True, False),
        (False, True),
    ]
    assert synced[1][0] == str(tmp_path)
    with atomic_write(path, sync=False) as file:
        file.write(b"y")
    assert len(synced) == 2


def test_a_new_file_never_overwrites(tmp_path: Path):
    (tmp_path / "a.bin").write_bytes(b"old")
    with pytest.raises(StorageError, match="File exists"):
        OutputFile(tmp_path / "a.bin")


def test_a_folder_that_is_not_there_is_a_storage_error(tmp_path: Path):
    path = tmp_path / "gone" / "a.bin"
    with pytest.raises(StorageError, match=r"/gone/a\.bin: No such file"), atomic_write(path):
        pass
    with pytest.raises(StorageError, match="/gone: No such file"):
        sync_folder(path.parent)


def test_file_systems_that_cannot_sync_a_folder_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "fsync", fail(errno.EINVAL))
    sync_folder(tmp_path)
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(StorageError):
        sync_folder(tmp_path)


def test_an_error_without_a_path_of_its_own_gets_one():
    error = OSError(errno.ENOSPC, "No space left on device", "b")
    assert storage_error(error, "a").message == "a: No space left on device"
    assert storage_error(error).message == "b: No space left on device"
    assert storage_error(OSError("odd")).message == "odd"
