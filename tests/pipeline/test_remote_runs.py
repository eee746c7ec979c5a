"""Promises 1 and 3 where the store is in an object store: same bytes, and killed it continues."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from remote_runs import (
    COUNTED,
    STOPPED,
    Door,
    command,
    expected_objects,
    finish,
    objects,
    start,
)
from rigs.ceph import ACCESS_KEY, SECRET_KEY, Ceph, environment

import tokenmill
from tokenmill.cli import run as run_cli
from tokenmill.config import resolve
from tokenmill.errors import BusyError, ConfigError, DamageError, SettingsChangedError
from tokenmill.folder import LocalFolder, lease, open_folder
from tokenmill.folder.lease import Holder, Lease
from tokenmill.pipeline import Outcome, TokenizeSettings, run_status, tokenize_corpus
from tokenmill.pipeline.parts import (
    PART_DOCS_DTYPE,
    PARTS_FOLDER,
    Part,
    PartWriter,
    Receipt,
    damaged_part,
    read_receipt,
)
from tokenmill.pipeline.run import Run
from tokenmill.remote import abort_uploads, list_objects, object_info, put_object, upload_file
from tokenmill.remote.plain import open_signed
from tokenmill.store import verify

NUM_KILLS = 8
NUM_RACES = 20
OURS = {"_run/run.json", "_run/events.jsonl", "_run/locks"}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "several processes": {"workers": 4},
    "shuffled": {"shuffle": 11},
    "with val": {"val_ratio": 0.3},
    "with val documents": {"val_documents": 7},
    "cut": {"max_tokens": 50_001},
    "all of it": {"shuffle": 5, "val_ratio": 0.25, "max_tokens": 70_003},
}


@pytest.fixture
def url(ceph: Ceph, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in ceph.environment.items():
        monkeypatch.setenv(name, value)
    return ceph.url("run")


@pytest.fixture(scope="module")
def broken_corpus(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus, with a line in each file that is no document."""
    folder = tmp_path_factory.mktemp("broken")
    for path in corpus.iterdir():
        lines = path.read_text().splitlines()
        lines.insert(len(lines) // 2, '{"text": 7}')
        (folder / path.name).write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def digest(corpus: Path, tiny_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a run on a disk gives."""
    return tokenize(corpus, tmp_path_factory.mktemp("disk") / "store", tiny_tokenizer)[1]


def tokenize(
    corpus: Path, output: str | Path, tokenizer: Path, **settings: Any
) -> tuple[Outcome, str]:
    layer = {
        "sources": [str(corpus)],
        "tokenizer": str(tokenizer),
        "unit_bytes": 20_000,
        "shard_tokens": 20_000,
        "workers": 2,
    }
    outcome = tokenize_corpus(resolve(TokenizeSettings, layer | settings), output)
    return outcome, outcome.metadata.digest


def check_nothing_is_left(url: str, outcome: Outcome) -> None:
    """The store, and the record, the log and the lock of the run: nothing else is there."""
    found = {info.path[len(url) + 1 :] for info in list_objects(url)}
    found = {"_run/locks" if name.startswith("_run/locks/") else name for name in found}
    assert found == expected_objects(outcome.metadata) | OURS
    assert abort_uploads(url, older_than_seconds=0) == 0


@pytest.mark.cluster
@pytest.mark.xdist_group("ceph")
@pytest.mark.parametrize("name", CASES)
def test_an_object_store_gets_the_very_bytes_that_a_disk_gets(
    name: str, url: str, broken_corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    settings = {**CASES[name], "on_error": "skip"}
    tokenize(broken_corpus, tmp_path / "store", tiny_tokenizer, **settings)
    outcome, _ = tokenize(broken_corpus, url, tiny_tokenizer, **settings)
    there = objects(url)
    for path in (tmp_path / "store").rglob("*"):
        below = path.relative_to(tmp_path / "store").as_posix()
        if path.is_file() and not below.startswith(("_run", "metadata")):
            assert there[below] == path.read_bytes()
    check_nothing_is_left(url, outcome)
    assert outcome.metadata.rejects is not None
    everything = b"".join(there.values())
    assert SECRET_KEY.encode() not in everything
    assert ACCESS_KEY.encode() not in everything
    again, same = tokenize(broken_corpus, url, tiny_tokenizer, **settings)
    assert again.was_complete
    assert same == outcome.metadata.digest


@pytest.mark.cluster
@pytest.mark.xdist_group("ceph")
def test_text_that_is_in_an_object_store_becomes_the_same_store_there(
    url: str, corpus: Path, tiny_tokenizer: Path, digest: str
):
    for path in corpus.iterdir():
        upload_file(path, f"{url}/raw/{path.name}")
    store = tokenmill.tokenize(
        f"{url}/raw",
        f"{url}/store/",
        tokenizer=str(tiny_tokenizer),
        unit_bytes=20_000,
        shard_tokens=20_000,
    )
    assert store.digest == digest
    sources = [f"{url}/raw/part{number}.jsonl" for number in range(3)]
    assert [source.path for source in store.metadata.sources] == sources
    assert verify(f"{url}/store", level="full").problems == ()


@pytest.mark.cluster
@pytest.mark.xdist_group("ceph")
def test_killed_at_random_times_a_run_continues(
    ceph: Ceph, url: str, corpus: Path, tiny_tokenizer: Path, digest: str
):
    rng, kills, urls = random.Random(7), 0, [f"{url}-0"]
    while kills < NUM_KILLS:
        patch = COUNTED.format(place=rng.randint(1, 60), before=bool(kills % 2))
        code, text = finish(start(ceph, command(corpus, urls[-1], tiny_tokenizer), patch=patch))
        if code == 0:
            urls.append(f"{url}-{len(urls)}")
            continue
        assert code == -signal.SIGKILL, text
        kills += 1
    for each in urls:
        outcome, found = tokenize(corpus, each, tiny_tokenizer)
        assert found == digest
        check_nothing_is_left(each, outcome)


@pytest.mark.cluster
@pytest.mark.xdist_group("ceph")
def test_what_killed_attempts_left_behind_is_removed(
    url: str, corpus: Path, tiny_tokenizer: Path, digest: str, monkeypatch: pytest.MonkeyPatch
):
    stray = f"{url}/_run/parts/000003.0123456789ab.part"

    def stop_at_the_end() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Run, "_commit", lambda self: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                tokenize(corpus, url, tiny_tokenizer)

    stop_at_the_end()
    put_object(stray, b"of an attempt that was killed")
    with open_signed("POST", f"{url}/train_000000.npy", query="uploads="):
        pass  # the beginning of an upload that nobody goes on with
    stop_at_the_end()
    assert object_info(stray) is None
    assert abort_uploads(url, older_than_seconds=0) == 0
    outcome, found = tokenize(corpus, url, tiny_tokenizer)
    assert found == digest
    check_nothing_is_left(url, outcome)


@pytest.mark.cluster
@pytest.mark.xdist_group("ceph")
def test_of_two_attempts_at_a_unit_one_counts_and_the_other_leaves_nothing(url: str):
    folder = open_folder(url)
    ids, doc = np.arange(9, dtype=np.uint16), np.ones(1, dtype=PART_DOCS_DTYPE)
    for unit in range(NUM_RACES):
        writers = [
            PartWriter(folder, unit, dtype=ids.dtype, sort=False, piece_tokens=4) for _ in range(3)
        ]
        for writer in writers:
            writer.add_long(iter([ids]), doc.copy())
        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(w.publish, threshold=0, seconds=1.0) for w in writers]
        counting = {future.result().attempt for future in futures}
        assert len(counting) == 1
        part = Part(folder, read_receipt(folder, unit), dtype=ids.dtype)
        assert {part.receipt.attempt} == counting
        part.check()
    assert len(folder.sizes(PARTS_FOLDER)) == 2 * NUM_RACES


@pytest.mark.cluster
@pytest.mark.xdist_group("ceph")
def test_of_two_drivers_one_is_told_who_the_other_is(
    ceph: Ceph, url: str, corpus: Path, tiny_tokenizer: Path, digest: str
):
    first = start(ceph, command(corpus, url, tiny_tokenizer), patch=STOPPED)
    try:
        os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        code, text = finish(start(ceph, command(corpus, url, tiny_tokenizer)))
        assert code == 6
        assert f"pid {first.pid} on " in text
        code, text = finish(start(ceph, ["status", url, "--json"], HOME="/nowhere"))
        status = json.loads(text)
        assert (status["state"], status["num_units"]) == ("running", 13)
        assert status["holder"].startswith(f"pid {first.pid} on ")
        first.send_signal(signal.SIGCONT)
        code, text = finish(first)
        assert code == 0, text
    finally:
        first.kill()
    assert run_status(url).state == "complete"
    assert tokenize(corpus, url, tiny_tokenizer)[1] == digest


@pytest.mark.cluster
@pytest.mark.xdist_group("ceph")
@pytest.mark.parametrize("extra", [(), ("--shuffle", "3")])
def test_drivers_that_do_not_know_of_each_other_do_no_harm(
    extra: tuple[str, ...],
    ceph: Ceph,
    url: str,
    corpus: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
):
    patch = "from tokenmill.folder.lease import Holder; Holder.is_alive = lambda self: False"
    arguments = command(corpus, url, tiny_tokenizer, *extra)
    started = [start(ceph, arguments, patch=patch) for _ in range(3)]
    for code, text in map(finish, started):
        assert "Traceback" not in text
        assert code in {0, 3, 5, 6, 75}, text
    settings = {"shuffle": int(extra[1])} if extra else {}
    tokenize(corpus, tmp_path / "store", tiny_tokenizer, **settings)
    outcome, _ = tokenize(corpus, url, tiny_tokenizer, **settings)
    there = objects(url)
    for name in expected_objects(outcome.metadata) - {"metadata.json"}:
        assert there[name] == (tmp_path / "store" / name).read_bytes()


@pytest.mark.cluster
@pytest.mark.xdist_group("ceph")
def test_a_server_that_goes_away_is_exit_5_and_the_run_continues(
    ceph: Ceph, url: str, corpus: Path, tiny_tokenizer: Path, digest: str
):
    door = Door(ceph.endpoint, num_bytes=250_000)  # about half of what the run uploads
    patch = "import tokenmill.remote.client as client; client.MAX_TRIES = 2"
    arguments = command(corpus, url, tiny_tokenizer)
    process = start(ceph, arguments, patch=patch, **environment(door.endpoint))
    code, text = finish(process)
    assert code == 5, text
    assert "tokenmill: s3://" in text
    assert "cannot be reached" in text
    assert SECRET_KEY not in text
    assert run_status(url).state == "stopped"
    outcome, found = tokenize(corpus, url, tiny_tokenizer)
    assert found == digest
    check_nothing_is_left(url, outcome)


@pytest.mark.cluster
@pytest.mark.xdist_group("ceph")
def test_a_damaged_part_is_found_and_made_anew(
    url: str, corpus: Path, tiny_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:
        patch.setattr(Run, "_shuffled_shards", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tokenize(corpus, url, tiny_tokenizer, shuffle=4)
    part = next(i for i in list_objects(f"{url}/_run/parts") if i.path.endswith(".part"))
    put_object(part.path, b"\0" * part.size)
    with pytest.raises(DamageError, match="damaged") as caught:
        tokenize(corpus, url, tiny_tokenizer, shuffle=4)
    assert "run the same command again" in str(caught.value)
    expected = tokenize(corpus, tmp_path / "store", tiny_tokenizer, shuffle=4)[1]
    assert tokenize(corpus, url, tiny_tokenizer, shuffle=4)[1] == expected


@pytest.mark.cluster
@pytest.mark.xdist_group("ceph")
def test_other_settings_and_other_objects_are_refused(url: str, corpus: Path, tiny_tokenizer: Path):
    tokenize(corpus, url, tiny_tokenizer)
    with pytest.raises(SettingsChangedError, match="shuffle: null then, 5 now"):
        tokenize(corpus, url, tiny_tokenizer, shuffle=5)
    put_object(f"{url}-other/photo.jpg", b"mine")
    with pytest.raises(ConfigError, match="not empty and not a store"):
        tokenize(corpus, f"{url}-other", tiny_tokenizer)


@pytest.mark.cluster
@pytest.mark.xdist_group("ceph")
@pytest.mark.parametrize("removes_parts", [False, True])
def test_a_run_that_another_one_took_over_says_so(
    removes_parts: bool,
    url: str,
    corpus: Path,
    tiny_tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    holder = Holder(id="a", host="far", machine="", pid=7, started="", time=time.time())

    def take_over(run: Run, _: Receipt) -> None:
        put_object(f"{url}/_run/locks/000002.json", msgspec.json.encode(holder))
        if removes_parts:
            run.journal.finish()
            raise damaged_part(run.journal.folder, "_run/parts/000000", "file, which is missing")
        while True:  # until the lease is to be renewed
            run.journal.folder.check_lock("_run/lock")

    monkeypatch.setattr(lease, "RENEW_SECONDS", 60.0 if removes_parts else 0.05)
    monkeypatch.setattr(Run, "_finish_unit", take_over)
    with pytest.raises(BusyError, match=r"taken over by another run \(pid 7 on far\)"):
        tokenize(corpus, url, tiny_tokenizer)
    assert [info.path[-11:] for info in list_objects(f"{url}/_run/locks")][-1] == "000002.json"


@pytest.mark.cluster
@pytest.mark.xdist_group("ceph")
def test_a_lease_is_looked_at_for_every_result(
    url: str, corpus: Path, tiny_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
):
    looked: list[Lease] = []

    def look(self: Lease) -> None:
        looked.append(self)

    monkeypatch.setattr(Lease, "check", look)
    tokenize(corpus, url, tiny_tokenizer)
    assert len(looked) == 13 + 8  # units and shards


def test_one_plain_file_is_not_written_to_an_object_store(
    corpus: Path, tiny_tokenizer: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = command(corpus, "s3://bucket/ids.npy", tiny_tokenizer)
    assert run_cli(arguments) == 2
    assert "written to a disk only" in capsys.readouterr().err


def test_a_dry_run_for_an_object_store_asks_it_nothing(
    corpus: Path, tiny_tokenizer: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = command(corpus, "s3://bucket/store", tiny_tokenizer, "--dry-run", "--json")
    assert run_cli(arguments) == 0
    assert json.loads(capsys.readouterr().out)["disk_needed"] > 0


def test_processes_that_begin_a_run_together_do_not_take_each_other_for_strangers(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, digest: str
):
    real = LocalFolder.holds

    def another_begins(self: LocalFolder, name: str) -> bool:
        found = real(self, name)
        self.make("_run/parts")
        return found

    monkeypatch.setattr(LocalFolder, "holds", another_begins)
    assert tokenize(corpus, tmp_path / "store", tiny_tokenizer)[1] == digest
