"""Uploads that are cut leave nothing that anyone sees, and what they leave is removed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokenmill import remote
from tokenmill.remote import uploads

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ceph")]

UPLOAD = """
import sys, time
from pathlib import Path
from tokenmill.remote import upload_file

sent = 0

def count(num_bytes):
    global sent
    sent += num_bytes
    if sent > 36 << 20:
        print("half", flush=True)
        time.sleep(60)

upload_file(Path(sys.argv[1]), sys.argv[2], on_bytes=count)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 50 MiB: four parts."""
    path = tmp_path_factory.mktemp("large") / "file"
    path.write_bytes(os.urandom(1 << 16) * 16 * 50)
    return path


def test_a_file_sent_in_parts_is_the_file(large: Path, s3_place: str):
    url = f"{s3_place}/large"
    assert remote.upload_file(large, url)
    info = remote.object_info(url)
    assert info is not None
    assert info.size == large.stat().st_size
    tag = remote.UploadTag(info.size)
    tag.update(large.read_bytes())
    assert info.version == tag.tag()
    with remote.open_object(url) as file:
        found = hashlib.sha256(file.read())
    assert found.digest() == hashlib.sha256(large.read_bytes()).digest()


def test_a_killed_upload_leaves_nothing_visible_and_its_parts_can_be_removed(
    large: Path, s3_place: str
):
    url = f"{s3_place}/large"
    child = subprocess.Popen(
        [sys.executable, "-c", UPLOAD, str(large), url], stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        child.kill()
    assert remote.object_info(url) is None
    assert remote.list_objects(s3_place) == []
    assert remote.abort_uploads(url[:-1], older_than_seconds=0) == 0  # as a folder, not as letters
    assert remote.abort_uploads(s3_place, older_than_seconds=3600) == 0
    assert remote.abort_uploads(s3_place, older_than_seconds=0) == 1
    assert remote.abort_uploads(s3_place, older_than_seconds=0) == 0
    assert remote.object_info(url) is None


def test_an_upload_that_fails_leaves_nothing_at_all(large: Path, s3_place: str):
    sent = 0

    def fail(num_bytes: int) -> None:
        nonlocal sent
        sent += num_bytes
        if sent > 36 << 20:
            raise OSError(5, "the disk is broken")

    with pytest.raises(OSError, match="the disk is broken"):
        remote.upload_file(large, f"{s3_place}/large", on_bytes=fail)
    assert remote.list_objects(s3_place) == []
    assert remote.abort_uploads(s3_place, older_than_seconds=0) == 0


def test_listing_orphans_goes_on_behind_the_first_page(
    s3_place: str, monkeypatch: pytest.MonkeyPatch
):
    for number in range(3):
        uploads._ask("POST", f"{s3_place}/{number}", "uploads=")
    urlencode = uploads.urlencode

    def in_small_pages(query: dict[str, str], **options: object) -> str:
        return urlencode({**query, "max-uploads": "2"}, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(uploads, "urlencode", in_small_pages)
    assert remote.abort_uploads(s3_place, older_than_seconds=0) == 3
