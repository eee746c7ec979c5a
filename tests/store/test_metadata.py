from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tokenmill.errors import ConfigError, DamageError, NotAStoreError, TokenmillError
from tokenmill.store import (
    Counts,
    Metadata,
    content_digest,
    open_store,
    read_metadata,
    write_metadata,
)
from tokenmill.store.metadata import decode_metadata

BuildStore = Callable[..., Metadata]
DOCUMENTS = {"train": [[1, 2, 3], [4] * 30], "val": [[7, 8]]}


@pytest.fixture
def store(tmp_path: Path, build_store: BuildStore) -> Path:
    build_store(tmp_path / "store", DOCUMENTS, rejects=b'{"reason": "bad-json"}\n')
    return tmp_path / "store"


def test_what_is_written_is_read_back(store: Path):
    metadata = read_metadata(store)
    data = (store / "metadata.json").read_bytes()
    assert write_metadata(store, metadata) == metadata
    assert (store / "metadata.json").read_bytes() == data
    assert metadata.num_tokens == 35
    assert metadata.num_documents == 3
    assert not metadata.add_eos


def test_it_is_json_that_a_person_can_read(store: Path):
    text = (store / "metadata.json").read_text()
    assert json.loads(text)["splits"]["train"]["num_tokens"] == 33
    assert text.startswith('{\n  "format": 1,\n  "checksum": "sha256:')
    assert '\n      "num_tokens": 33,\n' in text


def test_a_flip_of_any_bit_is_found_at_open(store: Path):
    path = store / "metadata.json"
    data = path.read_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        with pytest.raises(DamageError):
            decode_metadata(bytes(damaged), path)


@pytest.mark.parametrize("keep", [0, 1, 20, 90, 700])
def test_cut_metadata_is_damage(store: Path, keep: int):
    path = store / "metadata.json"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DamageError, match=r"metadata\.json: damaged"):
        open_store(store)


def test_the_digest_names_content_and_nothing_else(store: Path):
    metadata = read_metadata(store)
    same = msgspec.structs.replace(
        metadata,
        created=datetime(2031, 1, 1, tzinfo=UTC),
        versions={"tokenmill": "9"},
        settings={"workers": 3},
        sources=(),
    )
    assert content_digest(same) == metadata.digest
    others = [
        msgspec.structs.replace(metadata, dtype="uint32"),
        msgspec.structs.replace(metadata, eos_id=1),
        msgspec.structs.replace(metadata, bos_id=1),
        msgspec.structs.replace(metadata, counts=Counts(rejected={"bad-json": 2})),
        msgspec.structs.replace(metadata, splits={"train": metadata.splits["train"]}),
        msgspec.structs.replace(metadata, format=2),
    ]
    digests = {content_digest(other) for other in others}
    assert len(digests | {metadata.digest}) == 1 + len(others)


def test_the_order_of_splits_and_settings_does_not_change_the_bytes(store: Path):
    metadata = read_metadata(store)
    data = (store / "metadata.json").read_bytes()
    turned = msgspec.structs.replace(metadata, splits=dict(reversed(metadata.splits.items())))
    write_metadata(store, turned)
    assert (store / "metadata.json").read_bytes() == data


def test_a_newer_format_asks_for_an_upgrade(store: Path):
    rewrite(store, lambda record: record.update(format=2, shiny="new"))
    with pytest.raises(ConfigError, match="store format 2") as caught:
        open_store(store)
    assert "upgrade" in str(caught.value)


def test_a_newer_format_that_begins_otherwise_asks_for_an_upgrade_too(store: Path):
    (store / "metadata.json").write_text('{"format": 12, "parts": []}')
    with pytest.raises(ConfigError, match="store format 12"):
        open_store(store)


def test_some_other_metadata_file_is_not_a_store(store: Path):
    (store / "metadata.json").write_text('{"name": "books", "content_field": "text"}')
    with pytest.raises(NotAStoreError, match="not the metadata of a token store"):
        open_store(store)


