"""Read the same tokens with other projects' loaders, each in the way that it documents.

Run by `loader_speed.py` in an environment of its own:

    python peer_loaders.py TOKENS.npy SCRATCH_FOLDER SEQ_LEN BATCH_ROWS SECONDS REPEATS
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

# Streaming loads torchvision for its image datasets; the one on the index needs CUDA's torch, or
# the names of its operators.
operators = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import litdata  # noqa: E402
import streaming  # noqa: E402

WORKERS = (0, 2)


def main() -> None:
    """Write the tokens in each format, then print the best rates of each loader."""
    tokens, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    seq_len, batch_rows = int(sys.argv[3]), int(sys.argv[4])
    write_litdata(tokens, scratch / "litdata", seq_len=seq_len)
    write_mds(tokens, scratch / "mds", seq_len=seq_len)
    for workers in WORKERS:
        dataset = litdata.StreamingDataset(
            str(scratch / "litdata"),
            item_loader=litdata.TokensLoader(block_size=seq_len + 1),
            shuffle=True,
        )
        loader = litdata.StreamingDataLoader(dataset, batch_size=batch_rows, num_workers=workers)
        show("LitData TokensLoader", loader, workers=workers)
        dataset = MosaicRows(local=str(scratch / "mds"), shuffle=True, batch_size=batch_rows)
        loader = DataLoader(dataset, batch_size=batch_rows, num_workers=workers)
        show("MosaicML Streaming", loader, workers=workers)


class MosaicRows(streaming.StreamingDataset):
    """Rows as inputs and labels, as its examples for language models make them."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.from_numpy(super().__getitem__(index)["tokens"].astype(np.int64))
        return ids[:-1], ids[1:]


def write_litdata(tokens: Path, folder: Path, *, seq_len: int) -> None:
    """Write the tokens as chunks, of 32 bits as LitGPT does."""
    rows = np.load(tokens, mmap_mode="r")
    step = (seq_len + 1) * 1024
    starts = [(str(tokens), start, start + step) for start in range(0, len(rows), step)]
    litdata.optimize(
        fn=read_piece,
        inputs=starts,
        output_dir=str(folder),
        chunk_size=(seq_len + 1) * 8192,
        item_loader=litdata.TokensLoader(),
        num_workers=1,
    )


def read_piece(piece: tuple[str, int, int]) -> Iterator[torch.Tensor]:
    """Give a run of tokens to the writer of chunks."""
    path, start, stop = piece
    yield torch.from_numpy(np.load(path, mmap_mode="r")[start:stop].astype(np.int32))


def write_mds(tokens: Path, folder: Path, *, seq_len: int) -> None:
    """Write rows, with one id more for the last label."""
    ids = np.load(tokens, mmap_mode="r")
    columns = {"tokens": f"ndarray:uint16:{seq_len + 1}"}
    with streaming.MDSWriter(out=str(folder), columns=columns) as writer:
        for start in range(0, len(ids) - seq_len, seq_len):
            writer.write({"tokens": np.array(ids[start : start + seq_len + 1])})


def show(name: str, loader: Iterable[Any], *, workers: int) -> None:
    """Print the best rates of some stretches after the first twenty batches."""
    seconds, repeats = float(sys.argv[5]), int(sys.argv[6])
    wall, processor, batches = 0.0, 0.0, forever(loader)
    for _ in range(20):
        next(batches)
    for _ in range(repeats):
        start, start_processor, num_tokens = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - start < seconds:
            batch = next(batches)
            num_tokens += (batch[0] if isinstance(batch, list | tuple) else batch[:, :-1]).numel()
        wall = max(wall, num_tokens / (time.perf_counter() - start))
        processor = max(processor, num_tokens / (time.process_time() - start_processor))
    result = {"wall": wall, "processor": None if workers else processor}
    print(json.dumps({"name": name, "workers": workers, **result}), flush=True)


def forever(loader: Iterable[Any]) -> Iterator[Any]:
    """Begin again after each epoch."""
    while True:
        yield from loader


if __name__ == "__main__":
    main()
