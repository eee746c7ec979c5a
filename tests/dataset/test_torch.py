from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.dataset import masks
from tokenmill.dataset.batch import Batch
from tokenmill.dataset.token_dataset import TokenDataset, get_dataset

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler, Subset, default_collate  # noqa: E402

from tokenmill.dataset.torch import (  # noqa: E402
    collate,
    cu_seqlens,
    document_mask,
    flex_block_mask,
    max_seqlen,
    to_torch,
)

BuildStore = Callable[..., Any]
SEQ_LEN = 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, build_store: BuildStore) -> Path:
    folder = tmp_path_factory.mktemp("store")
    lengths = np.random.default_rng(0).integers(0, 20, size=80).tolist()
    documents = [[*range(2, 2 + length), 1] for length in lengths]
    build_store(folder, documents, shard_tokens=150)
    return folder


@pytest.fixture
def dataset(store: Path) -> TokenDataset:
    return get_dataset(store, SEQ_LEN)


def all_rows(batches: Iterator[Batch] | DataLoader[Any]) -> list[list[int]]:
    return [row.tolist() for batch in batches for row in batch["token_ids"]]


def expected_rows(store: Path) -> list[list[int]]:
    return get_dataset(store, SEQ_LEN, output="numpy")[:].token_ids.tolist()


def test_items_are_tensors(dataset: TokenDataset, store: Path):
    item = dataset[3]
    assert {key: value.dtype for key, value in item.items()} == {
        "token_ids": torch.int64,
        "labels": torch.int64,
        "document_ids": torch.int32,
        "position_ids": torch.int32,
    }
    assert item.token_ids.tolist() == expected_rows(store)[3]
    assert item.document_mask.dtype == torch.bool
    loss = torch.nn.functional.cross_entropy(torch.zeros(SEQ_LEN, 100), item.labels)
    assert loss > 0


@pytest.mark.parametrize("collate_name", ["ours", "default"])
def test_a_data_loader_gives_all_rows_in_order(
    collate_name: str, dataset: TokenDataset, store: Path
):
    function = dataset.collate if collate_name == "ours" else default_collate
    loader = DataLoader(dataset, batch_size=7, collate_fn=function)  # type: ignore[arg-type]
    batches = list(loader)
    assert all(type(batch) is Batch for batch in batches)
    assert all_rows(iter(batches)) == expected_rows(store)


@pytest.mark.parametrize(("context", "num_workers"), [("fork", 2), ("spawn", 1)])
@pytest.mark.filterwarnings("ignore")  # machines with one core; threads that were there before us
def test_workers_give_the_same_rows_twice(
    context: str, num_workers: int, dataset: TokenDataset, store: Path
):
    dataset[0]  # files are open before the fork
    loader = DataLoader(
        dataset,  # type: ignore[arg-type]
        batch_size=7,
        num_workers=num_workers,
        multiprocessing_context=context,
        persistent_workers=True,
        collate_fn=dataset.collate,
    )
    expected = expected_rows(store)
    for _ in range(2):
        assert all_rows(loader) == expected
    del loader


def test_ranks_share_the_rows(dataset: TokenDataset, store: Path):
    rows: list[list[int]] = []
    for rank in range(3):
        sampler: Any = DistributedSampler(
            dataset,  # type: ignore[arg-type]
            num_replicas=3,
            rank=rank,
            shuffle=True,
            drop_last=True,
        )
        loader = DataLoader(dataset, batch_size=4, sampler=sampler, collate_fn=collate)  # type: ignore[arg-type]
        rows += all_rows(loader)
    assert len(rows) == len(dataset) // 3 * 3
    assert all(row in expected_rows(store) for row in rows)


def test_subsets_and_batches_of_arrays_are_collated(dataset: TokenDataset, store: Path):
    subset: Any = Subset(dataset, [5, 1])  # type: ignore[arg-type]
    loader = DataLoader(subset, batch_size=2, collate_fn=collate)
    assert all_rows(loader) == [expected_rows(store)[5], expected_rows(store)[1]]
    plain = get_dataset(store, SEQ_LEN, output="numpy")
    for items in (plain.__getitems__([5, 1]), [plain[5], plain[1]]):
        assert collate(items).token_ids.tolist() == plain.collate(items).token_ids.tolist()
        assert isinstance(plain.collate(items).token_ids, np.ndarray)