def shard(record: dict[str, Any]) -> dict[str, Any]:
    return record["splits"]["train"]["shards"][0]


def move_last_document_to_an_empty_shard(record: dict[str, Any]) -> None:
    shards, zeros = record["splits"]["train"]["shards"], "0" * 64
    shards[-1].update(num_documents=0, docs={"bytes": 192, "sha256": zeros})
    sizes = {"shard": 128, "docs": 192 + 20, "blocks": 128 + 8}
    files = {name: {"bytes": size, "sha256": zeros} for name, size in sizes.items()}
    shards.append({"num_tokens": 0, "num_documents": 1, **files})


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "split is a path": lambda r: r["splits"].update({"../../tmp/x": r["splits"].pop("val")}),
    "split is absolute": lambda r: r["splits"].update({"/etc/x": r["splits"].pop("val")}),
    "tokenizer is a path": lambda r: r["tokenizer"].update(file="../../etc/passwd"),
    "tokenizer is absolute": lambda r: r["tokenizer"].update(file="/etc/passwd"),
    "tokenizer is the metadata": lambda r: r["tokenizer"].update(file="metadata.json"),
    "negative count": lambda r: shard(r).update(num_tokens=-1),
    "absurd count": lambda r: r["splits"]["train"].update(num_tokens=2**62),
    "count beyond 64 bits": lambda r: r["splits"]["train"].update(num_tokens=10**40),
    "counts do not add up": lambda r: r["splits"]["train"].update(num_documents=7),
    "tokens do not add up": lambda r: r["splits"]["train"].update(num_tokens=32),
    "counts of shards do not add up": lambda r: (
        r["splits"]["train"].update(num_documents=7),
        r["sources"][1].update(num_documents=7),
    ),
    "an empty shard at the end": move_last_document_to_an_empty_shard,
    "source tokens do not add up": lambda r: r["sources"][0].update(num_tokens=2),
    "source counts do not add up": lambda r: r["sources"][0].update(num_documents=2),
    "sizes do not add up": lambda r: shard(r)["shard"].update(bytes=10**15),
    "docs sizes do not add up": lambda r: shard(r)["docs"].update(bytes=0),
    "shard missing": lambda r: r["splits"]["train"]["shards"].pop(),
    "shard too many": lambda r: r["splits"]["train"]["shards"].append(shard(r)),
    "shard tokens zero": lambda r: r.update(shard_tokens=0),
    "shard tokens changed": lambda r: r.update(shard_tokens=11),
    "hash is not hex": lambda r: shard(r)["shard"].update(sha256="z" * 64),
    "hash is short": lambda r: shard(r)["shard"].update(sha256="00"),
    "hash with a newline": lambda r: shard(r)["shard"].update(sha256="0" * 64 + "\n"),
    "wrong type": lambda r: r.update(splits=[]),
    "text for a number": lambda r: shard(r).update(num_tokens="10"),
    "unknown key": lambda r: r.update(shiny="new"),
    "missing key": lambda r: r.pop("dtype"),
    "dtype": lambda r: r.update(dtype="object"),
    "too many ids": lambda r: r["tokenizer"].update(num_ids=65_537),
    "no ids": lambda r: r["tokenizer"].update(num_ids=0),
    "eos beyond the ids": lambda r: r.update(eos_id=100),
    "no document in the last shard": lambda r: (
        r["splits"]["train"]["shards"][-1].update(num_documents=0),
        r["splits"]["train"]["shards"][-1]["docs"].update(bytes=192),
        shard(r).update(num_documents=2),
        shard(r)["docs"].update(bytes=192 + 2 * 20),
    ),
    "time without zone": lambda r: r.update(created="2026-01-01T00:00:00"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_metadata_with_a_good_checksum_is_damage(store: Path, name: str):
    rewrite(store, HOSTILE[name], with_digest=True)
    with pytest.raises(DamageError, match=r"metadata\.json: damaged"):
        open_store(store)


def test_entries_that_are_not_those_of_the_digest_are_damage(store: Path):
    rewrite(store, lambda record: shard(record)["shard"].update(sha256="0" * 64))
    with pytest.raises(DamageError, match="digest does not match"):
        open_store(store)


def test_deep_nesting_is_damage_and_not_a_crash(store: Path):
    text = (store / "metadata.json").read_text()
    deep = "[" * 100_000 + "]" * 100_000
    seal(store, text.replace('"settings": {', f'"settings": {{"deep": {deep}, '))
    with pytest.raises(DamageError):
        open_store(store)
    (store / "metadata.json").write_text('{"a":' * 100_000)
    with pytest.raises(DamageError):
        open_store(store)


def test_metadata_that_does_not_add_up_is_never_written(store: Path):
    metadata = read_metadata(store)
    data = (store / "metadata.json").read_bytes()
    with pytest.raises(ValueError, match="was not written"):
        write_metadata(store, msgspec.structs.replace(metadata, shard_tokens=7))
    assert (store / "metadata.json").read_bytes() == data


def test_names_of_sources_that_are_not_utf8_are_escaped(store: Path):
    metadata = read_metadata(store)
    odd = msgspec.structs.replace(metadata.sources[0], path="caf\udce9.txt")
    settings = {"sources": ["caf\udce9.txt"]}
    changed = msgspec.structs.replace(
        metadata, sources=(odd, *metadata.sources[1:]), settings=settings
    )
    written = write_metadata(store, changed)
    assert written.sources[0].path == "caf\\udce9.txt"
    assert read_metadata(store) == written


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda f: None, "no such folder", "spelling"),
        (lambda f: f.mkdir(), r"no metadata\.json", "tokenmill tokenize"),
        (
            lambda f: (f / "_run").mkdir(parents=True),
            "in progress or did not finish",
            "tokenmill status",
        ),
        (lambda f: f.write_text(""), "a file, expected the folder", ""),
    ],
)
def test_what_is_no_store_says_what_it_is(
    tmp_path: Path, make: Callable[[Path], object], message: str, hint: str
):
    make(tmp_path / "thing")
    with pytest.raises(NotAStoreError, match=message) as caught:
        open_store(tmp_path / "thing")
    assert hint in str(caught.value)


