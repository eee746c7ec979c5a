"""The commands that read stores, given the URL of one in a real S3 server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tokenmill.cli import run
from tokenmill.remote import join, put_object, read_object, upload_file

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ceph")]

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in a folder."""
    folder = tmp_path_factory.mktemp("local")
    text = folder / "text.txt"
    text.write_text("".join(f"Document {i} says hello, wörld.\n" for i in range(2000)))
    words = ["tokenize", str(text), "-o", str(folder / "store"), "--progress", "none"]
    assert run([*words, "--workers", "1"]) == 0
    return folder / "store"


@pytest.fixture
def url(
    local: Path, s3_place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> str:
    """Its copy in the object store."""
    monkeypatch.setenv("TOKENMILL_CACHE_DIR", str(tmp_path / "cache"))
    capsys.readouterr()
    for path in sorted(local.rglob("*")):
        if path.is_file():
            upload_file(path, join(s3_place, *path.relative_to(local).parts))
    return s3_place


def told(capsys: Capture, *words: str) -> str:
    assert run(list(words)) == 0
    return capsys.readouterr().out


def test_commands_say_of_a_url_what_they_say_of_the_folder(
    local: Path, url: str, tmp_path: Path, capsys: Capture
):
    for words in (
        ("info", "--document", "3", "--lengths", str(tmp_path / "a.svg")),
        ("info", "--json", "--document", "1999"),
    ):
        mine, other = (told(capsys, words[0], place, *words[1:]) for place in (url, str(local)))
        assert mine == other.replace(str(local), url)
    plan = tmp_path / "plan.yaml"
    texts: list[str] = []
    for place in (url, str(local)):
        plan.write_text(f"seq_len: 64\nbatch_size: 4\nsources: [{{path: {place}, name: web}}]\n")
        texts.append(
            told(capsys, "plan", "explain", str(plan), "--steps", "5")
            + told(capsys, "plan", "which", str(plan), "--step", "3")
            + told(capsys, "plan", "which", str(plan), "--document", "3", "--steps", "5")
        )
    assert texts[0] == texts[1].replace(str(local), url)
    flags = ("--seconds", "0.02", "--threads", "1", "--packing", "concat", "--json")
    speed = json.loads(told(capsys, "bench", "loader", url, *flags))
    assert speed["results"][0]["tokens_per_second"] > 0


def test_consolidate_and_verify_take_urls(local: Path, url: str, tmp_path: Path, capsys: Capture):
    copy = tmp_path / "copy"
    shutil.copytree(local, copy)
    for place in (url, str(copy)):
        words = ("consolidate", place, "--seq-len", "64", "--delete-shards", "--progress", "none")
        scratch = ("--scratch", str(tmp_path / "scratch")) if place == url else ()
        assert f"{place}/tokens.bin: " in told(capsys, *words, *scratch)
    assert read_object(join(url, "tokens.bin")) == (copy / "tokens.bin").read_bytes()
    assert "no damage at level full" in told(capsys, "verify", url, "--level", "full")
    data = bytearray(read_object(join(url, "tokens.bin")))
    data[5000] ^= 4
    put_object(join(url, "tokens.bin"), bytes(data))
    assert run(["verify", url, "--level", "full", "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert [problem["file"] for problem in report["problems"]] == ["tokens.bin"]


def test_damage_and_absence_have_their_exit_codes(url: str, capsys: Capture):
    shard = bytearray(read_object(join(url, "train_000000.npy")))
    shard[300] ^= 1
    put_object(join(url, "train_000000.npy"), bytes(shard))
    assert run(["info", url, "--document", "3"]) == 3
    error = capsys.readouterr().err
    assert f"{url}/train_000000.npy: block 0" in error
    assert f"tokenmill verify {url} --level full" in error
    assert run(["info", f"{url}-not"]) == 2
    assert "not a store" in capsys.readouterr().err