def test_pinning_keeps_a_batch_a_batch(dataset: TokenDataset):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without an accelerator there is nothing to pin for
        loader = DataLoader(dataset, batch_size=4, pin_memory=True, collate_fn=dataset.collate)  # type: ignore[arg-type]
        batch = next(iter(loader))
    assert type(batch) is Batch
    moved = {key: value.to("cpu", non_blocking=True) for key, value in batch.items()}
    assert moved.keys() == batch.keys()


def test_batches_that_are_held_do_not_change(dataset: TokenDataset, store: Path):
    loader = DataLoader(dataset, batch_size=5, collate_fn=dataset.collate)  # type: ignore[arg-type]
    held = list(loader)
    for _ in loader:
        pass
    assert all_rows(iter(held)) == expected_rows(store)


@st.composite
def document_rows(draw: st.DrawFn, max_len: int = 40) -> np.ndarray:
    num_rows, seq_len = draw(st.integers(1, 3)), draw(st.integers(1, max_len))
    rows = []
    for _ in range(num_rows):
        cuts = draw(st.lists(st.integers(1, seq_len), max_size=6))
        row = np.searchsorted(np.unique([*cuts, seq_len]), np.arange(seq_len), side="right")
        num_padded = draw(st.integers(0, seq_len))
        rows.append(np.where(np.arange(seq_len) < seq_len - num_padded, row, -1))
    return np.array(rows, dtype=np.int32)


@given(ids=document_rows())
def test_tensors_have_the_masks_of_arrays(ids: np.ndarray):
    tensor = torch.from_numpy(ids)
    assert np.array_equal(document_mask(tensor).numpy(), masks.document_mask(ids))
    assert np.array_equal(cu_seqlens(tensor).numpy(), masks.cu_seqlens(ids))
    assert cu_seqlens(tensor).dtype == torch.int32
    assert max_seqlen(tensor) == masks.max_seqlen(ids)
    batch = to_torch(Batch(document_ids=ids))
    assert torch.equal(batch.cu_seqlens, cu_seqlens(tensor))
    assert batch.max_seqlen == masks.max_seqlen(ids)


@settings(max_examples=25, deadline=None)
@given(ids=document_rows(max_len=300), block_size=st.sampled_from([16, 32, 128]))
def test_the_block_mask_is_the_one_that_torch_finds_by_trying_every_place(
    ids: np.ndarray, block_size: int
):
    tensor = torch.from_numpy(ids)
    ours = flex_block_mask(tensor, block_size=block_size)
    num_rows, seq_len = ids.shape
    theirs = create_block_mask(
        ours.mask_mod, num_rows, None, seq_len, seq_len, device="cpu", BLOCK_SIZE=block_size
    )
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    assert torch.equal(full_blocks(ours), full_blocks(theirs))
    assert ours.shape == theirs.shape


def full_blocks(mask: Any) -> Any:
    """Return which blocks need no look at single places."""
    indices, counts = mask.full_kv_indices, mask.full_kv_num_blocks
    dense = torch.zeros(indices.shape, dtype=torch.bool)
    listed = torch.arange(indices.shape[-1]) < counts[..., None]
    return dense.scatter(-1, indices.long(), listed)


def test_attention_through_block_mask_and_lengths_never_leaves_a_document():
    generator = torch.Generator().manual_seed(0)
    ids = torch.tensor([[0] * 50 + [1] * 30 + [2] * 48, [0] * 100 + [-1] * 28], dtype=torch.int32)
    query, key, value = torch.randn(3, 2, 4, 128, 16, generator=generator)
    dense = scaled_dot_product_attention(query, key, value, attn_mask=document_mask(ids)[:, None])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # not compiled: slow, and right
        sparse = flex_attention(query, key, value, block_mask=flex_block_mask(ids, block_size=32))
    assert torch.allclose(dense, sparse, atol=1e-5)
    flat = [x.transpose(1, 2).reshape(256, 4, 16) for x in (query, key, value)]
    bounds = cu_seqlens(ids).tolist()
    pieces = [
        scaled_dot_product_attention(
            *(x[start:stop].transpose(0, 1) for x in flat), is_causal=True
        ).transpose(0, 1)
        for start, stop in pairwise(bounds)
    ]
    whole = torch.cat(pieces).reshape(2, 128, 4, 16).transpose(1, 2)
    assert torch.allclose(dense, whole, atol=1e-5)