def test_an_unfinished_run_is_hinted_at_with_a_quoted_path(tmp_path: Path):
    (tmp_path / "my store" / "_run").mkdir(parents=True)
    with pytest.raises(TokenmillError) as caught:
        open_store(tmp_path / "my store")
    assert f"tokenmill status '{tmp_path}/my store'" in str(caught.value)


def rewrite(
    store: Path, change: Callable[[dict[str, Any]], object], *, with_digest: bool = False
) -> None:
    """Change the metadata of a store as someone would who means harm and can compute checksums."""
    record = json.loads((store / "metadata.json").read_text())
    change(record)
    if with_digest:
        with contextlib.suppress(KeyError, AttributeError):  # too broken to have one
            record["digest"] = digest_of(record)
    seal(store, json.dumps(record, indent=2) + "\n")


def digest_of(record: dict[str, Any]) -> str:
    content = {
        "format": 1,
        "dtype": record["dtype"],
        "tokenizer": record["tokenizer"]["fingerprint"],
        "bos_id": record["bos_id"],
        "eos_id": record["eos_id"],
        "num_rejected": sum(record["counts"]["rejected"].values()),
        "splits": {
            name: [
                [s["num_tokens"], s["num_documents"], s["shard"]["sha256"], s["docs"]["sha256"]]
                for s in split["shards"]
            ]
            for name, split in record["splits"].items()
        },
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return f"sha256:{hashlib.sha256(canonical).hexdigest()}"


def seal(store: Path, text: str) -> None:
    zeros = re.sub(r'("checksum": "sha256:)[0-9a-f]{64}', rf"\g<1>{'0' * 64}", text, count=1)
    checksum = hashlib.sha256(zeros.encode()).hexdigest()
    (store / "metadata.json").write_text(zeros.replace("0" * 64, checksum, 1))
