from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tokenmill.errors import ConfigError, NotAStoreError
from tokenmill.store import Metadata, SplitEntry, hash_file, read_metadata, verify, write_metadata
from tokenmill.store import format as layout

BuildStore = Callable[..., Metadata]
LEVELS = ("structure", "sample", "full")
EOS = 0
DOCUMENTS = {
    "train": [[1, 2, EOS], [*[4] * 30, EOS], [EOS], [5, 6, EOS], [*[9] * 7, EOS]],
    "val": [[7, 8, EOS]],
}


@pytest.fixture
def store(tmp_path: Path, build_store: BuildStore) -> Path:
    folder = tmp_path / "store"
    build_store(folder, DOCUMENTS, rejects=b'{"reason": "bad-json"}\n' * 3, eos_id=EOS)
    return folder


def files_of(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("workers", [1, 3])
def test_an_untouched_store_has_no_problem(store: Path, level: str, workers: int):
    report = verify(store, level, workers=workers)
    assert report.ok
    assert report.problems == ()
    assert report.num_files == len(files_of(store))
    if level == "full":
        assert report.num_bytes == sum(path.stat().st_size for path in files_of(store))


def test_every_one_of_500_random_bit_flips_is_found(store: Path):
    rng = random.Random(20_261_115)
    files = files_of(store)
    offsets = [(path, place) for path in files for place in range(path.stat().st_size)]
    for number in range(500):
        # Every file gets its share, the small ones too; then anywhere.
        path = files[number] if number < len(files) else rng.choice(offsets)[0]
        data = path.read_bytes()
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        name = path.relative_to(store).as_posix()
        found = {problem.file for problem in verify(store, "full", workers=1).problems}
        assert name in found
        path.write_bytes(data)
    assert verify(store, "full").ok


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("damage", ["cut", "longer", "missing", "empty"])
def test_a_file_of_another_size_is_found_at_every_level(store: Path, level: str, damage: str):
    for path in files_of(store):
        if path.name == "metadata.json":
            continue
        data = path.read_bytes()
        path.unlink()
        if damage != "missing":
            path.write_bytes({"cut": data[:-1], "longer": data + b"\0", "empty": b""}[damage])
        report = verify(store, level)
        name = path.relative_to(store).as_posix()
        assert [problem.file for problem in report.problems] == [name]
        path.write_bytes(data)


def test_cut_metadata_is_reported_and_missing_metadata_is_no_store(store: Path):
    path = store / "metadata.json"
    path.write_bytes(path.read_bytes()[:-1])
    (problem,) = verify(store, "full").problems
    assert problem.file == "metadata.json"
    path.unlink()
    with pytest.raises(NotAStoreError):
        verify(store)


@pytest.mark.parametrize("folder", ["", "docs", "blocks"])
def test_swapped_files_are_found(store: Path, folder: str):
    first, second = store / folder / "train_000000.npy", store / folder / "train_000001.npy"
    other = store.parent / "other.npy"
    shutil.move(first, other)
    shutil.move(second, first)
    shutil.move(other, second)
    found = {problem.file for problem in verify(store, "full").problems}
    assert {path.relative_to(store).as_posix() for path in (first, second)} <= found


@pytest.mark.parametrize(
    "name", ["train_000009.npy", "test_000000.npy", "docs/train_000009.npy", "blocks/x.npy"]
)
@pytest.mark.parametrize("level", LEVELS)
def test_an_extra_shard_or_table_is_found(store: Path, name: str, level: str):
    (store / name).write_bytes((store / "train_000000.npy").read_bytes())
    (problem,) = verify(store, level).problems
    assert (problem.file, problem.problem) == (name, "not listed in the metadata")
    assert problem.next_command.startswith("mv ")


def test_rejects_that_nobody_listed_are_found(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path, {"train": [[1]]})
    (tmp_path / "rejects.jsonl").write_text("{}\n")
    (problem,) = verify(tmp_path).problems
    assert problem.file == "rejects.jsonl"


@pytest.mark.parametrize("level", LEVELS)
def test_the_folder_of_the_run_and_notes_are_no_content(store: Path, level: str):
    (store / "_run" / "docs").mkdir(parents=True)
    (store / "_run" / "train_000099.npy").write_bytes(b"")
    (store / "_run" / "journal.jsonl").write_text("{}")
    (store / "README.md").write_text("notes")
    (store / ".train_000000.npy.0123456789ab.partial").write_bytes(b"left by a crash")
    assert verify(store, level).ok


@pytest.mark.parametrize("level", LEVELS)
def test_an_empty_store_is_whole(tmp_path: Path, build_store: BuildStore, level: str):
    build_store(tmp_path, {"train": [], "val": []})
    assert verify(tmp_path, level).ok


def test_documents_without_tokens_are_whole_where_nothing_is_added(
    tmp_path: Path, build_store: BuildStore
):
    build_store(tmp_path, {"train": [[], [1], [], [], [2, 3], []]}, shard_tokens=1)
    assert verify(tmp_path, "full").ok


def test_problems_name_the_next_command(store: Path):
    (store / "train_000000.npy").unlink()
    (problem,) = verify(store).problems
    assert problem.problem == "is missing"
    assert problem.next_command == f"tokenmill verify {store} --level full"
    (problem,) = verify(store, "full").problems
    assert "tokenize again" in problem.next_command


def test_an_unknown_level_is_refused(store: Path):
    with pytest.raises(ConfigError, match="structure, sample, full"):
        verify(store, "deep")


def test_full_names_the_blocks_that_are_damaged(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path, {"train": [[1] * 1_000_000]}, shard_tokens=1_000_000)
    path = tmp_path / "train_000000.npy"
    data = bytearray(path.read_bytes())
    for block in (3, 17, 30):  # the pieces that are read have 16 blocks
        data[block * layout.BLOCK_BYTES + 9] ^= 1
    path.write_bytes(data)
    (problem,) = verify(tmp_path, "full").problems
    assert problem.problem == "its SHA-256 is not the one in the metadata; block 3, 17, 30"


def test_a_sample_is_the_same_for_the_same_seed_and_finds_a_wide_damage(
    tmp_path: Path, build_store: BuildStore
):
    build_store(tmp_path, {"train": [[1] * 3_000_000]}, shard_tokens=3_000_000)
    path = tmp_path / "train_000000.npy"
    data = bytearray(path.read_bytes())
    assert layout.num_blocks(len(data)) > 64  # more than a sample looks at
    for start in range(layout.HEADER_BYTES, len(data), 1_000):
        data[start] ^= 1
    path.write_bytes(data)
    reports = [verify(tmp_path, "sample", seed=seed) for seed in (1, 1, 2)]
    assert reports[0].problems == reports[1].problems != reports[2].problems
    assert "and 56 more of those looked at: wrong checksum" in reports[0].problems[0].problem
    assert reports[0].num_bytes < len(data)


def test_every_byte_is_reported_as_progress(store: Path):
    counted: list[int] = []
    verify(store, "full", on_bytes=counted.append)
    shards = [p for p in files_of(store) if p.suffix == ".npy"]
    assert sum(counted) == sum(path.stat().st_size for path in shards)


# Stores whose hashes are right and whose content is not: a bug in whatever wrote them.


def reseal(folder: Path, **changes: Any) -> None:
    """Bring the metadata in line with the files, as a faulty writer would have."""
    metadata = read_metadata(folder)
    splits: dict[str, SplitEntry] = {}
    for name, split in metadata.splits.items():
        shards = tuple(
            msgspec.structs.replace(
                shard,
                shard=hash_file(layout.shard_path(folder, name, index=index)),
                docs=hash_file(layout.docs_path(folder, name, index=index)),
                blocks=hash_file(layout.blocks_path(folder, name, index=index)),
            )
            for index, shard in enumerate(split.shards)
        )
        splits[name] = msgspec.structs.replace(split, shards=shards)
    write_metadata(folder, msgspec.structs.replace(metadata, splits=splits, **changes))


@pytest.mark.parametrize("level", ["sample", "full"])
def test_ids_beyond_the_vocabulary_are_found(tmp_path: Path, build_store: BuildStore, level: str):
    build_store(tmp_path, {"train": [[1] * 7, [2] * 9 + [99]]}, num_ids=100)
    metadata = read_metadata(tmp_path)
    fewer = msgspec.structs.replace(metadata.tokenizer, num_ids=99)
    reseal(tmp_path, tokenizer=fewer)
    (problem,) = verify(tmp_path, level).problems
    assert problem.problem.startswith("token 16 has an id that the tokenizer, with 99 ids")


@pytest.mark.parametrize("level", ["sample", "full"])
@pytest.mark.parametrize(
    "case",
    [
        ([[1, 0], [2, 3], [4, 0]], {"eos_id": 0}, "ends at token 4 does not end with EOS 0"),
        ([[1, 0], [2, 0], [4, 5]], {"eos_id": 0}, "ends at token 6 does not end with EOS 0"),
        ([[1, 0], [], [4, 0]], {"eos_id": 0}, "a document has no tokens"),
        ([[0, 1], [2, 3], [0, 4]], {"bos_id": 0}, "starts at token 2 does not start with BOS 0"),
        ([[1, 1], [0, 3], [0, 4]], {"bos_id": 0}, "starts at token 0 does not start with BOS 0"),
        ([[0, 1], [0, 3], [1, 4]], {"bos_id": 0}, "starts at token 4 does not start with BOS 0"),
    ],
)
@pytest.mark.parametrize("shard_tokens", [2, 3, 4, 10])
def test_documents_without_their_bos_or_eos_are_found(
    tmp_path: Path,
    build_store: BuildStore,
    level: str,
    case: tuple[list[list[int]], dict[str, int], str],
    shard_tokens: int,
):
    documents, added, message = case
    build_store(tmp_path, {"train": documents}, shard_tokens=shard_tokens, **added)
    problems = verify(tmp_path, level).problems
    assert len(problems) == 1
    assert message in problems[0].problem


@pytest.mark.parametrize("level", ["sample", "full"])
def test_the_document_that_a_limit_cut_needs_no_eos(
    tmp_path: Path, build_store: BuildStore, level: str
):
    metadata = build_store(tmp_path, {"train": [[1, 0], [2, 3, 4]]}, shard_tokens=3, eos_id=0)
    assert not verify(tmp_path, level).ok
    cut = msgspec.structs.replace(metadata.splits["train"], last_document_cut=True)
    write_metadata(tmp_path, msgspec.structs.replace(metadata, splits={"train": cut}))
    assert verify(tmp_path, level).ok


def test_a_block_table_of_other_content_is_found(store: Path):
    path = store / "blocks/train_000000.npy"
    np.save(path, np.load(path) + np.uint64(1))
    reseal(store)
    (problem,) = verify(store, "full").problems
    assert problem.file == "blocks/train_000000.npy"
    assert verify(store, "structure").ok


def test_a_document_table_that_goes_backwards_is_found(store: Path):
    path = store / "docs/train_000003.npy"
    table = np.load(path)
    table["end"] = table["end"][::-1].copy()
    np.save(path, table)
    reseal(store)
    (problem,) = verify(store, "full").problems
    assert (problem.file, "out of order" in problem.problem) == ("docs/train_000003.npy", True)


def test_documents_counted_to_the_wrong_source_are_found(store: Path):
    path = store / "docs/val_000000.npy"
    table = np.load(path)
    table["source"] = 0
    np.save(path, table)
    reseal(store)
    problems = verify(store, "full").problems
    assert [problem.problem for problem in problems] == [
        "source 0 has 1 documents, the tables list 2",
        "source 1 has 5 documents, the tables list 4",
    ]
