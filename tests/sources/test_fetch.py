"""Fetching: the right file or a clear error, never a wrong file under the final name."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from web import File, Web, serve

from tokenmill.errors import BusyError, ConfigError, DamageError, StorageError
from tokenmill.files import OutputFile, exclusive_lock
from tokenmill.progress import Event
from tokenmill.sources import WELL_KNOWN, fetch
from tokenmill.sources import http as web_client

DATA = bytes(range(256)) * 400
SHA256 = hashlib.sha256(DATA).hexdigest()
STRACE = shutil.which("strace")


@pytest.fixture(autouse=True)
def without_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_client, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(web_client, "LONGEST_PAUSE_SECONDS", 0.002)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def web() -> Generator[Web]:
    with serve() as server:
        yield server


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("sha256", [SHA256, SHA256.upper(), f"sha256:{SHA256}", None])
def test_a_file_arrives_whole(web: Web, tmp_path: Path, sha256: str | None, framing: str):
    web.files["/a/in put.txt"] = web.files["/a/in%20put.txt"] = File(DATA, framing=framing)
    events: list[Event] = []
    found = fetch(f"{web.url}/a/in%20put.txt?x=1", tmp_path, sha256=sha256, report=events.append)
    assert found.path.read_bytes() == DATA
    assert (found.num_bytes, found.sha256) == (len(DATA), SHA256)
    assert found.is_proved is (sha256 is not None)
    assert names(tmp_path) == ["in put.txt"]
    assert events[-1].done == len(DATA)


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_server_that_cuts_connections_is_asked_again(
    web: Web, tmp_path: Path, framing: str, sha256: str | None
):
    web.files["/f"] = File(DATA, cut_after=30_000, framing=framing)
    assert fetch(f"{web.url}/f", tmp_path / "f", sha256=sha256).path.read_bytes() == DATA
    assert web.ranges() == [None, "bytes=30000-", "bytes=60000-", "bytes=90000-"]
    assert names(tmp_path) == ["f"]


def test_a_server_without_ranges_is_read_from_the_start(web: Web, tmp_path: Path):
    web.files["/f"] = File(DATA, ranges=False, cut_after=30_000, num_cuts=3)
    assert fetch(f"{web.url}/f", tmp_path / "f").path.read_bytes() == DATA
    web.files["/g"] = File(DATA, ranges=False, cut_after=30_000)
    with pytest.raises(StorageError, match="the connection was cut at 30,000 of 102,400 bytes"):
        fetch(f"{web.url}/g", tmp_path / "g")
    assert not (tmp_path / "g").exists()


def test_what_ends_with_the_connection_needs_a_hash(web: Web, tmp_path: Path):
    web.files["/f"] = File(DATA, framing="close")
    with pytest.raises(StorageError, match="does not say how long the file is") as caught:
        fetch(f"{web.url}/f", tmp_path / "f")
    assert "--sha256" in str(caught.value)
    assert fetch(f"{web.url}/f", tmp_path / "f", sha256=SHA256).path.read_bytes() == DATA
    web.files["/g"] = File(DATA, framing="close", cut_after=1000, ranges=False)
    with pytest.raises(DamageError, match="nothing was kept"):
        fetch(f"{web.url}/g", tmp_path / "g", sha256=SHA256)
    assert not (tmp_path / "g").exists()


def test_wrong_bytes_are_an_error_and_leave_nothing(web: Web, tmp_path: Path):
    wrong = bytearray(DATA)
    wrong[777] ^= 1
    web.files["/f"] = File(bytes(wrong))
    with pytest.raises(DamageError, match="102,400 bytes with sha256") as caught:
        fetch(f"{web.url}/f", tmp_path / "f", sha256=SHA256)
    assert SHA256 in str(caught.value)
    assert not (tmp_path / "f").exists()
    assert not (tmp_path / ".f.fetch" / "part").exists()
    web.files["/f"] = File(DATA)
    assert fetch(f"{web.url}/f", tmp_path / "f", sha256=SHA256).path.read_bytes() == DATA


def test_a_file_that_changes_half_way_is_never_mixed(web: Web, tmp_path: Path):
    other = DATA[::-1]
    file = web.files["/f"] = File(other, etag='"old"', cut_after=30_000, num_cuts=1)

    def change() -> None:
        if len(web.requests) == 2:
            file.data, file.etag = DATA, '"new"'

    file.on_request = change
    assert fetch(f"{web.url}/f", tmp_path / "f").path.read_bytes() == DATA
    assert web.requests[1][1]["If-Range"] == '"old"'


def test_pieces_that_do_not_fit_are_fetched_once_more(web: Web, tmp_path: Path):
    """A server without validators, which changes the file between two connections."""
    file = web.files["/f"] = File(DATA[::-1], etag=None, cut_after=30_000, num_cuts=1)

    def change() -> None:
        if len(web.requests) == 2:
            file.data = DATA

    file.on_request = change
    assert fetch(f"{web.url}/f", tmp_path / "f", sha256=SHA256).path.read_bytes() == DATA
    assert web.ranges() == [None, "bytes=30000-", None]


def test_without_validator_and_hash_nothing_left_is_continued(web: Web, tmp_path: Path):
    web.files["/f"] = File(DATA, etag=None, cut_after=30_000, ranges=False)
    with pytest.raises(StorageError):
        fetch(f"{web.url}/f", tmp_path / "f")
    web.requests.clear()
    web.files["/f"] = File(DATA, etag=None)
    assert fetch(f"{web.url}/f", tmp_path / "f").path.read_bytes() == DATA
    assert web.ranges() == [None]


def test_a_redirect_is_followed_but_not_with_the_password(web: Web, tmp_path: Path):
    other = web.url.replace("127.0.0.1", "localhost")
    web.files["/old"] = File(redirect=f"{other}/new")
    web.files["/new"] = File(DATA)
    response = web_client.open_url(f"{web.url}/old", headers={"Authorization": "Bearer secret"})
    with response:
        assert response.total == len(DATA)
    (_, first), (_, second) = web.requests
    assert first["Authorization"] == "Bearer secret"
    assert "Authorization" not in second
    assert fetch(f"{web.url}/old", tmp_path).path == tmp_path / "old"


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://host/file", "data:,x"])
def test_a_redirect_away_from_the_web_is_refused(web: Web, tmp_path: Path, target: str):
    web.files["/f"] = File(redirect=target)
    with pytest.raises(StorageError):
        fetch(f"{web.url}/f", tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_a_redirect_in_a_circle_ends(web: Web, tmp_path: Path):
    web.files["/f"] = File(redirect=f"{web.url}/f")
    with pytest.raises(StorageError):
        fetch(f"{web.url}/f", tmp_path / "f")


def test_404_is_a_mistake_of_the_caller(web: Web, tmp_path: Path):
    with pytest.raises(ConfigError, match="404") as caught:
        fetch(f"{web.url}/missing?key=secret", tmp_path / "f")
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "f").exists()
    assert len(web.requests) == 1


def test_a_busy_server_is_asked_again(web: Web, tmp_path: Path):
    web.files["/f"] = File(DATA, statuses=[(503, {}), (429, {"Retry-After": "0"}), (500, {})])
    assert fetch(f"{web.url}/f", tmp_path / "f").path.read_bytes() == DATA
    web.files["/g"] = File(DATA, statuses=[(503, {})] * 100)
    with pytest.raises(StorageError, match="503"):
        fetch(f"{web.url}/g", tmp_path / "g")
    assert len([path for path, _ in web.requests if path == "/g"]) == web_client.MAX_TRIES


def test_forbidden_is_not_asked_again(web: Web, tmp_path: Path):
    web.files["/f"] = File(DATA, token="secret")
    with pytest.raises(StorageError, match="401") as caught:
        fetch(f"{web.url}/f", tmp_path / "f")
    assert "HF_TOKEN" in str(caught.value)
    assert len(web.requests) == 1


def test_no_network_is_said_clearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unknown(*arguments: object, **options: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(StorageError, match="the host cannot be found") as caught:
        fetch("tinyshakespeare", tmp_path / "f")
    assert "network" in str(caught.value)
    assert not (tmp_path / "f").exists()


def test_nobody_at_home_is_said_clearly(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(StorageError, match="refused"):
        fetch(f"http://127.0.0.1:{port}/f", tmp_path / "f")


def test_a_server_that_falls_silent_is_not_waited_for(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(web_client, "TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(web_client.TransientError, "max_tries", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(StorageError, match="no answer in time"):
            fetch(f"http://127.0.0.1:{port}/f", tmp_path / "f")


def test_a_file_that_is_there_is_not_fetched_again(web: Web, tmp_path: Path):
    path = tmp_path / "f"
    path.write_bytes(DATA)
    assert fetch(f"{web.url}/f", path, sha256=SHA256).was_present
    path.write_bytes(b"mine")
    assert fetch(f"{web.url}/f", path).was_present
    with pytest.raises(ConfigError, match="is there with other content"):
        fetch(f"{web.url}/f", path, sha256=SHA256)
    assert path.read_bytes() == b"mine"
    assert not web.requests


def test_a_file_that_appears_meanwhile_is_not_written_over(web: Web, tmp_path: Path):
    path = tmp_path / "f"
    file = web.files["/f"] = File(DATA)
    file.on_request = lambda: path.write_bytes(b"mine")
    with pytest.raises(ConfigError, match="is there with other content"):
        fetch(f"{web.url}/f", path, sha256=SHA256)
    assert path.read_bytes() == b"mine"


def test_two_at_once_are_refused(web: Web, tmp_path: Path):
    (tmp_path / ".f.fetch").mkdir()
    with exclusive_lock(tmp_path / ".f.fetch" / "lock"), pytest.raises(BusyError):
        fetch(f"{web.url}/f", tmp_path / "f")


def test_an_interrupted_fetch_goes_on(web: Web, tmp_path: Path):
    web.files["/f"] = File(DATA, cut_after=50_000, statuses=[])

    def stop(event: Event) -> None:
        if event.done >= 50_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(f"{web.url}/f", tmp_path / "f", report=stop)
    assert not (tmp_path / "f").exists()
    web.requests.clear()
    assert fetch(f"{web.url}/f", tmp_path / "f").path.read_bytes() == DATA
    assert web.ranges()[0] == "bytes=50000-"
    assert names(tmp_path) == ["f"]


@pytest.mark.parametrize("damage", ["cut part", "no part", "cut state", "other url"])
def test_leftovers_that_do_not_fit_are_not_used(web: Web, tmp_path: Path, damage: str):
    web.files["/f"] = web.files["/other"] = File(DATA, cut_after=50_000, num_cuts=1)
    stop = [KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        fetch(
            f"{web.url}/f",
            tmp_path / "f",
            report=lambda event: (_ for _ in ()).throw(stop.pop()) if event.done and stop else None,
        )
    work = tmp_path / ".f.fetch"
    if damage == "cut part":
        os.truncate(work / "part", 10)
    elif damage == "no part":
        (work / "part").unlink()
    elif damage == "cut state":
        os.truncate(work / "state.json", 10)
    web.requests.clear()
    url = f"{web.url}/other" if damage == "other url" else f"{web.url}/f"
    assert fetch(url, tmp_path / "f").path.read_bytes() == DATA
    assert web.ranges()[0] is None


@pytest.mark.skipif(
    STRACE is None, reason="STRACE IS MISSING: faults are not tested (apt-get install strace)"
)
@pytest.mark.parametrize("call", ["rename:1", "rename:2", "link:1", "unlink:2", "fsync:2"])
def test_a_killed_fetch_goes_on(web: Web, tmp_path: Path, call: str):
    """Killed at its changes to the disk, while the server cuts each answer."""
    name, number = call.split(":")
    web.files["/f"] = File(DATA, cut_after=60_000)
    program = f"from tokenmill.sources import fetch; fetch({web.url + '/f'!r}, 'f')"
    inject = f"{name}:signal=KILL:when={number}"
    tracing = ["-f", "-qq", "-o", os.devnull, "-e", f"trace={name}", "-e", f"inject={inject}"]
    arguments = [str(STRACE), *tracing, sys.executable, "-c", program]
    killed = subprocess.run(arguments, cwd=tmp_path, capture_output=True, check=False, timeout=60)
    assert killed.returncode == -9
    path = tmp_path / "f"
    assert not path.exists() or path.read_bytes() == DATA
    assert fetch(f"{web.url}/f", path, sha256=SHA256).path.read_bytes() == DATA
    assert [n for n in names(tmp_path) if n != ".f.fetch"] == ["f"]


def test_a_full_disk_is_a_storage_error(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    web.files["/f"] = File(DATA)

    def full(self: OutputFile, data: bytes) -> None:
        raise StorageError("No space left on device")

    monkeypatch.setattr(OutputFile, "write", full)
    with pytest.raises(StorageError, match="No space left"):
        fetch(f"{web.url}/f", tmp_path / "f")
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("name", "sha256"),
    [("no-such-text", None), ("file:///etc/passwd", None), ("tinyshakespeare", "abc")],
)
def test_a_mistake_is_said_before_anything_is_made(tmp_path: Path, name: str, sha256: str | None):
    with pytest.raises(ConfigError):
        fetch(name, tmp_path / "f", sha256=sha256)


def test_an_address_without_a_name_needs_one(web: Web, tmp_path: Path):
    with pytest.raises(ConfigError, match="no name of its own"):
        fetch(f"{web.url}/", tmp_path)


def test_the_list_holds_what_is_promised():
    assert {"tinyshakespeare", "tinystories-train", "tinystories-valid"} <= set(WELL_KNOWN)
    golden = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    assert WELL_KNOWN["tinyshakespeare"].sha256 == golden
    assert WELL_KNOWN["tinyshakespeare"].num_bytes == 1_115_394
    for text in WELL_KNOWN.values():
        assert text.url.startswith("https://")
        assert len(text.sha256) == 64
