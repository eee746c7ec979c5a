"""Objects on a real S3 server: read exactly, written by one."""

from __future__ import annotations

import os
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rigs.ceph import KEYS
from rigs.cutting_proxy import CuttingProxy, cutting_proxy

from tokenmill import remote
from tokenmill.errors import ConfigError, DamageError, StorageError
from tokenmill.files import list_files, open_input
from tokenmill.remote import stream, uploads
from tokenmill.remote.signing import Credentials, signed_request

if TYPE_CHECKING:
    from rigs.ceph import Ceph

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ceph")]

NUM_RACES = 200


@pytest.fixture
def proxy(ceph: Ceph, s3_place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    with cutting_proxy(ceph.endpoint) as running:
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            monkeypatch.setenv(name, running.endpoint)
        yield running


def test_of_two_attempts_exactly_one_wins(
    s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(uploads, "SINGLE_BYTES", 100)  # so that larger files go the other way
    contents = [b"first" * 50, b"second" * 50]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)
    for race in range(NUM_RACES):
        url = remote.join(s3_place, f"race-{race}")
        barrier, won = threading.Barrier(2), [False, False]

        def attempt(number: int, *, url=url, barrier=barrier, won=won, race=race) -> None:
            barrier.wait()
            if race % 2:
                won[number] = remote.put_object(url, contents[number], new=True)
            else:
                won[number] = remote.upload_file(tmp_path / str(number), url, new=True)

        threads = [threading.Thread(target=attempt, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == [False, True], race
        assert remote.read_object(url) == contents[won.index(True)]


@pytest.mark.parametrize("is_file", [False, True])
def test_an_attempt_whose_answer_is_lost_finds_that_it_has_won(
    is_file: bool, proxy: CuttingProxy, s3_place: str, tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(uploads, "SINGLE_BYTES", 100)
    path = tmp_path / "a"
    path.write_bytes(b"mine" * 100)

    def put(url: str) -> bool:
        if is_file:
            return remote.upload_file(path, url, new=True)
        return remote.put_object(url, path.read_bytes(), new=True)

    remote.list_objects(s3_place)
    if is_file:  # it looks first whether the object is there: let that pass
        monkeypatch.setattr(uploads, "object_info", _once_unharmed(proxy))
    else:
        proxy.cut(1, answer_bytes=0)
    assert put(f"{s3_place}/a")
    assert proxy.num_done == 1
    proxy.cut(0)
    remote.put_object(f"{s3_place}/b", b"theirs")
    assert not put(f"{s3_place}/b")
    proxy.cut(1, answer_bytes=0)
    assert not put(f"{s3_place}/b")
    assert proxy.num_done == 1
    assert remote.read_object(f"{s3_place}/b") == b"theirs"


def _once_unharmed(proxy: CuttingProxy):
    calls: list[str] = []

    def object_info(url: str) -> remote.FileInfo | None:
        found = remote.object_info(url)
        calls.append(url)
        if len(calls) == 1:
            proxy.cut(1, answer_bytes=0)
        return found

    return object_info


DATA = b"".join(b"%07d\n" % number for number in range(25_000))  # 200 kB


@given(
    st.lists(
        st.tuples(st.sampled_from(["go", "on", "end"]), st.integers(0, len(DATA) + 999)),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 30_000),
)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_reads_equal_those_of_the_file(s3_data: str, moves: list[tuple[str, int]], size: int):
    with pytest.MonkeyPatch.context() as patch:
        sizes = {"PIECE": 10_000, "FIRST_PIECE": 3000, "AHEAD": 30_000, "_SMALL_READ": 500}
        for name, value in sizes.items():
            patch.setattr(stream, f"{name}_BYTES", value)
        span = (moves[0][1], moves[0][1] + 50_000)
        with remote.open_object(s3_data, span=span) as file:
            position = 0
            for kind, place in moves:
                if kind != "on":
                    position = max(len(DATA) - place, 0) if kind == "end" else place
                    assert file.seek(position) == file.tell() == position
                assert file.read(size) == DATA[position : position + size]
                position = min(position + size, max(len(DATA), position))


def test_the_usual_files_open_the_store_too(
    ceph: Ceph, s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ceph.environment:
        monkeypatch.delenv(name)
    keys = f"aws_access_key_id = {KEYS[0]}\naws_secret_access_key = {KEYS[1]}\n"
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(f"[lab]\n{keys}")
    (tmp_path / ".aws" / "config").write_text(f"[profile lab]\nendpoint_url = {ceph.endpoint}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert remote.put_object(f"{s3_place}/a", b"1", new=True)
    assert remote.read_object(f"{s3_place}/a") == b"1"


@pytest.fixture
def s3_data(s3_place: str) -> str:
    url = f"{s3_place}/data"
    remote.put_object(url, DATA)
    return url


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (199_999, 200_000), (70_000, 140_000), (5, 5)])
def test_a_range_is_exact(start: int, stop: int, s3_data: str):
    assert remote.read_range(s3_data, start, stop) == DATA[start:stop]


@pytest.mark.parametrize(("start", "stop"), [(199_999, 200_001), (300_000, 300_001)])
def test_a_range_beyond_the_end_is_damage(start: int, stop: int, s3_data: str):
    with pytest.raises(DamageError, match="too short"):
        remote.read_range(s3_data, start, stop)


def test_a_missing_object_is_a_missing_file(s3_place: str):
    with pytest.raises(FileNotFoundError) as caught:
        remote.read_object(f"{s3_place}/none")
    assert caught.value.filename == f"{s3_place}/none"
    assert remote.object_info(f"{s3_place}/none") is None
    with pytest.raises(StorageError, match="no such object"):
        open_input(f"{s3_place}/none")


def test_a_replaced_object_is_noticed(s3_data: str):
    info = remote.object_info(s3_data)
    remote.put_object(s3_data, DATA[::-1])
    with (
        remote.open_object(s3_data, info=info) as file,
        pytest.raises(StorageError, match="was replaced"),
    ):
        file.read(10)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # newer Pythons warn of threads
def test_a_forked_process_reads_and_does_not_hang(s3_data: str):
    assert remote.read_range(s3_data, 0, 8) == DATA[:8]  # obstore has its threads now
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        found = remote.object_info(s3_data)
        same = remote.read_range(s3_data, 8, 16) + remote.read_object(s3_data) == DATA[8:16] + DATA
        os.write(writing, b"yes" if same and found and found.size == len(DATA) else b"no")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        assert file.read() == b"yes"
    assert os.waitpid(child, 0)[1] == 0


def test_places_are_folders_objects_and_globs(s3_place: str):
    names = ["a/x.txt", "a/y.jsonl", "ab.txt", "a/.hidden/z.txt", "a/deep/z.txt", "a/deep/.z.txt"]
    for name in names:
        remote.put_object(f"{s3_place}/{name}", name.encode())

    def found(place: str) -> list[str]:
        return [info.path.removeprefix(s3_place + "/") for info in list_files(place)]

    assert found(f"{s3_place}/a") == found(f"{s3_place}/a/") == [
        "a/deep/z.txt", "a/x.txt", "a/y.jsonl",
    ]  # fmt: skip
    assert found(f"{s3_place}/ab.txt") == ["ab.txt"]
    assert found(f"{s3_place}/a/?.txt") == ["a/x.txt"]
    assert found(f"{s3_place}/**/*.txt") == ["a/deep/z.txt", "a/x.txt", "ab.txt"]
    assert found(f"{s3_place}/a/deep/.*") == ["a/deep/.z.txt"]
    with pytest.raises(ConfigError, match="no object matches"):
        found(f"{s3_place}/a/**/.z.txt")


def test_the_marks_that_other_programs_leave_are_no_objects(ceph: Ceph, s3_place: str):
    root = s3_place.removeprefix(f"s3://{ceph.bucket}/")
    for key in (f"{root}/a/", f"{root}/a/b/", f"{root}/a/b/c.txt", f"{root}/odd//name"):
        put_any_key(ceph, key)
    found = [info.path for info in remote.list_objects(f"{s3_place}/a")]
    assert found == [f"{s3_place}/a/b/c.txt"]
    put_any_key(ceph, f"{root}/empty/")
    assert remote.list_objects(f"{s3_place}/empty") == []
    with pytest.raises(StorageError, match=r"odd//name.*empty path segment"):
        remote.list_objects(f"{s3_place}/odd")


def put_any_key(ceph: Ceph, key: str) -> None:
    """Write an empty object, with a key that obstore would refuse."""
    address, keys = f"{ceph.endpoint}/{ceph.bucket}/{key}", Credentials(*KEYS)
    request = signed_request("PUT", address, credentials=keys, region="us-east-1")
    with urllib.request.urlopen(request, timeout=30):
        pass


def test_deleting_what_is_not_there_is_fine(s3_place: str):
    urls = [f"{s3_place}/{number}" for number in range(3)]
    remote.put_object(urls[1], b"1")
    remote.delete_objects(urls)
    assert remote.list_objects(s3_place) == []


def test_reads_survive_cut_connections(proxy: CuttingProxy, s3_data: str):
    with remote.open_object(s3_data) as file:
        proxy.cut(3, answer_bytes=20_000)
        assert file.read() == DATA
    assert proxy.num_done == 3
    proxy.cut(1, answer_bytes=100_000)
    assert remote.read_object(s3_data) == DATA
    proxy.cut(1, answer_bytes=100)
    assert [info.size for info in remote.list_objects(s3_data.rpartition("/")[0])] == [len(DATA)]


def test_uploads_survive_cut_connections(proxy: CuttingProxy, s3_place: str, tmp_path: Path):
    path = tmp_path / "large"
    path.write_bytes(os.urandom(1 << 16) * 16 * 40)  # 40 MiB: three parts
    for new in (False, True):
        sent: list[int] = []
        remote.list_objects(s3_place)
        proxy.cut(2, request_bytes=5_000_000)
        assert remote.upload_file(path, f"{s3_place}/{new}", new=new, on_bytes=sent.append)
        assert proxy.num_done == 2
        assert new or sum(sent) == path.stat().st_size  # only what was cut was sent again
        proxy.cut(0)
        assert remote.read_object(f"{s3_place}/{new}") == path.read_bytes()
