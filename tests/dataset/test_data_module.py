from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenmill.dataset import RandomAccessSource, TextDataModule
from tokenmill.dataset.data_module import Order
from tokenmill.errors import ConfigError

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_text("".join(f"line {number} of some text\n" for number in range(300)))
    return path


@pytest.fixture
def store(tmp_path: Path, build_store: Any) -> Path:
    rng = np.random.default_rng(1)
    documents = [[*rng.integers(2, 90, size=7).tolist(), 1] for _ in range(40)]
    build_store(tmp_path / "store", {"train": documents[:30], "val": documents[30:]})
    return tmp_path / "store"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_text_gives_the_same_rows_with_any_number_of_workers(text: Path, num_workers: int):
    data = TextDataModule(
        text,
        text,
        batch_size=4,
        context_length=16,
        num_workers=num_workers,
        prefetch_factor=2,
        unit_bytes=1000,
    )
    loader = data.train_dataloader()
    passes = [
        sorted(tuple(row) for batch in loader for row in batch.token_ids.tolist()) for _ in "ab"
    ]
    assert passes[0] == passes[1]
    expected = {
        tuple(row)
        for b in TextDataModule(
            text, batch_size=1, context_length=16, unit_bytes=1000
        ).train_dataloader()
        for row in b.token_ids.tolist()
    }
    assert set(passes[0]) == expected
    assert len(list(data.val_dataloader())) > 0


def test_a_store_gives_its_splits(store: Path):
    data = TextDataModule(store, batch_size=3, context_length=16)
    assert data.preprocessed
    rows = [row for batch in data.train_dataloader() for row in batch.token_ids.tolist()]
    assert sorted(rows) == sorted(data.train[:].token_ids.tolist())
    assert rows != data.train[:].token_ids.tolist()
    val = [row for batch in data.val_dataloader() for row in batch.token_ids.tolist()]
    assert val == data.val[:].token_ids.tolist()


def test_no_validation_data_is_said_when_it_is_asked_for(text: Path):
    data = TextDataModule(text, context_length=16)
    with pytest.raises(ConfigError, match="no validation data"):
        data.val_dataloader()


@pytest.mark.parametrize("seed", [None, 3])
def test_ranks_share_an_epoch(seed: int | None):
    orders = [Order(20, seed=seed, share=(rank, 3)) for rank in range(3)]
    first = [list(order) for order in orders]
    assert [len(part) for part in first] == [6, 6, 6]
    assert len({item for part in first for item in part}) == 18
    second = [list(order) for order in orders]
    assert (first == second) == (seed is None)
    orders[0].set_epoch(0)
    assert list(orders[0]) == first[0]


def test_a_random_access_source_gives_plain_dicts(store: Path):
    source = RandomAccessSource(store, 16)
    item = source[np.int64(2)]
    assert type(item) is dict
    assert item["token_ids"].tolist() == source.dataset[2].token_ids.tolist()
    assert len(source) == len(source.dataset)
    assert repr(source) == repr(RandomAccessSource(store, 16))
    assert repr(source) != repr(RandomAccessSource(store, 16, packing="best-fit"))
