"""Stores in a real S3 server: opened, verified, consolidated, and from the command line."""

from __future__ import annotations

import http.client
import multiprocessing
import shutil
import threading
import time
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from msgspec import UNSET

from tokenmill.errors import ConfigError, DamageError, NotAStoreError, SettingsChangedError
from tokenmill.remote import (
    delete_objects,
    join,
    list_objects,
    put_object,
    read_object,
    upload_file,
)
from tokenmill.store import (
    CacheSettings,
    ConsolidateSettings,
    Metadata,
    consolidate,
    consolidation_target,
    open_store,
    read_metadata,
    verify,
)

if TYPE_CHECKING:
    from rigs.ceph import Ceph

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ceph")]

SEQ_LEN = 64
SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture(scope="module")
def local(build_store: Callable[..., Metadata], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in a folder: two splits, three shards of some blocks each, and rejects."""
    folder = tmp_path_factory.mktemp("local") / "store"
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 900, size=400).tolist()
    documents = [rng.integers(2, 60_000, size=length).tolist() for length in lengths]
    build_store(
        folder,
        {"train": documents, "val": documents[:30]},
        shard_tokens=80_000,
        num_ids=60_000,
        rejects=b'{"reason": "bad"}\n',
    )
    return folder


@pytest.fixture
def url(local: Path, s3_place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The same store in the object store, for this test alone, and an empty cache."""
    monkeypatch.setenv("TOKENMILL_CACHE_DIR", str(tmp_path / "cache"))
    for path in sorted(local.rglob("*")):
        if path.is_file():
            upload_file(path, join(s3_place, *path.relative_to(local).parts))
    return s3_place


def flip(url: str, place: int) -> None:
    data = bytearray(read_object(url))
    data[place] ^= 1
    put_object(url, bytes(data))


def test_a_remote_store_is_what_the_folder_is(local: Path, url: str):
    here, there = open_store(local), open_store(f"{url}/")
    assert there.digest == here.digest
    assert there.path == url
    assert there.describe().replace(url, "") == here.describe().replace(str(local), "")
    for name in here.splits:
        size = here.splits[name].num_tokens
        assert np.array_equal(there.read(0, size, split=name), here.read(0, size, split=name))
        for index in (0, 17, here.splits[name].num_documents - 1):
            mine, other = there.document(index, name), here.document(index, name)
            assert (mine.start, mine.source, mine.position) == (
                other.start,
                other.source,
                other.position,
            )
            assert np.array_equal(mine.ids, other.ids)
    assert there.tokenizer_definition() == here.tokenizer_definition()


@pytest.mark.parametrize("mode", ["size", "off"])
def test_a_relaxed_reader_reads_the_same_without_proof(local: Path, url: str, mode: Any):
    assert np.array_equal(
        open_store(url, verify=mode).read(79_000, 81_000), open_store(local).read(79_000, 81_000)
    )
    flip(join(url, "train_000000.npy"), 100_000)
    store = open_store(url, verify=mode, cache=CacheSettings(cache_mib=0))
    assert not np.array_equal(store.read(0, 80_000), open_store(local).read(0, 80_000))


def test_what_is_missing_or_cut_is_found_when_the_store_is_opened(url: str):
    name = join(url, "docs/train_000001.npy")
    whole = read_object(name)
    delete_objects([name])
    with pytest.raises(DamageError, match=f"{name}: is missing"):
        open_store(url)
    put_object(name, whole[:-1])
    with pytest.raises(DamageError, match=f"is {len(whole) - 1} bytes long, expected {len(whole)}"):
        open_store(url)
    assert open_store(url, verify="off").num_tokens > 0
    put_object(name, whole)
    open_store(url)


def test_a_place_without_a_store_says_so(s3_place: str):
    with pytest.raises(NotAStoreError, match=r"has no metadata\.json"):
        open_store(s3_place)
    put_object(join(s3_place, "_run/events.jsonl"), b"{}")
    with pytest.raises(NotAStoreError, match="its run is in progress") as caught:
        open_store(s3_place)
    assert f"tokenmill status {s3_place}" in (caught.value.hint or "")


def test_a_url_that_went_through_a_path_is_refused():
    with pytest.raises(ConfigError, match="went through a Path"):
        open_store(Path("s3://bucket/store"))
    with pytest.raises(ConfigError, match="expected a folder or s3://"):
        open_store("gs://bucket/store")


def test_another_store_at_the_same_url_never_mixes_with_the_one_before(
    url: str, build_store: Callable[..., Metadata], tmp_path: Path
):
    before = open_store(url)
    first = before.read(0, 1000)
    other = tmp_path / "other"
    build_store(other, {"train": [[7] * 100_000]}, shard_tokens=80_000, num_ids=60_000)
    for path in sorted(other.rglob("*")):
        if path.is_file():
            upload_file(path, join(url, *path.relative_to(other).parts))
    after = open_store(url)
    assert after.read(0, 1000).tolist() == [7] * 1000
    assert np.array_equal(before.read(0, 1000), first), "what is cached is still the first store"
    with pytest.raises(DamageError, match=r"(checksum|SHA-256|long, expected)"):
        before.read(80_000, 159_000)


@pytest.mark.parametrize("level", ["structure", "sample", "full"])
def test_verification_finds_no_fault_with_a_good_store(local: Path, url: str, level: str):
    here, there = verify(local, level), verify(url, level)
    assert there.problems == ()
    assert (there.path, there.num_files, there.num_bytes) == (url, here.num_files, here.num_bytes)


@pytest.mark.parametrize(
    ("file", "place", "problem"),
    [
        ("train_000001.npy", 100_000, "SHA-256 is not the one in the metadata; block 1"),
        ("blocks/train_000001.npy", 140, "SHA-256"),
        ("docs/val_000000.npy", 200, "SHA-256"),
        ("tokenizer.json", 3, "SHA-256"),
        ("rejects.jsonl", 3, "SHA-256"),
        ("metadata.json", 300, "checksum"),
    ],
)
def test_verification_reads_the_store_itself_and_not_the_cache(
    url: str, file: str, place: int, problem: str
):
    store = open_store(url)
    for name, split in store.splits.items():
        store.read(0, split.num_tokens, split=name)
        store.document(3, name)
    flip(join(url, file), place)
    report = verify(url, "full")
    assert [found.file for found in report.problems] == [file]
    assert problem in report.problems[0].problem


def test_verification_lists_what_is_missing_cut_long_or_foreign(url: str):
    metadata = read_object(join(url, "docs/train_000000.npy"))
    delete_objects([join(url, "train_000000.npy")])
    put_object(join(url, "docs/train_000000.npy"), metadata + b"x")
    put_object(join(url, "blocks/train_000001.npy"), b"short")
    put_object(join(url, "train_000009.npy"), b"foreign")
    for level in ("structure", "full"):
        found = {problem.file: problem.problem for problem in verify(url, level).problems}
        assert found["train_000000.npy"] == "is missing"
        assert "bytes long, expected" in found["docs/train_000000.npy"]
        assert "is 5 bytes long, expected" in found["blocks/train_000001.npy"]
        assert found["train_000009.npy"] == "not listed in the metadata"
        assert len(found) == 4


def test_consolidating_makes_the_files_of_the_folder(
    local: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "copy"
    shutil.copytree(local, folder)
    settings = ConsolidateSettings(seq_len=SEQ_LEN, workers=2)
    expected = consolidate(folder, settings)
    made = consolidate(url, settings)
    assert made.splits == expected.splits
    for file in ("tokens.bin", "sample_ids.bin", "val_tokens.bin", "val_sample_ids.bin"):
        assert read_object(join(url, file)) == (folder / file).read_bytes()
    assert read_metadata(url).splits == read_metadata(folder).splits
    assert verify(url, "full").problems == ()
    scratch = tmp_path / "cache" / "consolidate"
    assert [p.name for p in scratch.rglob("*") if p.is_file()] == ["lock"], "nothing is left here"
    again = consolidate(url, settings)
    assert all(split.was_complete for split in again.splits)
    with pytest.raises(SettingsChangedError, match=f"{url}/tokens.bin"):
        consolidate(url, ConsolidateSettings(seq_len=32))


def test_a_killed_consolidation_continues_and_leaves_the_store_whole(
    local: Path, url: str, tmp_path: Path
):
    process = SPAWN.Process(target=consolidate_and_wait, args=(url,))
    process.start()
    while not list(tmp_path.glob("cache/consolidate/*/tokens.bin")):
        process.join(0.01)
        assert process.is_alive()
    process.kill()  # it holds the lock, and was about to send
    process.join()
    assert verify(url, "full").problems == ()
    assert read_metadata(url).splits["train"].consolidated is UNSET
    consolidate(url, ConsolidateSettings(seq_len=SEQ_LEN, workers=1, splits=("train",)))
    ids = open_store(local).read(0, open_store(local).splits["train"].num_tokens)
    assert read_object(join(url, "tokens.bin")) == ids.tobytes()
    assert verify(url, "full").problems == ()


def consolidate_and_wait(url: str) -> None:
    """Consolidate, with time to be killed when the files are made and before they are sent."""
    consolidation_target.upload_file = lambda *_: time.sleep(60)
    consolidate(url, ConsolidateSettings(seq_len=SEQ_LEN, workers=1, splits=("train",)))


def test_shards_are_deleted_only_when_the_rest_proves_them(local: Path, url: str):
    settings = ConsolidateSettings(seq_len=SEQ_LEN, workers=2)
    consolidate(url, settings)
    flip(join(url, "tokens.bin"), 5)
    deleting = ConsolidateSettings(seq_len=SEQ_LEN, workers=2, delete_shards=True)
    with pytest.raises(DamageError, match="no shard was deleted"):
        consolidate(url, deleting)
    assert join(url, "train_000000.npy") in {info.path for info in list_objects(url)}
    delete_objects([join(url, "tokens.bin")])  # then it is made again
    report = consolidate(url, deleting)
    assert report.num_deleted_shards == len(list(local.glob("*.npy")))
    names = {info.path.removeprefix(f"{url}/") for info in list_objects(url)}
    assert not [name for name in names if name.endswith(".npy") and "/" not in name]
    store, here = open_store(url), open_store(local)
    for name, split in here.splits.items():
        expected = here.read(0, split.num_tokens, split=name)
        assert np.array_equal(store.read(0, split.num_tokens, split=name), expected)
        assert np.array_equal(store.read(79_990, 80_010, split="train"), here.read(79_990, 80_010))
    assert verify(url, "full").problems == ()
    flip(join(url, "tokens.bin"), 200_000)
    assert [problem.file for problem in verify(url, "full").problems] == ["tokens.bin"]
    fresh = open_store(url, cache=CacheSettings(cache_mib=0))
    with pytest.raises(DamageError, match=f"{url}/tokens.bin: train_000001.npy in it: block 0"):
        fresh.read(80_000, 120_000)


def test_files_that_nobody_knows_are_not_overwritten(url: str):
    put_object(join(url, "tokens.bin"), b"somebody's")
    with pytest.raises(ConfigError, match=f"{url}/tokens.bin: is there, and"):
        consolidate(url, ConsolidateSettings(seq_len=SEQ_LEN))
    assert read_object(join(url, "tokens.bin")) == b"somebody's"


@pytest.fixture
def counted(ceph: Ceph, monkeypatch: pytest.MonkeyPatch) -> Generator[list[tuple[str, str]]]:
    """Put a proxy before the server; gives the method and path of every request."""
    requests: list[tuple[str, str]] = []
    target = urlsplit(ceph.endpoint)

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            requests.append((self.command, self.path))
            assert target.hostname is not None
            connection = http.client.HTTPConnection(target.hostname, target.port)
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            body = answer.read()
            self.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in {"transfer-encoding", "connection", "content-length"}:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else len(body)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)
            connection.close()

        do_GET = do_HEAD = forward  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
    yield requests
    server.shutdown()
    thread.join()
    server.server_close()


def test_opening_takes_few_requests_and_reading_only_what_is_read(
    url: str, counted: list[tuple[str, str]]
):
    store = open_store(url)
    opening = list(counted)
    assert 0 < len(opening) <= 4, opening
    counted.clear()
    store.read(0, 1000)
    assert len(counted) <= 3, counted  # a chunk, and the checksums of its blocks
    counted.clear()
    store.read(500, 2000)
    assert not counted
    assert open_store(url).digest == store.digest
    counted.clear()
    open_store(url).read(0, 1000)  # from the cache
    assert len(counted) == len(opening)
