"""Copies of stores and folders on disks: whole, proved, repeated; nothing removed unasked."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokenmill.cli import run
from tokenmill.errors import ConfigError, DamageError, NotAStoreError, SettingsChangedError
from tokenmill.progress import Event
from tokenmill.store import open_store, read_metadata, sync, sync_files, verify

DOCUMENTS = [[n % 97 for n in range(length)] for length in (5, 30, 1, 44, 12)]


@pytest.fixture
def store(tmp_path: Path, build_store: Callable[..., Any]) -> Path:
    folder = tmp_path / "store"
    build_store(folder, {"train": DOCUMENTS, "val": DOCUMENTS[:2]}, rejects=b"{}\n")
    (folder / "_run").mkdir()
    (folder / "_run" / "events.jsonl").write_text("{}\n")
    (folder / ".x.partial").write_text("rest")
    return folder


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_is_the_store_without_what_is_not_content(store: Path, tmp_path: Path):
    done = sync(store, tmp_path / "copy")
    assert names(tmp_path / "copy") == names(store) - {"_run/events.jsonl", ".x.partial"}
    assert verify(tmp_path / "copy", "full").ok
    assert open_store(tmp_path / "copy").metadata == read_metadata(store)
    assert done.is_store
    assert len(done.copied) == done.num_files == len(names(tmp_path / "copy"))


def test_a_repeated_copy_copies_only_what_differs(store: Path, tmp_path: Path):
    copy = tmp_path / "copy"
    sync(store, copy)
    assert sync(store, copy).copied == ()
    (copy / "train_000001.npy").unlink()
    flip(copy / "docs" / "train_000000.npy", -1)
    assert sync(store, copy).copied == ("docs/train_000000.npy", "train_000001.npy")
    assert verify(copy, "full").ok


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["train_000002.npy", "blocks/val_000000.npy", "tokenizer.json"])
def test_a_damaged_byte_in_the_source_stops_the_copy(name: str, store: Path, tmp_path: Path):
    flip(store / name, -1)
    with pytest.raises(DamageError, match=f"{name}: sha256 is"):
        sync(store, tmp_path / "copy")
    assert not (tmp_path / "copy" / name).exists()
    assert run(["sync", str(store), str(tmp_path / "copy"), "--progress", "none"]) == 3
    with pytest.raises(NotAStoreError):
        open_store(tmp_path / "copy")


def test_a_missing_file_in_the_source_is_damage(store: Path, tmp_path: Path):
    (store / "train_000002.npy").unlink()
    with pytest.raises(DamageError, match=r"missing.*train_000002\.npy"):
        sync(store, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_the_metadata_comes_last(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    copied: list[str] = []
    copy = sync_files.Copier.copy

    def watched(self: sync_files.Copier, item: sync_files.Item) -> None:
        assert not (tmp_path / "copy" / "metadata.json").exists()
        copy(self, item)
        copied.append(item.name)

    monkeypatch.setattr(sync_files.Copier, "copy", watched)
    sync(store, tmp_path / "copy")
    assert copied.index("metadata.json") == len(copied) - 1 > 10


def test_an_interrupted_copy_is_no_store_and_is_continued(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    copied: list[str] = []
    copy = sync_files.Copier.copy

    def interrupted(self: sync_files.Copier, item: sync_files.Item) -> None:
        if len(copied) == 5:
            raise KeyboardInterrupt
        copy(self, item)
        copied.append(item.name)

    with monkeypatch.context() as patch:
        patch.setattr(sync_files.Copier, "copy", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sync(store, tmp_path / "copy", workers=1)
    assert names(tmp_path / "copy") == set(copied)
    with pytest.raises(NotAStoreError):
        open_store(tmp_path / "copy")
    done = sync(store, tmp_path / "copy")
    assert not set(done.copied) & set(copied)
    assert verify(tmp_path / "copy", "full").ok


def test_an_interrupt_of_the_user_stops_it_and_leaves_no_partial_files(store: Path, tmp_path: Path):
    def interrupt(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sync(store, tmp_path / "copy", report=interrupt)
    left = names(tmp_path / "copy")
    assert left <= names(store) - {"metadata.json"}
    assert not [name for name in left if name.endswith(".partial")]


def test_a_plain_folder_is_copied_too(tmp_path: Path):
    raw, copy = tmp_path / "raw", tmp_path / "copy"
    (raw / "en").mkdir(parents=True)
    (raw / "en" / "a.jsonl").write_text('{"text": "a"}\n')
    (raw / "metadata.json").write_text(json.dumps({"name": "raw", "content_field": "text"}))
    done = sync(raw, copy)
    assert not done.is_store
    assert names(copy) == names(raw) == set(done.copied)
    (raw / "en" / "a.jsonl").write_text('{"text": "b"}\n')  # as long as before
    assert sync(raw, copy).copied == ("en/a.jsonl",)
    assert (copy / "en" / "a.jsonl").read_text() == '{"text": "b"}\n'


def test_nothing_is_removed_unless_asked(store: Path, tmp_path: Path, capsys):
    copy = tmp_path / "copy"
    sync(store, copy)
    (copy / "notes.txt").write_text("mine")
    (copy / ".hidden").write_text("mine")
    assert sync(store, copy).deleted == ()
    arguments = ["sync", str(store), str(copy), "--delete", "--progress", "none"]
    assert run([*arguments, "--dry-run"]) == 0
    assert "would remove notes.txt" in capsys.readouterr().out
    assert (copy / "notes.txt").exists()
    assert run(arguments) == 0
    assert names(copy) == names(store) - {"_run/events.jsonl", ".x.partial"} | {".hidden"}


def test_a_dry_run_copies_nothing(store: Path, tmp_path: Path):
    done = sync(store, tmp_path / "copy", dry_run=True)
    assert len(done.copied) == done.num_files
    assert not (tmp_path / "copy").exists()


def test_a_target_with_another_store_is_refused(
    store: Path, tmp_path: Path, build_store: Callable[..., Any]
):
    build_store(tmp_path / "other", {"train": DOCUMENTS[1:]})
    before = {name: (tmp_path / "other" / name).read_bytes() for name in names(tmp_path / "other")}
    with pytest.raises(SettingsChangedError, match="holds another store"):
        sync(store, tmp_path / "other")
    assert {n: (tmp_path / "other" / n).read_bytes() for n in names(tmp_path / "other")} == before


@pytest.mark.parametrize("target", ["store", "store/inside", "."])
def test_places_inside_each_other_are_refused(target: str, store: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="lie in each other"):
        sync(store, os.path.normpath(tmp_path / target))


def test_a_source_that_is_not_there_is_said(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such folder"):
        sync(tmp_path / "none", tmp_path / "copy")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="nothing in it"):
        sync(tmp_path / "empty", tmp_path / "copy")


def test_progress_ends_at_the_whole(store: Path, tmp_path: Path):
    events: list[Event] = []
    done = sync(store, tmp_path / "copy", report=events.append)
    assert events[-1].done == events[-1].total > 0
    metadata_bytes = (store / "metadata.json").stat().st_size
    assert events[-1].total == done.num_bytes - metadata_bytes
