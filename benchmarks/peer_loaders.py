"""Read the same tokens with other projects' loaders, each in the way that it documents.

Run by `loader_speed.py` in an environment of its own:

    python peer_loaders.py TOKENS.npy SCRATCH_FOLDER SEQ_LEN BATCH_ROWS SECONDS
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
    """Write the tokens in each format, then print the best rate of each loader."""
    tokens, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    seq_len, batch_rows, seconds = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    write_litdata(tokens, scratch / "litdata", seq_len=seq_len)
    write_mds(tokens, scratch / "mds", seq_len=seq_len)
    for workers in WORKERS:
        dataset = litdata.StreamingDataset(
            str(scratch / "litdata"),
            item_loader=litdata.TokensLoader(block_size=seq_len + 1),
            shuffle=True,
        )
        loader = litdata.StreamingDataLoader(dataset, batch_size=batch_rows, num_workers=workers)
        show("LitData TokensLoader", workers, rate(loader, seconds=seconds))
        dataset = MosaicRows(local=str(scratch / "mds"), shuffle=True, batch_size=batch_rows)
        loader = DataLoader(dataset, batch_size=batch_rows, num_workers=workers)
        show("MosaicML Streaming", workers, rate(loader, seconds=seconds))


class MosaicRows(streaming.StreamingDataset):
    """Rows as inputs and labels, as its examples for language models make them."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.from_numpy(super().__getitem__(index)["tokens"].astype(np.int64))
        return ids[:-1], ids[1:]


def write_litdata(tokens: Path, folder: Path, *, seq_len: int) -> None:
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
    path, start, stop = piece
    yield torch.from_numpy(np.load(path, mmap_mode="r")[start:stop].astype(np.int32))


def write_mds(tokens: Path, folder: Path, *, seq_len: int) -> None:
    ids = np.load(tokens, mmap_mode="r")
    columns = {"tokens": f"ndarray:uint16:{seq_len + 1}"}
    with streaming.MDSWriter(out=str(folder), columns=columns) as writer:
        for start in range(0, len(ids) - seq_len, seq_len):
            writer.write({"tokens": np.array(ids[start : start + seq_len + 1])})


def rate(loader: Iterable[Any], *, seconds: float) -> float:
    """Return the tokens a second of the best of three stretches, after the first ten batches."""
    best, batches = 0.0, forever(loader)
    for _ in range(10):
        next(batches)
    for _ in range(3):
        start, num_tokens = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            batch = next(batches)
            first = batch[0] if isinstance(batch, list | tuple) else batch[:, :-1]
            num_tokens += first.numel()
        best = max(best, num_tokens / (time.perf_counter() - start))
    return best


def forever(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def show(name: str, workers: int, tokens_per_second: float) -> None:
    line = {"loader": name, "workers": workers, "tokens_per_second": tokens_per_second}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
