"""Who asks and where, from the environment and the files of AWS; what goes wrong, in words."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tokenmill.errors import ConfigError, StorageError, TokenmillError
from tokenmill.remote import UploadTag, is_remote, join, split_url, uploads
from tokenmill.remote.account import VARIABLES, Account, find_account
from tokenmill.remote.faults import Fault, read_fault, storage_fault
from tokenmill.remote.signing import Credentials

CANARY = "CANARY-7f3a"


@pytest.fixture(autouse=True)
def no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def write_files(home: Path, *, credentials: str = "", config: str = "") -> None:
    folder = home / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(credentials)
    (folder / "config").write_text(config)


def test_the_environment_says_who_asks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://all.example")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3.example:9000/")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    account = find_account()
    assert account.endpoint == "http://s3.example:9000"
    assert account.region == "eu-west-1"
    assert account.credentials == Credentials("key", "secret", "token")


def test_a_profile_says_it_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write_files(
        tmp_path,
        credentials="[lab]\naws_access_key_id = a\naws_secret_access_key = b%c\n",
        config="[profile lab]\nregion = here\nendpoint_url = https://lab.example\ns3 =\n  x = 1\n",
    )
    with pytest.raises(StorageError, match="no credentials"):
        find_account()
    monkeypatch.setenv("AWS_PROFILE", "lab")
    account = find_account()
    assert account == Account("https://lab.example", "here", Credentials("a", "b%c"))
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(ConfigError, match="'other'"):
        find_account()


def test_a_profile_that_runs_programs_is_refused_with_a_way_out(tmp_path: Path):
    write_files(tmp_path, config="[default]\ncredential_process = /bin/x\n")
    with pytest.raises(StorageError, match="credential_process") as caught:
        find_account()
    assert "export-credentials" in str(caught.value)


def test_public_buckets_need_no_keys(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    assert find_account().skip_signature


@pytest.mark.parametrize(
    "endpoint", [f"http://me:{CANARY}@host", f"{CANARY}", f"ftp://host/{CANARY}"]
)
def test_a_wrong_endpoint_is_not_repeated(endpoint: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(ConfigError) as caught:
        find_account()
    assert CANARY not in str(caught.value)


def test_a_broken_file_is_not_repeated(tmp_path: Path):
    write_files(tmp_path, credentials=f"aws_secret_access_key = {CANARY}\n[default\n")
    with pytest.raises(ConfigError, match="not a file of AWS settings") as caught:
        find_account()
    assert CANARY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_secrets_do_not_show_in_printed_objects():
    account = Account("", "here", Credentials(CANARY, CANARY, CANARY))
    assert CANARY not in f"{account} {account!r} {account.credentials}"


@pytest.mark.parametrize("url", [f"s3://me:{CANARY}@bucket/a", f"s3://{CANARY}@bucket"])
def test_a_url_with_a_secret_is_refused_without_repeating_it(url: str):
    with pytest.raises(ConfigError, match="user or password") as caught:
        split_url(url)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///a", "s3://b", "s3://bucket/a//b", "s3://bucket/../a"]
)
def test_what_names_no_object_is_refused(url: str):
    with pytest.raises(ConfigError):
        split_url(url)


def test_urls_stay_strings():
    assert is_remote("s3://bucket/a")
    assert not is_remote("s3/bucket")
    assert join("s3://bucket", "a/", "b") == "s3://bucket/a/b"
    assert split_url("s3://bucket/a@b:c") == ("bucket", "a@b:c")


FAULTS = [
    ("status code: 404 Not Found: <Code>NoSuchBucket</Code>", "no such bucket", False),
    ("status code: 403 Forbidden: <Code>SignatureDoesNotMatch</Code>", "secret key", False),
    ("status code: 403 Forbidden: <Code>InvalidAccessKeyId</Code>", "access key", False),
    ("status code: 403 Forbidden: ", "do not allow", False),
    ("status code: 400 Bad Request: <Code>RequestTimeout</Code>", "RequestTimeout", True),
    ("status code: 503 Service Unavailable: <Code>SlowDown</Code>", "503 SlowDown", True),
    ('HttpError { kind: Connect, message: "Connection refused"', "Connection refused", True),
    ("HttpError { kind: Timeout }", "no answer in time", True),
    ("status code: 418 I'm a teapot", "418", False),
]


@pytest.mark.parametrize(("text", "words", "is_transient"), FAULTS)
def test_every_fault_has_words_and_is_tried_again_only_if_that_may_help(
    text: str, words: str, is_transient: bool
):
    fault = read_fault(text)
    error = storage_fault("s3://bucket/a", fault, account=Account("http://h:1", "r", None))
    assert words in error.message
    assert error.message.startswith("s3://bucket/a: http://h:1")
    assert fault.is_transient == is_transient
    assert error.exit_code == 5


def test_a_fault_repeats_no_secret():
    account = Account("http://h", "r", Credentials("key", CANARY, "token"))
    fault = Fault(None, detail=f"something about {CANARY}")
    assert CANARY not in str(storage_fault("s3://bucket/a", fault, account=account))


@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("size", [0, 99, 100, 101, 250, 300])
def test_a_tag_is_that_of_the_parts(size: int, block: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uploads, "SINGLE_BYTES", 100)
    monkeypatch.setattr(uploads, "_PART_BYTES", 50)
    data = bytes(range(250))[:size].ljust(size, b"x")
    tag = UploadTag(size)
    for start in range(0, size, block):
        tag.update(data[start : start + block])
    if size <= 100:
        assert tag.tag() == f'"{hashlib.md5(data).hexdigest()}"'
        return
    parts = [hashlib.md5(data[start : start + 50]).digest() for start in range(0, size, 50)]
    assert tag.tag() == f'"{hashlib.md5(b"".join(parts)).hexdigest()}-{len(parts)}"'
    assert UploadTag(size, like=tag.tag()).can_tell
    assert not UploadTag(size, like=f'"{"0" * 32}-99"').can_tell
    assert UploadTag(size, like=f'"{"0" * 32}"').can_tell


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    from tokenmill.remote.client import library

    with pytest.raises(TokenmillError, match="obstore") as caught:
        library()
    assert caught.value.hint == 'pip install "tokenmill[s3]"'
