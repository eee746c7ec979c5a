from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenmill.dataset import token_dataset
from tokenmill.dataset.token_dataset import TokenDataset, get_dataset, split_items
from tokenmill.errors import ConfigError, DamageError, MissingDependencyError, NotAStoreError
from tokenmill.store import ConsolidateSettings, consolidate

BuildStore = Callable[..., Any]
DOCUMENTS = {
    "train": [[2, 3, 1], [4, 5, 6, 7, 8, 1], [9, 1], [10, 11, 12, 13, 1], [14, 15, 16, 17, 1]],
    "val": [[20, 21, 22, 1]],
}
STREAM = [token for document in DOCUMENTS["train"] for token in document]


@pytest.fixture
def store(tmp_path: Path, build_store: BuildStore) -> Path:
    build_store(tmp_path / "store", DOCUMENTS, shard_tokens=8)
    return tmp_path / "store"


def open_numpy(path: Path, context_length: int = 4, **options: Any) -> TokenDataset:
    return get_dataset(path, context_length, output="numpy", **options)


def test_a_dataset_is_a_sequence_of_items(store: Path):
    dataset = open_numpy(store)
    assert len(dataset) == 5
    assert [item.token_ids.tolist() for item in dataset] == [
        STREAM[i : i + 4] for i in range(0, 20, 4)
    ]
    assert dataset[1].labels.tolist() == STREAM[5:9]
    assert dataset[-1]["token_ids"].tolist() == dataset[4].token_ids.tolist()
    assert dataset[np.int64(2)].token_ids.tolist() == STREAM[8:12]
    for index in (5, -6):
        with pytest.raises(IndexError, match=rf"item {index} is outside \[0, 5\)"):
            dataset[index]
    for wrong in ("token_ids", 1.0, [0.5]):
        with pytest.raises(TypeError):
            dataset[wrong]  # type: ignore[index]


def test_slices_and_lists_give_batches(store: Path):
    dataset = open_numpy(store)
    assert dataset[1:3].token_ids.tolist() == [STREAM[4:8], STREAM[8:12]]
    assert dataset[::-2].token_ids[:, 0].tolist() == [STREAM[16], STREAM[8], STREAM[0]]
    assert dataset[[-1, 0]].token_ids[:, 0].tolist() == [STREAM[16], STREAM[0]]
    assert dataset[3:3].token_ids.shape == (0, 4)


def test_a_dataset_knows_its_numbers(store: Path):
    dataset = open_numpy(store)
    assert (dataset.num_tokens(), dataset.num_files(), dataset.vocab_size) == (21, 3, 100)
    assert dataset.context_length == 4
    assert dataset.accounting().num_used == 21
    assert repr(dataset) == "TokenDataset(5 items of 4 tokens, 21 tokens in 3 files)"


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([42, 71, 1, 987, 666, 809, 1, 42, 1], [0, 0, 0, 1, 1, 1, 1, 2, 2]),
        ([1, 5, 6], [0, 1, 1]),
        ([5, 1, 1, 6], [0, 0, 1, 2]),
    ],
)
def test_documents_are_numbered_as_users_know_it(
    ids: list[int], expected: list[int], tmp_path: Path
):
    np.save(tmp_path / "train_000000.npy", np.array([*ids, 99], dtype=np.uint16))
    dataset = open_numpy(tmp_path, len(ids), eos_id=1)
    assert dataset[0].document_ids.tolist() == expected
    mask = dataset[0].document_mask
    same = np.equal.outer(expected, expected)
    assert np.array_equal(mask, same & np.tri(len(ids), dtype=bool))


def test_the_dense_mask_comes_with_items_that_ask_for_it(store: Path):
    item = open_numpy(store, document_mask=True)[0]
    assert item["document_mask"].astype(int).tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [0, 0, 0, 1],
    ]
    assert "document_mask" not in open_numpy(store)[0]


def test_sliding_windows_are_those_of_stride_one(store: Path):
    dataset = open_numpy(store, packing="sliding")
    assert len(dataset) == len(STREAM) - 4
    for i in (0, 7, 16):
        assert dataset[i].token_ids.tolist() == STREAM[i : i + 4]
        assert dataset[i].labels.tolist() == STREAM[i + 1 : i + 5]
    with pytest.raises(IndexError):
        dataset[17]


def test_a_store_has_its_own_splits(store: Path):
    assert open_numpy(store, 2, split="val")[0].token_ids.tolist() == [20, 21]
    assert open_numpy(store, 2, split="validation")[0].token_ids.tolist() == [20, 21]
    assert len(open_numpy(store, split="train")) == 5
    with pytest.raises(ConfigError, match="no split 'test'"):
        open_numpy(store, split="test")


def test_the_last_items_are_for_validation(store: Path):
    train = open_numpy(store, split="train", validation=0.3)
    val = open_numpy(store, split="val", validation=0.3)
    assert (len(train), len(val)) == (3, 2)
    assert val[0].token_ids.tolist() == STREAM[12:16]
    assert train[-1].token_ids.tolist() == STREAM[8:12]
    assert len(open_numpy(store, validation=0.3)) == 5
    assert len(open_numpy(store, split="validation", validation=1)) == 1
    with pytest.raises(IndexError):
        train[3]


