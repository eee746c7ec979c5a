"""Datasets, plans and loaders over a store in a real S3 server, through the cache of the node."""

from __future__ import annotations

import multiprocessing
import pickle
import random
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tokenmill import Loader, Plan, get_dataset
from tokenmill.dataset import Source, explain, open_source, which_rows
from tokenmill.errors import ConfigError, DamageError
from tokenmill.remote import join, put_object, read_object, upload_file
from tokenmill.store import CacheSettings, Metadata

if TYPE_CHECKING:
    from rigs.ceph import Ceph

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ceph")]

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")
CHUNK_KIB = 64
SMALL = 1 << 20
NUM_TOKENS = 1_500_000


@pytest.fixture(scope="module")
def stores(
    ceph: Ceph,
    build_store: Callable[..., Metadata],
    tmp_path_factory: pytest.TempPathFactory,
) -> Generator[tuple[Path, str]]:
    """The same store twice: in a folder, and in the object store."""
    local, url = tmp_path_factory.mktemp("stores") / "web", ceph.url("web")
    build_store(local, documents(), shard_tokens=400_000, num_ids=50_000)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ceph.environment.items():
            patch.setenv(name, value)
        upload(local, url)
        yield local, url


@pytest.fixture(autouse=True)
def opened(s3_place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Open the server to every test, with an empty cache of 1 MiB: a third of the store."""
    monkeypatch.setenv("TOKENMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKENMILL_CACHE_MIB", str(SMALL >> 20))
    monkeypatch.setenv("TOKENMILL_CACHE_CHUNK_KIB", str(CHUNK_KIB))


def documents() -> list[list[int]]:
    rng = np.random.default_rng(3)
    lengths = rng.integers(2, 3000, size=NUM_TOKENS // 1500).tolist()
    return [[*rng.integers(2, 50_000, size=length - 1).tolist(), 1] for length in lengths]


def upload(folder: Path, url: str) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            upload_file(path, join(url, *path.relative_to(folder).parts))


def cached_bytes(folder: Path) -> int:
    total = 0
    for path in folder.glob("cache/??/*"):
        with suppress(FileNotFoundError):  # evicted meanwhile
            total += path.stat().st_size
    return total


def same(mine: Any, other: Any) -> bool:
    return mine.keys() == other.keys() and all(np.array_equal(mine[k], other[k]) for k in mine)


@pytest.mark.parametrize("packing", ["concat", "best-fit", "pad", "sliding"])
def test_items_over_s3_are_those_of_the_folder(
    stores: tuple[Path, str], packing: Any, tmp_path: Path
):
    local, remote = (
        get_dataset(place, 512, packing=packing, output="numpy", stride=stride(packing))
        for place in stores
    )
    assert len(local) == len(remote) > 400
    rng = random.Random(1)
    items = [*range(40), *(rng.randrange(len(local)) for _ in range(60)), -1]
    assert same(remote[items], local[items])
    assert 0 < cached_bytes(tmp_path) <= SMALL


def stride(packing: str) -> int | None:
    return 300 if packing == "sliding" else None


def test_a_random_item_fetches_a_chunk_and_not_the_shard(stores: tuple[Path, str], tmp_path: Path):
    source = open_source(stores[1])
    source.read_into(np.empty(100, dtype=source.dtype), 1_000_000)
    chunks = [path for path in tmp_path.glob("cache/??/*") if path.stat().st_size == 64 << 10]
    assert len(chunks) == 1
    assert cached_bytes(tmp_path) < 70 << 10, "one chunk and the checksums of its blocks"


def test_four_processes_share_a_cache_that_is_too_small_for_the_store(
    stores: tuple[Path, str], tmp_path: Path
):
    local, url = stores
    expected = get_dataset(local, 1024, output="numpy")
    dataset = get_dataset(url, 1024, output="numpy")
    dataset[0]  # the parent has used the network before the fork
    work = [np.random.default_rng(k).integers(0, len(dataset), 60).tolist() for k in range(3)]
    work.append(list(range(300, 420)))
    results = [tmp_path / f"{number}.npy" for number in range(4)]
    processes: list[Any] = [
        context.Process(target=read_items, args=(dataset, items, result))
        for context, items, result in zip((SPAWN, FORK, SPAWN, FORK), work, results, strict=True)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    for items, result in zip(work, results, strict=True):
        assert np.array_equal(np.load(result), expected[items].token_ids)
    assert cached_bytes(tmp_path) <= SMALL


def read_items(dataset: Any, items: list[int], result: Path) -> None:
    rows = [dataset[items[k : k + 10]].token_ids for k in range(0, len(items), 10)]
    np.save(result, np.concatenate(rows))


def test_a_forked_process_opens_a_store_although_its_parent_used_the_network(
    stores: tuple[Path, str], tmp_path: Path
):
    get_dataset(stores[1], 512, output="numpy")
    result = tmp_path / "rows.npy"
    process = FORK.Process(target=open_and_read, args=(stores[1], result))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert np.array_equal(
        np.load(result), get_dataset(stores[0], 512, output="numpy")[:9].token_ids
    )


def open_and_read(url: str, result: Path) -> None:
    np.save(result, get_dataset(url, 512, output="numpy")[:9].token_ids)


def test_a_killed_reader_leaves_a_cache_that_others_can_use(
    stores: tuple[Path, str], tmp_path: Path
):
    local, url = stores
    expected = get_dataset(local, 1024, output="numpy")
    dataset = get_dataset(url, 1024, output="numpy")
    process = SPAWN.Process(target=read_for_ever, args=(dataset,))
    process.start()
    while not cached_bytes(tmp_path):
        process.join(0.02)
        assert process.exitcode is None
    process.join(0.1)
    process.kill()
    process.join()
    assert np.array_equal(dataset[:50].token_ids, expected[:50].token_ids)
    assert cached_bytes(tmp_path) <= SMALL


def read_for_ever(dataset: Any) -> None:
    while True:
        for item in range(len(dataset)):
            dataset[item]


def test_what_was_spoiled_in_the_cache_is_fetched_again(stores: tuple[Path, str], tmp_path: Path):
    local, url = stores
    expected = get_dataset(local, 512, output="numpy")[:60]
    assert same(get_dataset(url, 512, output="numpy")[:60], expected)
    for number, path in enumerate(sorted(tmp_path.glob("cache/??/*"))):
        data = bytearray(path.read_bytes())
        if number % 2:
            data[number % len(data)] ^= 1  # a bit
        else:
            del data[-1:]  # a cut
        path.write_bytes(data)
    assert same(get_dataset(url, 512, output="numpy")[:60], expected)


@pytest.mark.parametrize("file", ["train_000001.npy", "docs/train_000001.npy"])
def test_damage_where_the_store_is_names_the_object(
    stores: tuple[Path, str], s3_place: str, file: str
):
    upload(stores[0], s3_place)
    data = bytearray(read_object(join(s3_place, file)))
    data[500] ^= 4
    put_object(join(s3_place, file), bytes(data))
    dataset = get_dataset(s3_place, 512, output="numpy")
    dataset[0]
    with pytest.raises(DamageError, match=f"{s3_place}/{file}: .*(block 0|SHA-256)") as caught:
        dataset[400_000 // 511 + 1]
    assert caught.value.exit_code == 3
    assert f"tokenmill verify {s3_place} --level full" in (caught.value.hint or "")


def test_a_loader_over_s3_resumes_to_the_batches_of_the_folder(
    stores: tuple[Path, str], tmp_path: Path
):
    local, remote = (
        Plan(sources=(Source(path=str(place)),), seq_len=512, batch_size=8, seed=7)
        for place in stores
    )
    assert local.digest == remote.digest, "the place of a store is no part of what is trained on"
    batches = [local.batch(step).token_ids for step in range(12)]
    with Loader(remote, num_threads=2) as loader:
        half = [next(loader)[1].token_ids for _ in range(6)]
        state = loader.state_dict()
    with Loader(remote, rank=0, world_size=1) as again:
        again.load_state_dict(state)
        rest = [next(again)[1].token_ids for _ in range(6)]
    assert np.array_equal(np.stack([*half, *rest]), np.stack(batches))


def test_a_plan_file_names_stores_by_url_and_by_path(stores: tuple[Path, str], tmp_path: Path):
    local, url = stores
    file = tmp_path / "plan.yaml"
    (tmp_path / "beside").symlink_to(local)
    file.write_text(
        f"seq_len: 512\nbatch_size: 4\nsources:\n  - {{path: {url}, weight: 0.5}}\n"
        "  - {path: beside, weight: 0.5, name: local}\n"
    )
    plan = Plan.load(file)
    assert [source.path for source in plan.sources] == [url, str(tmp_path / "beside")]
    assert plan.digest[:7] == "sha256:"
    assert "web" in explain(plan, num_steps=10).text(tokens_per_second=1e6)
    assert {row.source for row in which_rows(plan, 1)} == {url.rpartition("/")[2], "local"}
    plan.save(tmp_path / "saved.json")
    assert Plan.load(tmp_path / "saved.json").batch(3).keys() == plan.batch(3).keys()


def test_a_dataset_takes_its_cache_along(stores: tuple[Path, str], tmp_path: Path):
    given = CacheSettings(cache_dir=str(tmp_path / "given"), cache_mib=2)
    dataset = pickle.loads(pickle.dumps(get_dataset(stores[1], 512, output="numpy", cache=given)))
    dataset[3]
    assert not (tmp_path / "cache").exists()
    assert list(tmp_path.glob("given/??/*"))


@pytest.mark.parametrize("options", [{"dtype": "uint16"}, {"eos_id": 3}])
def test_a_remote_store_says_itself_what_its_ids_are(stores: tuple[Path, str], options: Any):
    with pytest.raises(ConfigError, match="whose metadata says it"):
        get_dataset(stores[1], 512, **options)


def test_plain_files_of_ids_are_for_disks(stores: tuple[Path, str]):
    with pytest.raises(ConfigError, match="read from a disk") as caught:
        get_dataset(f"{stores[1]}/train_000000.npy", 512)
    assert "tokenmill sync" in (caught.value.hint or "")
