"""Sources in an object store give the bytes that local ones give."""

from __future__ import annotations

import bz2
import gzip
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from tokenmill import remote, tokenize
from tokenmill.errors import StorageError
from tokenmill.sources import SourceSettings, cut_units, find_files, read_unit
from tokenmill.store import sync
from tokenmill.tokenizer import load_tokenizer

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ceph")]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same texts in every format."""
    folder = tmp_path_factory.mktemp("raw")
    rng = random.Random(3)
    texts = [f"document {n} " + "naïve cat ☃ " * rng.randrange(60) for n in range(3000)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    plain = "\n".join(texts).encode()
    table = pa.table({"text": texts})
    (folder / "a.txt").write_bytes(plain)
    (folder / "a.txt.bz2").write_bytes(bz2.compress(plain))
    (folder / "a.jsonl").write_bytes(lines)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "a.json").write_text(json.dumps([{"text": text} for text in texts]))
    (folder / "a.csv").write_text("text\n" + "".join(f'"{text}"\n' for text in texts))
    pq.write_table(table, folder / "a.parquet", row_group_size=500)
    pyarrow.feather.write_feather(table, str(folder / "a.arrow"))
    return folder


def test_tokens_from_objects_equal_those_from_files(raw: Path, s3_place: str, tmp_path: Path):
    names = ["a.txt", "a.jsonl.gz", "a.parquet"]
    for name in names:
        remote.upload_file(raw / name, f"{s3_place}/{name}")
    local = [tokenize([str(raw / name)], tmp_path / f"local-{name}") for name in names]
    far = [tokenize([f"{s3_place}/{name}"], tmp_path / f"far-{name}") for name in names]
    assert [store.metadata.digest for store in far] == [store.metadata.digest for store in local]


def test_documents_of_every_format_equal_those_from_files(raw: Path, s3_place: str):
    sync(raw, s3_place)
    for path in sorted(raw.iterdir()):
        far = SourceSettings(places=(f"{s3_place}/{path.name}",))
        near = SourceSettings(places=(str(path),))
        assert list(documents(far)) == list(documents(near)), path.name


def documents(settings: SourceSettings) -> Iterator[tuple[str, list[int]]]:
    files = find_files(settings)
    for unit in cut_units(files, unit_bytes=100_000):
        for batch in read_unit(files, unit, settings):
            assert not batch.rejects
            yield "|".join(map(str, batch.texts)), batch.positions.tolist()


def test_an_object_that_changes_during_a_run_stops_it(s3_place: str):
    url = f"{s3_place}/a.txt"
    remote.put_object(url, b"one\ntwo\n")
    settings = SourceSettings(places=(url,))
    files = find_files(settings)
    remote.put_object(url, b"two\none\n")
    with pytest.raises(StorageError, match="was replaced"):
        list(read_unit(files, cut_units(files)[0], settings))


def test_a_described_folder_of_objects_is_a_source(s3_place: str):
    description = {
        "name": "web",
        "content_field": "content",
        "corpuses": ["en", "de"],
        "corpus_separation_strategy": "data_dirs",
    }
    remote.put_object(f"{s3_place}/metadata.json", json.dumps(description).encode())
    for corpus in ("de", "en"):
        line = json.dumps({"content": f"text in {corpus}"}).encode()
        remote.put_object(f"{s3_place}/{corpus}/a.jsonl", line + b"\n")
    both = find_files(SourceSettings(places=(s3_place,)))
    assert [file.path for file in both] == [f"{s3_place}/{name}/a.jsonl" for name in ("en", "de")]
    assert {file.text_field for file in both} == {"content"}
    one = find_files(SourceSettings(places=(f"{s3_place}:de",)))
    assert [file.path for file in one] == [f"{s3_place}/de/a.jsonl"]


def test_a_tokenizer_in_an_object_store_is_that_of_the_files(
    s3_place: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch
):
    copies = tmp_path_factory.mktemp("copies")
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    vocab = {str(byte): [byte] for byte in range(256)}
    vocab["256"] = list(b"th")
    (tmp_path / "t_vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "t_merges.txt").write_text("74 68\n")
    sync(tmp_path, s3_place)
    near = load_tokenizer(tmp_path / "t_vocab.json")
    far = load_tokenizer(f"{s3_place}/t_vocab.json")
    assert far.fingerprint == near.fingerprint
    assert load_tokenizer(s3_place).fingerprint == near.fingerprint
    assert not list(copies.iterdir())
