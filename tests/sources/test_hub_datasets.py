"""Datasets on a hub: listed at a commit, read by ranges, told apart by configuration and split."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hub_server import COMMIT, add_repository
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from web import File, Web, serve

import tokenmill
from tokenmill.errors import BadDocumentError, ConfigError, DamageError, StorageError
from tokenmill.sources import (
    SourceSettings,
    cut_units,
    find_files,
    http,
    hub,
    read_unit,
    write_description,
)
from tokenmill.sources.describe import Description
from tokenmill.sources.hub import HubFile, parse_place

TOKEN = "hf_canary"


def lines(*items: str, field: str = "text") -> bytes:
    return "".join(json.dumps({field: text}) + "\n" for text in items).encode()


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Generator[Web]:
    monkeypatch.setattr(http, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(http, "LONGEST_PAUSE_SECONDS", 0.002)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "http_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", "/nonexistent")
    with serve() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture(scope="module")
def tiny_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of the 256 bytes and an EOS."""
    folder = tmp_path_factory.mktemp("tokenizer")
    vocab = {**{str(byte): [byte] for byte in range(256)}, "256": list(b"<|endoftext|>")}
    (folder / "tiny_vocab.json").write_text(json.dumps(vocab))
    (folder / "tiny_merges.txt").write_text("")
    return folder / "tiny_vocab.json"


def texts(place: str, **options: str) -> list[str]:
    chosen = SourceSettings(places=(place,), **options)  # pyright: ignore[reportArgumentType]
    found = find_files(chosen)
    return [
        str(text)
        for unit in cut_units(found, unit_bytes=1 << 12, text_field=chosen.text_field)
        for batch in read_unit(found, unit, chosen)
        for text in batch.texts
    ]


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("hf://org/name", ("org/name", "main", None)),
        ("hf://datasets/org/name", ("org/name", "main", None)),
        ("hf://org/na.me-2@v1.0", ("org/na.me-2", "v1.0", None)),
        ("hf://org/name:en", ("org/name", "main", "en")),
        ("hf://org/name@refs/convert/parquet:en.20", ("org/name", "refs/convert/parquet", "en.20")),
    ],
)
def test_places_on_the_hub(place: str, expected: tuple[str, str, str | None]):
    found = parse_place(place)
    assert (found.repo, found.revision, found.config) == expected


@pytest.mark.parametrize("place", ["hf://", "hf://name", "hf://a/b/c", "hf://a/../b", "hf://a b/c"])
def test_what_is_no_dataset_is_refused(place: str):
    with pytest.raises(ConfigError, match="not a dataset on the hub"):
        parse_place(place)


def test_the_files_of_a_dataset_are_listed_at_a_commit(web: Web):
    files = {f"data/train-{n:05d}-of-00007.jsonl": lines(f"text {n}") for n in range(7)}
    add_repository(web, {**files, "README.md": b"# Title"}, page_files=3)
    found = find_files(SourceSettings(places=("hf://org/name",)))
    assert [file.path for file in found] == [f"hf://org/name@{COMMIT}/{path}" for path in files]
    assert found[0].size == len(lines("text 0"))
    assert texts("hf://org/name") == [f"text {n}" for n in range(7)]


def test_parquet_goes_before_json_and_other_files_are_passed_over(web: Web):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    rows = [f"row {n}" for n in range(3000)]
    pq.write_table(pa.table({"id": range(3000), "text": rows}), buffer, row_group_size=500)
    files = {
        "train.parquet": buffer.getvalue(),
        "train.jsonl": lines("the same again"),
        "dataset_infos.json": b"{}",
        "script.py": b"raise SystemExit('no remote code is ever run')",
        ".gitattributes": b"",
        "image.png": b"",
    }
    add_repository(web, files)
    assert texts("hf://org/name") == rows
    assert not [path for path, _ in web.requests if path.endswith((".py", ".png", "jsonl"))]


def test_the_token_goes_to_the_hub_alone(web: Web, monkeypatch: pytest.MonkeyPatch):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": ["secret text"]}), buffer)
    add_repository(web, {"a.parquet": buffer.getvalue()}, token=TOKEN)
    with pytest.raises(StorageError, match="401") as caught:
        texts("hf://org/name")
    assert "HF_TOKEN" in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    web.requests.clear()
    assert texts("hf://org/name") == ["secret text"]
    for path, headers in web.requests:
        expected = None if path.startswith("/cdn/") else f"Bearer {TOKEN}"
        assert headers.get("Authorization") == expected, path


