"""Batches as tensors of torch, and attention over documents without a dense mask.

The only file of this stage that imports torch. Legend: B rows of T tokens, H heads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from tokenmill.dataset.batch import Batch
from tokenmill.dataset.items import Items
from tokenmill.dataset.stream_text import TextStream

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def to_torch(batch: Batch) -> Batch:
    """Return a batch with tensors instead of arrays; they share their memory."""
    return Batch({key: torch.as_tensor(value) for key, value in batch.items()})


def collate(items: Sequence[Batch]) -> Batch:
    """Return items as one batch of tensors: the `collate_fn` of a `DataLoader`.

    Items that a dataset read together are not copied, which makes it faster than torch's own.
    """
    if isinstance(items, Items):
        return to_torch(items.batch)
    joined = Batch()
    for key in items[0]:
        values = [torch.as_tensor(item[key]) for item in items]
        joined[key] = torch.stack(values)
    return joined


def document_mask(document_ids: Tensor) -> Tensor:
    """Return `mask[..., q, k]`: whether q and k are of one document and q does not precede k."""
    same = document_ids[..., :, None] == document_ids[..., None, :]
    return same.tril()


def cu_seqlens(document_ids: Tensor) -> Tensor:
    """Return where documents begin in all rows laid end to end, and then the number of tokens."""
    begins = torch.ones_like(document_ids, dtype=torch.bool)
    begins[..., 1:] = document_ids[..., 1:] != document_ids[..., :-1]
    starts = begins.flatten().nonzero().flatten()
    return torch.nn.functional.pad(starts, (0, 1), value=begins.numel()).to(torch.int32)


def max_seqlen(document_ids: Tensor) -> int:
    """Return the length of the longest document in a row."""
    return int(cu_seqlens(document_ids).diff().max())


def flex_mask_mod(document_ids: Tensor) -> MaskMod:
    """Return the mask of documents (B, T) as FlexAttention takes it: a function of places."""

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        del h
        return (q >= k) & (document_ids[b, q] == document_ids[b, k])

    return mask_mod


def flex_block_mask(document_ids: Tensor, *, block_size: int = 128) -> BlockMask:
    """Return the block mask of documents (B, T) for `flex_attention`.

    Equal to `create_block_mask(flex_mask_mod(document_ids), …)`, which evaluates all T * T places;
    this looks at the first and the last document of each block, since documents are in order.
    """
    seq_len = document_ids.shape[1]
    num_blocks = -(-seq_len // block_size)
    # Padding comes last in a row and is numbered -1: give it the highest number instead.
    ids = torch.where(document_ids < 0, torch.iinfo(document_ids.dtype).max, document_ids)
    starts = torch.arange(num_blocks, device=ids.device) * block_size
    first = ids[:, starts]  # (B, N)
    last = ids[:, (starts + block_size - 1).clamp(max=seq_len - 1)]  # (B, N)
    before = torch.ones(num_blocks, num_blocks, dtype=torch.bool, device=ids.device).tril(-1)
    shared = before & (last[:, None, :] >= first[:, :, None])  # (B, N, N): q blocks, k blocks
    full = before & (first[:, None, :] == last[:, :, None])
    if seq_len % block_size:
        full[:, -1] = False  # places past the end of the row are in no document
    partial = (shared & ~full) | torch.eye(num_blocks, dtype=torch.bool, device=ids.device)
    return BlockMask.from_kv_blocks(
        *_block_lists(partial),
        *_block_lists(full),
        BLOCK_SIZE=block_size,
        mask_mod=flex_mask_mod(document_ids),
        seq_lengths=(seq_len, seq_len),
    )


def _block_lists(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return how many blocks of each row are set, and the blocks with those in front."""
    counts = blocks.sum(dim=-1, dtype=torch.int32)
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True).to(torch.int32)
    return counts[:, None], order[:, None]


class TensorDelivery:
    """Turns batches of arrays into tensors for a consumer, on a device if one is given.

    `prepare` runs in a thread of the loader and waits there until the copy to the device is done,
    on a stream of its own, so that it overlaps with what the consumer computes. `receive` runs in
    the thread of the consumer.
    """

    def __init__(self, *, device: Any = None, pin_memory: bool | None = None) -> None:
        self.device = None if device is None else torch.device(device)
        self.is_cuda = self.device is not None and self.device.type == "cuda"
        self.pin_memory = self.is_cuda if pin_memory is None else pin_memory
        self._streams = threading.local()

    def prepare(self, batch: Batch) -> Batch:
        """Return a batch of tensors that are complete."""
        tensors = to_torch(batch)
        if self.pin_memory:
            tensors = Batch({name: tensor.pin_memory() for name, tensor in tensors.items()})
        if self.device is None:
            return tensors
        if not self.is_cuda:
            return Batch({name: tensor.to(self.device) for name, tensor in tensors.items()})
        stream = self._stream()
        with torch.cuda.stream(stream):
            moved = {
                name: tensor.to(self.device, non_blocking=True) for name, tensor in tensors.items()
            }
        stream.synchronize()
        return Batch(moved)

    def receive(self, batch: Batch) -> None:
        """Let the memory of a batch be reused only after what the consumer does with it now."""
        if self.is_cuda:
            for tensor in batch.values():
                tensor.record_stream(torch.cuda.current_stream(self.device))

    def _stream(self) -> torch.cuda.Stream:
        """Return the stream of this thread."""
        if not hasattr(self._streams, "stream"):
            self._streams.stream = torch.cuda.Stream(self.device)
        return self._streams.stream


def make_data_loader(dataset: Any, **options: Any) -> DataLoader[Batch]:
    """Return torch's `DataLoader` over a dataset of ours, with its own way to collate."""
    rows: Dataset[Batch] = dataset
    return DataLoader(rows, collate_fn=dataset.collate, **options)


class TextStreamDataset(IterableDataset[Batch]):
    """A stream of text as torch's `DataLoader` takes it; each worker reads lanes of its own.

    Call `note` on every batch that was trained on: then `state_dict` is exact, whatever workers
    have read ahead. Iterating begins from the state: without a note, always from the start.
    """

    def __init__(self, stream: TextStream, *, batch_size: int | None = None) -> None:
        super().__init__()
        self.stream = stream
        self.batch_size = batch_size
        """Rows in an item; None makes items of one row without the axis of rows."""

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        if self.batch_size is None:
            return map(to_torch, self.stream.rows(worker, num_workers, noting=False))
        batches = self.stream.batches(
            self.batch_size, worker, num_workers=num_workers, noting=False
        )
        return map(to_torch, batches)

    def collate(self, items: Sequence[Batch] | Batch) -> Batch:
        """Return rows as one batch of tensors: the `collate_fn` of a `DataLoader`."""
        return items if isinstance(items, Batch) else collate(items)

    def note(self, batch: Mapping[str, Any]) -> None:
        """Take note that a batch was used."""
        self.stream.note(batch)

    def restart(self) -> None:
        """Begin from the start when iterated next."""
        self.stream.restart()

    def state_dict(self) -> dict[str, Any]:
        """Return where this rank stands, as plain values."""
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a state, or from those of all ranks if their number has changed."""
        self.stream.load_state_dict(state)
