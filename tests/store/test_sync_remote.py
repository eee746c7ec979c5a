"""Copies of stores to and from a real S3 server."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokenmill import remote
from tokenmill.cli import run
from tokenmill.errors import DamageError, SettingsChangedError
from tokenmill.remote import uploads
from tokenmill.store import METADATA_NAME, read_metadata, sync, verify

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ceph")]

KILLED = """
import sys
from tokenmill.store import sync, sync_files

copy, copied = sync_files.Copier.copy, []

def watched(self, item):
    if len(copied) == 6:
        print(*copied, flush=True)
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    copy(self, item)
    copied.append(item.name)

sync_files.Copier.copy = watched
sync(sys.argv[1], sys.argv[2], workers=1)
"""


@pytest.fixture
def store(tmp_path: Path, build_store: Callable[..., Any]) -> Path:
    folder = tmp_path / "store"
    build_store(folder, {"train": [list(range(100)) for _ in range(40)]}, shard_tokens=500)
    (folder / "_run").mkdir()
    (folder / "_run" / "events.jsonl").write_text("{}\n")
    return folder


def objects(place: str) -> dict[str, bytes]:
    found = remote.list_objects(place)
    return {info.path.removeprefix(f"{place}/"): remote.read_object(info.path) for info in found}


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_a_store_goes_up_across_and_down(store: Path, s3_place: str, tmp_path: Path):
    up, across, down = f"{s3_place}/up", f"{s3_place}/across", tmp_path / "down"
    files = {
        path.relative_to(store).as_posix(): path.read_bytes()
        for path in store.rglob("*")
        if path.is_file() and "_run" not in path.parts
    }
    assert set(sync(store, up).copied) == set(files)
    assert objects(up) == files
    sync(up, across)
    assert objects(across) == files
    sync(across, down)
    assert verify(down, "full").ok
    assert read_metadata(down) == read_metadata(store)
    for source, target in ((store, up), (up, across), (across, down), (down, up)):
        assert sync(source, target).copied == ()


def test_damage_at_either_end_is_found(store: Path, s3_place: str, tmp_path: Path):
    name = "train_000003.npy"
    sync(store, s3_place)
    good = remote.read_object(f"{s3_place}/{name}")
    remote.put_object(f"{s3_place}/{name}", flipped(good))
    with pytest.raises(DamageError, match=f"{name}: sha256 is"):
        sync(s3_place, tmp_path / "down")
    assert not (tmp_path / "down" / name).exists()
    assert not (tmp_path / "down" / METADATA_NAME).exists()
    assert run(["sync", s3_place, f"{s3_place}-2", "--progress", "none"]) == 3
    assert sync(store, s3_place).copied == (name,)  # the target is mended
    (store / name).write_bytes(flipped(good))
    with pytest.raises(DamageError, match=f"{name}: sha256 is"):
        sync(store, s3_place)
    assert run(["sync", str(store), f"{s3_place}-3", "--progress", "none"]) == 3
    assert remote.read_object(f"{s3_place}/{name}") == good
    assert not {name, METADATA_NAME} & objects(f"{s3_place}-3").keys()


@pytest.mark.parametrize("is_up", [True, False])
def test_a_killed_copy_is_no_store_and_is_continued(
    is_up: bool, store: Path, s3_place: str, tmp_path: Path
):
    source, target = str(store), f"{s3_place}/a"
    if not is_up:
        sync(store, f"{s3_place}/b")
        source, target = f"{s3_place}/b", str(tmp_path / "down")
    child = subprocess.run(
        [sys.executable, "-c", KILLED, source, target], capture_output=True, text=True, check=False
    )
    assert child.returncode == -signal.SIGKILL
    copied = child.stdout.split()
    assert len(copied) == 6
    assert run(["info", target]) == 2  # not a store
    done = sync(source, target)
    assert not set(copied) & set(done.copied)
    assert len(copied) + len(done.copied) == done.num_files
    assert verify(target, "full").ok


def test_nothing_is_removed_unless_asked(store: Path, s3_place: str, capsys):
    sync(store, s3_place)
    remote.put_object(f"{s3_place}/notes.txt", b"mine")
    assert sync(store, s3_place).deleted == ()
    arguments = ["sync", str(store), s3_place, "--delete", "--progress", "none"]
    assert run([*arguments, "--dry-run"]) == 0
    assert "would remove notes.txt" in capsys.readouterr().out
    assert "notes.txt" in objects(s3_place)
    assert run(arguments) == 0
    assert objects(s3_place).keys() == {
        path.relative_to(store).as_posix()
        for path in store.rglob("*")
        if path.is_file() and "_run" not in path.parts
    }


def test_files_in_parts_are_known_by_their_tags(
    s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(uploads, "SINGLE_BYTES", 1 << 20)
    monkeypatch.setattr(uploads, "_PART_BYTES", 5 << 20)  # the smallest that servers take
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "large").write_bytes(bytes(range(256)) * 4096 * 12)  # three parts
    sync(raw, s3_place)
    read: list[str] = []
    monkeypatch.setattr("tokenmill.store.sync_files.open_object", lambda url, **_: read.append(url))
    assert sync(raw, s3_place).copied == ()
    assert read == []  # nothing had to be fetched to know that
    monkeypatch.undo()


def test_another_store_in_the_target_is_refused(
    store: Path, s3_place: str, tmp_path: Path, build_store: Callable[..., Any]
):
    build_store(tmp_path / "other", {"train": [[1, 2, 3]]})
    sync(tmp_path / "other", s3_place)
    before = objects(s3_place)
    with pytest.raises(SettingsChangedError, match="holds another store"):
        sync(store, s3_place)
    assert objects(s3_place) == before
