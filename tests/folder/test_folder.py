"""The seam between a run and the place it writes to: a disk and an object store do the same."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tokenmill.errors import BusyError, ConfigError, StorageError
from tokenmill.folder import Folder, map_ahead, open_folder
from tokenmill.folder.scratch import scratch_path

if TYPE_CHECKING:
    from rigs.ceph import Ceph

on_ceph = [pytest.mark.cluster, pytest.mark.xdist_group("ceph")]


@pytest.fixture(params=["disk", pytest.param("object store", marks=on_ceph)])
def folder(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Folder:
    if request.param == "disk":
        return open_folder(tmp_path / "a" / "folder")
    ceph: Ceph = request.getfixturevalue("ceph")
    for name, value in ceph.environment.items():
        monkeypatch.setenv(name, value)
    return open_folder(f"{ceph.url('folder')}/")


def test_a_new_folder_holds_nothing(folder: Folder):
    assert not folder.holds("")
    assert not folder.holds("_run")
    assert folder.sizes("docs") == {}
    assert folder.size("docs/a") is None
    with pytest.raises(FileNotFoundError):
        folder.read("docs/a")
    folder.remove("docs/a")
    folder.remove_folder("docs")


def test_what_is_written_is_there_under_its_name(folder: Folder):
    folder.make("", "docs", "_run/parts")
    folder.write("docs/b", b"second")
    folder.write("docs/a", b"first")
    folder.write("docs/a", b"replaced", sync=False)
    folder.write("_run/parts/x", b"")
    assert folder.holds("")
    assert folder.holds("_run")
    assert folder.read("docs/a") == b"replaced"
    with folder.open("docs/a") as lines:
        assert lines.readlines() == [b"replaced"]
    assert folder.size("docs/b") == 6
    assert list(folder.sizes("docs").items()) == [("a", 8), ("b", 6)]
    assert folder.sizes("") == {}  # what is right in it, not what is below
    assert folder.where("docs/a") == f"{folder.place}/docs/a"


def test_files_go_and_others_stay(folder: Folder):
    folder.make("docs", "docs2")
    for name in ("docs/a", "docs/b", "docs/c", "docs2/a"):
        folder.write(name, b"x")
    folder.remove("docs/a", "docs/b", "docs/gone")
    assert folder.sizes("docs") == {"c": 1}
    folder.remove_folder("docs")
    assert folder.sizes("docs") == {}
    assert folder.sizes("docs2") == {"a": 1}


def test_of_many_attempts_at_a_new_name_one_wins(folder: Folder):
    folder.make("docs")
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: folder.write_new("docs/a", b"%d" % i), range(8)))
    assert sum(won) == 1
    assert folder.read("docs/a") == b"%d" % won.index(True)


def test_a_draft_has_its_name_only_when_it_is_published(folder: Folder):
    folder.make("docs")
    with folder.create("docs/a") as draft:
        draft.write(b"12")
        draft.write(memoryview(b"345"))
        assert folder.size("docs/a") is None
        draft.publish()
    assert draft.num_bytes == 5
    assert folder.read("docs/a") == b"12345"
    with folder.create("docs/b") as draft:
        draft.write(b"12")
    assert list(folder.sizes("docs")) == ["a"]


def test_a_published_draft_leaves_nothing_on_this_machine(folder: Folder):
    folder.make("docs")
    draft = folder.create("docs/a")
    draft.write(b"12")
    draft.publish()
    assert [path.name for path in scratch_path("").parent.iterdir()] == ["lock"]
    assert list(folder.sizes("docs")) == ["a"]


def test_a_reader_gives_any_range_whatever_it_was_told_to_expect(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokenmill.folder.remote.AHEAD_BYTES", 1000)
    folder.make("docs")
    data = bytes(range(256)) * 100
    folder.write("docs/a", data)
    reader = folder.reader("docs/a")
    ranges = [(0, 10), (10, 300), (25_000, 600), (100, 1), (0, 25_600)]
    ranges += [(start, 700) for start in range(3_000, 9_000, 700)]
    for expected in (None, (0, 25_600), (20, 40), (5_000, 6_000)):
        for keep in (False, True):
            if expected is not None:
                reader.expect(*expected, keep=keep)
            for start, size in ranges:
                assert reader.read(start, size) == data[start : start + size]
    with pytest.raises(FileNotFoundError):
        folder.reader("docs/gone").read(0, 1)


def test_a_log_grows_line_by_line(folder: Folder):
    folder.make("")
    for number in range(5):
        folder.append("log", b"%d\n" % number)
    again = open_folder(folder.place)
    again.append("log", b"5\n")
    assert folder.read("log").split() == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_a_lock_is_held_by_one_at_a_time(folder: Folder):
    folder.make("_run")
    other = open_folder(folder.place)
    assert folder.holder("_run/lock") is None
    with folder.lock("_run/lock"):
        assert (folder.holder("_run/lock") or "").startswith("pid ")
        folder.check_lock("_run/lock")
        with pytest.raises(BusyError, match="in use by another run"), other.lock("_run/lock"):
            pass
    assert folder.holder("_run/lock") is None
    with other.lock("_run/lock"):
        assert folder.holder("_run/lock") is not None


def test_a_store_that_does_not_tell_of_cut_uploads_is_used_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def refuse(*_: object, **__: object) -> int:
        raise StorageError("not allowed")

    monkeypatch.setattr("tokenmill.folder.remote.abort_uploads", refuse)
    open_folder("s3://bucket/a").sweep("")
    assert "not looked for: not allowed" in caplog.text


@pytest.mark.parametrize("place", [Path("s3://bucket/a"), "gs://bucket/a", "hf://org/name"])
def test_a_place_that_cannot_be_written_to_is_refused(place: str | Path):
    with pytest.raises(ConfigError, match="expected a folder or s3://bucket/prefix"):
        open_folder(place)


def test_a_url_with_a_password_is_refused_without_repeating_it():
    with pytest.raises(ConfigError) as caught:
        open_folder("s3://key:pass-4711@bucket/a")
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_results_that_are_made_ahead_come_in_order(num_threads: int):
    made: list[int] = []

    def double(item: int) -> int:
        made.append(item)
        return 2 * item

    results = map_ahead(double, iter(range(10)), num_threads=num_threads)
    assert next(results) == 0
    assert len(made) <= num_threads
    assert list(results) == [2 * item for item in range(1, 10)]