@given(num_items=st.integers(1, 10**6), percent=st.integers(1, 99))
@example(num_items=100, percent=7)
def test_a_part_is_rounded_up_exactly(num_items: int, percent: int):
    val = split_items(num_items, percent / 100, split="val")
    assert len(val) == math.ceil(Fraction(num_items * percent, 100))
    assert val.stop == num_items
    if len(val) < num_items:
        train = split_items(num_items, percent / 100, split="train")
        assert (train.start, train.stop) == (0, val.start)


@pytest.mark.parametrize(
    ("validation", "split", "problem"),
    [
        (6, "val", "there are 5 items"),
        (5, "train", "none are left for train"),
        (0, "val", "none are left for val"),
        (-1, "val", "expected a number of items"),
        (1.5, "val", "expected a number of items"),
        (True, "val", "expected a number of items"),
        (math.nan, "val", "expected a number of items"),
        (0.5, "test", "split is 'test'"),
    ],
)
def test_parts_that_make_no_sense_are_refused(
    validation: float, split: str, problem: str, store: Path
):
    with pytest.raises(ConfigError, match=problem):
        open_numpy(store, split=split, validation=validation)


def test_a_pickled_dataset_reads_the_same(store: Path):
    for packing in ("concat", "best-fit", "pad", "sliding"):
        dataset = open_numpy(store, packing=packing)
        other = pickle.loads(pickle.dumps(dataset))
        assert len(other) == len(dataset)
        for key in dataset[2]:
            assert np.array_equal(other[2][key], dataset[2][key])


def test_plain_files_are_found_in_the_order_of_their_numbers(tmp_path: Path):
    for number, ids in ((2, [3, 4]), (10, [5, 6]), (1, [1, 2])):
        np.save(tmp_path / f"train_{number}.npy", np.array(ids, dtype=np.uint16))
    np.save(tmp_path / "val_0.npy", np.array([7, 8, 9], dtype=np.uint16))
    assert open_numpy(tmp_path, 5)[0].token_ids.tolist() == [1, 2, 3, 4, 5]
    assert open_numpy(tmp_path, 2, split="val")[0].token_ids.tolist() == [7, 8]
    assert open_numpy(tmp_path / "val_0.npy", 2)[0].token_ids.tolist() == [7, 8]
    assert open_numpy(tmp_path, 5).vocab_size is None
    with pytest.raises(ConfigError, match="one file has no split 'val'"):
        open_numpy(tmp_path / "val_0.npy", 2, split="val")
    with pytest.raises(NotAStoreError, match="'test'"):
        open_numpy(tmp_path, 2, split="test")


def test_a_folder_with_two_bin_files_is_what_it_says(tmp_path: Path):
    np.array([1, 2, 3], dtype=np.uint32).tofile(tmp_path / "train.bin")
    np.array([4, 5, 6], dtype=np.uint32).tofile(tmp_path / "val.bin")
    val = open_numpy(tmp_path, 2, split="val", dtype="uint32")
    assert val[0].labels.tolist() == [5, 6]


def test_consolidated_tokens_keep_their_documents(store: Path):
    with pytest.raises(ConfigError, match="not a consolidated split"):
        open_numpy(store / "tokens.bin")
    consolidate(store, ConsolidateSettings(seq_len=4, delete_shards=True))
    assert not list(store.glob("train_*.npy"))
    dataset = open_numpy(store / "tokens.bin")
    assert (dataset.num_tokens(), dataset.num_files(), dataset.vocab_size) == (21, 1, 100)
    assert open_numpy(store, 2, split="val").num_tokens() == 4
    assert open_numpy(store / "val_tokens.bin", 2).num_tokens() == 4
    assert dataset[:].document_ids.tolist() == [
        [0, 0, 0, 1],
        [0, 0, 0, 0],
        [0, 1, 1, 2],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
    ]
    np.array(STREAM[:-1], dtype=np.uint16).tofile(store / "tokens.bin")
    with pytest.raises(DamageError, match=r"tokens\.bin"):
        open_numpy(store / "tokens.bin")


def test_what_a_store_knows_is_not_asked_for(store: Path):
    with pytest.raises(ConfigError, match="dtype and eos_id given for a store"):
        open_numpy(store, dtype="uint16", eos_id=1)


@pytest.mark.parametrize("context_length", [21, 1000])
def test_a_context_longer_than_the_store_names_it(context_length: int, store: Path):
    with pytest.raises(ConfigError, match=r"store: 21 tokens make no row"):
        open_numpy(store, context_length)


def test_wrong_paths_and_settings_are_clear_errors(store: Path, tmp_path: Path):
    with pytest.raises(NotAStoreError, match="no such folder"):
        open_numpy(tmp_path / "nothing")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ConfigError, match="neither a store nor a file of token ids"):
        open_numpy(tmp_path / "notes.txt")
    with pytest.raises(ConfigError, match="output is 'jax'"):
        get_dataset(store, 4, output="jax")  # type: ignore[arg-type]


def test_tensors_without_torch_are_a_clear_error(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(token_dataset, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="torch"):
        get_dataset(store, 4)
    assert len(open_numpy(store)) == 5