def test_the_token_of_a_login_is_used(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    add_repository(web, {"a.jsonl": lines("x")}, token=TOKEN)
    assert texts("hf://org/name") == ["x"]


def test_a_revision_is_followed_and_its_commit_recorded(
    web: Web, tmp_path: Path, tiny_vocabulary: Path
):
    commit = "b" * 40
    add_repository(web, {"a.jsonl": lines("new")})
    old = {"a.jsonl": lines("old")}
    add_repository(web, old, revision="v1%2F2", commit=commit)
    assert texts("hf://org/name@v1/2") == ["old"]
    store = tokenmill.tokenize("hf://org/name@v1/2", tmp_path / "s", tokenizer=str(tiny_vocabulary))
    assert store.metadata.sources[0].path == f"hf://org/name@{commit}/a.jsonl"
    assert store.document(0).source == f"hf://org/name@{commit}/a.jsonl"


def test_a_dataset_that_has_moved_on_is_not_mixed(web: Web, tmp_path: Path, tiny_vocabulary: Path):
    add_repository(web, {"a.jsonl": lines("one")})
    options: Any = {"tokenizer": str(tiny_vocabulary)}
    first = tokenmill.tokenize("hf://org/name", tmp_path / "s", **options)
    again = tokenmill.tokenize("hf://org/name", tmp_path / "s", **options)
    assert first.digest == again.digest
    add_repository(web, {"a.jsonl": lines("two")}, commit="c" * 40)
    with pytest.raises(ConfigError, match="no longer part of the input"):
        tokenmill.tokenize("hf://org/name", tmp_path / "s", **options)


def test_configurations_and_splits(web: Web):
    readme = b"""---
configs:
- config_name: en
  data_files: [{split: train, path: "en/*.jsonl"}, {split: test, path: extra.jsonl}]
- config_name: de
  data_files: "de.jsonl"
---
"""
    files = {"README.md": readme, "de.jsonl": lines("de"), "extra.jsonl": lines("test")}
    files |= {"en/1.jsonl": lines("en 1"), "en/2.jsonl": lines("en 2")}
    add_repository(web, files)
    assert texts("hf://org/name:en", split="train") == ["en 1", "en 2"]
    assert texts("hf://org/name:en", split="test") == ["test"]
    assert texts("hf://org/name:de") == ["de"]
    with pytest.raises(ConfigError, match="has the configurations en, de") as caught:
        texts("hf://org/name")
    assert "hf://org/name:en" in str(caught.value)
    with pytest.raises(ConfigError, match="has the splits train, test"):
        texts("hf://org/name:en")


def test_the_parquet_branch_has_a_folder_for_each_configuration(web: Web):
    files = {"en/train/0.jsonl": lines("en"), "de/train/0.jsonl": lines("de")}
    add_repository(web, files, revision="refs%2Fconvert%2Fparquet")
    place = "hf://org/name@refs/convert/parquet"
    assert texts(f"{place}:de") == ["de"]
    with pytest.raises(ConfigError, match="has the configurations de, en"):
        texts(place)


def test_a_description_can_point_to_the_hub(web: Web, tmp_path: Path):
    files = {"en/a.jsonl": lines("hello", field="body"), "de/a.jsonl": lines("x", field="body")}
    add_repository(web, files)
    described = Description(
        name="x",
        dataset_path="hf://org/name",
        content_field="body",
        corpuses=("en", "de"),
        corpus_separation_strategy="configs",
    )
    write_description(tmp_path / "metadata.json", described)
    assert texts(f"{tmp_path}:en") == ["hello"]
    assert texts(str(tmp_path)) == ["hello", "x"]


def test_nothing_to_read_is_said(web: Web):
    add_repository(web, {"README.md": b"", "script.py": b""})
    with pytest.raises(ConfigError, match="no data files") as caught:
        texts("hf://org/name")
    assert "refs/convert/parquet" in str(caught.value)


def test_a_missing_dataset_and_a_hub_that_is_none(web: Web):
    with pytest.raises(ConfigError, match="404") as caught:
        texts("hf://org/missing")
    assert "revision" in str(caught.value)
    web.files["/api/datasets/org/odd/revision/main"] = File(b"<html>")
    with pytest.raises(StorageError, match="not what a hub says"):
        texts("hf://org/odd")
    web.files["/api/datasets/org/odd/revision/main"] = File(b'{"sha": "../../x"}')
    with pytest.raises(StorageError, match="the commit is"):
        texts("hf://org/odd")


def test_the_next_page_is_never_on_another_host(web: Web, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    add_repository(web, {"a.jsonl": lines("x")})
    listing = f"/api/datasets/org/name/tree/{COMMIT}?recursive=true&expand=false"
    web.files[listing].headers["Link"] = '<https://evil.example/next>; rel="next"'
    with pytest.raises(StorageError, match="next page is elsewhere"):
        texts("hf://org/name")


def test_offline_is_respected(web: Web, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(StorageError, match="HF_HUB_OFFLINE"):
        texts("hf://org/name")
    assert not web.requests


def test_a_hub_that_stumbles_is_asked_again(web: Web):
    add_repository(web, {"train.jsonl": lines(*(f"text {n}" for n in range(3000)))})
    listing = f"/api/datasets/org/name/tree/{COMMIT}?recursive=true&expand=false"
    web.files["/api/datasets/org/name/revision/main"].statuses = [(503, {})]
    web.files[listing].statuses = [(429, {"Retry-After": "0"})]
    web.files[listing].cut_after, web.files[listing].num_cuts = 20, 1
    data = web.files[f"/datasets/org/name/resolve/{COMMIT}/train.jsonl"]
    data.statuses = [(500, {}), (504, {})]
    data.cut_after, data.num_cuts = 10_000, 4
    assert texts("hf://org/name") == [f"text {n}" for n in range(3000)]


def test_a_hub_that_stays_down_is_a_storage_error(web: Web):
    add_repository(web, {"train.jsonl": lines("x")})
    data = web.files[f"/datasets/org/name/resolve/{COMMIT}/train.jsonl"]
    data.statuses = [(503, {})] * 100
    with pytest.raises(StorageError, match=r"hf://org/name@a+/train\.jsonl.*503"):
        texts("hf://org/name")


def test_a_hub_that_stays_down_is_no_damage_of_parquet(web: Web):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": ["x" * 1000] * 1000}), buffer, compression="none")
    add_repository(web, {"a.parquet": buffer.getvalue()})
    (path,) = (path for path in web.files if path.startswith("/cdn/"))
    web.files[path].statuses = [(503, {})] * 100
    with pytest.raises(StorageError, match="503"):
        texts("hf://org/name")


def test_a_file_of_another_size_than_listed_is_refused(web: Web):
    add_repository(web, {"train.jsonl": lines("x" * 50)})
    data = web.files[f"/datasets/org/name/resolve/{COMMIT}/train.jsonl"]
    data.data += b"more"
    with pytest.raises(DamageError, match="the hub listed"):
        texts("hf://org/name")


def test_broken_json_on_the_hub_is_a_reject(web: Web, tmp_path: Path, tiny_vocabulary: Path):
    add_repository(web, {"train.jsonl": b'{"text": "x"}\n{"te\n'})
    with pytest.raises(BadDocumentError, match=r"train\.jsonl: byte 14"):
        tokenmill.tokenize("hf://org/name", tmp_path / "s", tokenizer=str(tiny_vocabulary))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    reads=st.lists(
        st.tuples(st.none() | st.integers(0, 260_000), st.integers(0, 120_000)), max_size=8
    ),
    cut=st.none() | st.integers(1, 60_000),
)
def test_any_reads_give_the_bytes_of_the_file(
    web: Web, reads: list[tuple[int | None, int]], cut: int | None
):
    data = random.Random(1).randbytes(250_000)
    path = f"/datasets/org/name/resolve/{COMMIT}/f.bin"
    web.files[path] = File(data, cut_after=cut, num_cuts=3)
    reference = io.BytesIO(data)
    with HubFile(f"hf://org/name@{COMMIT}/f.bin", len(data)) as file:
        for place, size in reads:
            if place is not None:
                assert file.seek(place) == reference.seek(place)
            assert file.read(size) == reference.read(size)
            assert file.tell() == reference.tell()


def test_reading_on_takes_one_request(web: Web):
    data = random.Random(1).randbytes(5_000_000)
    web.files[f"/datasets/org/name/resolve/{COMMIT}/f.bin"] = File(data)
    with HubFile(f"hf://org/name@{COMMIT}/f.bin", len(data)) as file:
        pieces = [file.read(100_000) for _ in range(50)]
    assert b"".join(pieces) == data
    assert web.ranges() == ["bytes=0-99999", "bytes=100000-"]


def test_going_back_does_not_read_on_from_elsewhere(web: Web):
    data = random.Random(1).randbytes(250_000)
    web.files[f"/datasets/org/name/resolve/{COMMIT}/f.bin"] = File(data)
    with HubFile(f"hf://org/name@{COMMIT}/f.bin", len(data)) as file:
        for _ in range(2):
            file.seek(0)
            assert file.read(10) == data[:10]
            assert file.read(70_000) == data[10:70_010]


def test_a_server_without_ranges_is_said(web: Web):
    data = b"x" * 100_000
    web.files[f"/datasets/org/name/resolve/{COMMIT}/f.bin"] = File(data, ranges=False)
    with HubFile(f"hf://org/name@{COMMIT}/f.bin", len(data)) as file:
        file.seek(70_000)
        with pytest.raises(StorageError, match="no ranges"):
            file.read(10)


def test_names_of_files_are_quoted(web: Web):
    add_repository(web, {})
    listing = f"/api/datasets/org/name/tree/{COMMIT}?recursive=true&expand=false"
    entry = {"type": "file", "path": "a b%20#?.jsonl", "size": len(lines("x")), "oid": "1"}
    web.files[listing].data = json.dumps([entry]).encode()
    web.files[f"/datasets/org/name/resolve/{COMMIT}/a%20b%2520%23%3F.jsonl"] = File(lines("x"))
    assert texts("hf://org/name") == ["x"]


def test_no_secret_is_shown(web: Web, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    add_repository(web, {"train.jsonl": lines("x")})
    data = web.files[f"/datasets/org/name/resolve/{COMMIT}/train.jsonl"]
    data.redirect = f"{web.url}/gone?Signature=canary"
    with pytest.raises(ConfigError) as caught:
        texts("hf://org/name")
    assert "canary" not in str(caught.value)
    assert hub.SCHEME in str(caught.value)
