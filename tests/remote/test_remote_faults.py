"""What is wrong with an object store is said in one line, with exit code 5 and a hint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rigs.ceph import SECRET_KEY, free_port

from tokenmill import remote
from tokenmill.cli import run

if TYPE_CHECKING:
    from rigs.ceph import Ceph

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ceph")]

CANARY = "CANARY"
COMMANDS = [
    ["tokenize", "{place}/corpus.txt", "-o", "{folder}/store", "--progress", "plain"],
    ["tokenize", "{folder}/corpus.txt", "-o", "{place}/store", "--progress", "plain"],
    ["sync", "{folder}/raw", "{place}/raw"],
    ["sync", "{place}/raw", "{folder}/copy"],
    ["verify", "{place}/store"],
]
FAULTS = {
    "wrong secret": ({"AWS_SECRET_ACCESS_KEY": "CANARY-wrong"}, "secret key"),
    "unknown key": ({"AWS_ACCESS_KEY_ID": "CANARY-unknown"}, "access key"),
    "missing bucket": ({}, "no such bucket"),
    "dead endpoint": ({}, "cannot be reached: Connection refused"),
    "forbidden": ({}, "do not allow"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_command_says_what_is_wrong(
    fault: str, ceph: Ceph, s3_place: str, tmp_path: Path, monkeypatch, capfd
):
    changes, words = FAULTS[fault]
    if fault == "forbidden":
        changes = ceph.stranger
    elif fault == "dead endpoint":
        dead = f"http://127.0.0.1:{free_port()}"
        changes = {"AWS_ENDPOINT_URL": dead, "AWS_ENDPOINT_URL_S3": dead}
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    if fault == "missing bucket":
        s3_place = "s3://no-such-bucket/a"
    (tmp_path / "raw").mkdir()
    for path in (tmp_path / "corpus.txt", tmp_path / "raw" / "a.txt"):
        path.write_text("a document\n")
    for command in COMMANDS:
        arguments = [part.format(place=s3_place, folder=tmp_path) for part in command]
        assert run(arguments) == 5, arguments
        shown = capfd.readouterr()
        said = shown.err.splitlines()
        assert said[-2].startswith("tokenmill: s3://"), shown.err
        assert words in said[-2]
        assert said[-1].startswith("  hint: ")
        assert "Traceback" not in shown.err + shown.out
        assert CANARY not in shown.err + shown.out


def test_a_missing_object_is_said_as_for_a_file(s3_place: str, tmp_path: Path, capfd):
    assert run(["tokenize", f"{s3_place}/none.txt", "-o", str(tmp_path / "store")]) == 2
    assert "no such object" in capfd.readouterr().err


def test_no_secret_is_in_any_output_or_file(s3_place: str, tmp_path: Path, monkeypatch, capfd):
    assert CANARY in SECRET_KEY  # the right secret is a canary too
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "corpus.txt").write_text("a document\n" * 1000)
    aws = tmp_path / "credentials"
    aws.write_text("[default]\naws_secret_access_key = CANARY-file\naws_session_token = CANARY-t\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(aws))
    made = tmp_path / "made"
    commands = [
        ["sync", str(tmp_path / "raw"), f"{s3_place}/raw"],
        ["tokenize", f"{s3_place}/raw/corpus.txt", "-o", str(made / "store")],
        ["sync", str(made / "store"), f"{s3_place}/store"],
        ["tokenize", "s3://me:CANARY-url@bucket/corpus.txt", "-o", str(made / "other")],
        ["info", f"{s3_place}/store"],
    ]
    codes = [run(command) for command in commands]
    shown = capfd.readouterr()
    assert codes == [0, 0, 0, 2, 0], shown.err
    files = [path for path in made.rglob("*") if path.is_file()]
    objects = remote.list_objects(s3_place)
    assert len(files) > 5
    assert len(objects) > 5
    everything = [shown.out.encode(), shown.err.encode(), *(path.read_bytes() for path in files)]
    everything += [remote.read_object(info.path) for info in objects]
    assert not [data for data in everything if CANARY.encode() in data]


def test_a_run_from_objects_records_where_they_are_and_nothing_else(s3_place: str, tmp_path: Path):
    remote.put_object(f"{s3_place}/corpus.txt", b"a document\nanother\n")
    assert run(["tokenize", f"{s3_place}/corpus.txt", "-o", str(tmp_path / "store")]) == 0
    metadata = json.loads((tmp_path / "store" / "metadata.json").read_bytes())
    assert [source["path"] for source in metadata["sources"]] == [f"{s3_place}/corpus.txt"]
