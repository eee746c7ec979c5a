"""How fast shuffled batches come from a store in the page cache, next to other loaders.

All read the same tokens in rows of 1024 and batches of 64. tokenmill gives inputs and labels of 64
bits, document ids and position ids; the others give inputs, at most with labels, and no ids. Rates
are of the best of some stretches, by wall time and, where one process does all, by processor time,
which other work on the machine disturbs less. Peers are installed into `benchmarks/.venv-loaders`.

    python benchmarks/loader_speed.py
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from measure import DATA, ROOT, best_seconds, print_table, report, run, warm
from tokenmill.dataset import Loader, Packing, Plan, Source, get_dataset, open_rows, open_source
from tokenmill.store import (
    DOCS_DTYPE,
    Metadata,
    ShardEntry,
    ShardWriter,
    SourceEntry,
    SplitEntry,
    TokenizerEntry,
    write_metadata,
    write_tokenizer,
)

ENVIRONMENT = ROOT / "benchmarks" / ".venv-loaders"
REQUIREMENTS = [
    "torch==2.13.0",
    "numpy==2.4.6",
    "litdata==0.2.61",
    "mosaicml-streaming==0.10.0",
]
SEQ_LEN, BATCH_ROWS = 1024, 64
SHARD_TOKENS, EOS, MEAN_LENGTH = 10_000_000, 50_256, 700
BYTES_PER_TOKEN = 2 + 8 + 8 + 4 + 4
"""What must at least be moved for a token: its id in, and input, label and two ids out."""


def main() -> None:
    """Make the tokens, measure every loader and print a table."""
    parser = argparse.ArgumentParser(description="Measure loaders on the same tokens.")
    parser.add_argument("--data", type=Path, default=DATA, help="where the tokens are made")
    parser.add_argument("--tokens", type=int, default=50_000_000)
    parser.add_argument("--seconds", type=float, default=2, help="length of one stretch")
    parser.add_argument("--repeats", type=int, default=5, help="stretches; the best counts")
    parser.add_argument("--no-peers", action="store_true", help="leave out what is to be installed")
    arguments = parser.parse_args()
    folder = arguments.data / "loader-speed"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        ids = make_store(folder / "store", arguments.tokens)
        np.save(folder / "tokens.npy", ids)
        warm(*(path for path in folder.rglob("*") if path.is_file()))
        timing = {"seconds": arguments.seconds, "repeats": arguments.repeats}
        results = [
            _measure(name, workers, make, **timing)
            for name, workers, make in contestants(folder / "store", folder / "tokens.npy")
        ]
        if not arguments.no_peers:
            results += _measure_peers(folder, **timing)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rows = [(r["loader"], r["workers"], r["wall"], r["processor"]) for r in results]
    print_table([("loader", "workers", "M tokens/s wall", "M tokens/s processor"), *rows])


def contestants(store: Path, tokens: Path) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    """Yield names, numbers of workers and functions that begin an endless stream of batches."""
    packings: tuple[Packing, ...] = ("concat", "best-fit", "pad", "sliding")
    for packing in packings:
        yield f"tokenmill rows, {packing}", 0, partial(read_rows, store, packing)
    for threads in (0, 1):
        yield "tokenmill Loader, threads", threads, partial(read_plan, store, threads)
    dataset = get_dataset(store, SEQ_LEN)
    naive = NaiveRows(tokens)
    for workers in (0, 2):
        ours = partial(read_loader, dataset, workers, dataset.collate)
        yield "tokenmill dataset, DataLoader", workers, ours
        yield "naive memmap dataset, DataLoader", workers, partial(read_loader, naive, workers)
    yield "nanoGPT get_batch", 0, partial(read_nanogpt, tokens)


def read_rows(store: Path, packing: Packing) -> Iterator[Any]:
    """Read shuffled rows, with labels, document ids and position ids."""
    rows = open_rows(open_source(store), seq_len=SEQ_LEN, packing=packing)
    for first in range(0, min(rows.num_rows, 50_000), 1000):  # prove what will be read
        rows.read(np.arange(first, min(first + 1000, rows.num_rows)))
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(min(rows.num_rows, 50_000))
        for first in range(0, len(order) - BATCH_ROWS, BATCH_ROWS):
            yield rows.read(order[first : first + BATCH_ROWS])["token_ids"]


def read_plan(store: Path, num_threads: int) -> Iterator[Any]:
    """Read the batches of a plan, shuffled by its permutation, in the background."""
    plan = Plan(sources=(Source(path=str(store)),), seq_len=SEQ_LEN, batch_size=BATCH_ROWS)
    with Loader(plan, num_threads=num_threads) as loader:
        for _, batch in loader:
            yield batch["token_ids"]


def read_loader(dataset: Any, workers: int, collate: Any = None) -> Iterator[Any]:
    """Read a dataset through torch's `DataLoader`."""
    while True:
        for batch in DataLoader(
            dataset, BATCH_ROWS, shuffle=True, num_workers=workers, collate_fn=collate
        ):
            yield batch["token_ids"] if isinstance(batch, dict) else batch[0]


def read_nanogpt(tokens: Path) -> Iterator[Any]:
    """Make batches as nanoGPT's training script does."""
    while True:
        data = np.load(tokens, mmap_mode="r")
        places = torch.randint(len(data) - SEQ_LEN, (BATCH_ROWS,)).tolist()
        inputs = [torch.from_numpy(data[i : i + SEQ_LEN].astype(np.int64)) for i in places]
        labels = [torch.from_numpy(data[i + 1 : i + 1 + SEQ_LEN].astype(np.int64)) for i in places]
        yield torch.stack(inputs)
        del labels[:]


class NaiveRows(Dataset[Any]):
    """What one writes first: a mapped array, cut where it is asked for."""

    def __init__(self, tokens: Path) -> None:
        self.data = np.load(tokens, mmap_mode="r")

    def __len__(self) -> int:
        return (len(self.data) - 1) // SEQ_LEN

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * SEQ_LEN
        ids = torch.from_numpy(self.data[start : start + SEQ_LEN + 1].astype(np.int64))
        return ids[:-1], ids[1:]


def _measure(
    name: str, workers: int, make: Callable[[], Any], *, seconds: float, repeats: int
) -> dict[str, Any]:
    """Time stretches of a stream after its first twenty batches; the best rates count."""
    batches = make()
    for _ in range(20):
        next(batches)
    wall, processor = 0.0, 0.0
    for _ in range(repeats):
        start, start_processor, num_tokens = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() - start < seconds:
            batch = next(batches)
            num_tokens += batch.shape[0] * batch.shape[1]
        wall = max(wall, num_tokens / (time.perf_counter() - start))
        processor = max(processor, num_tokens / (time.process_time() - start_processor))
    batches.close()
    return _report(name, workers, wall=wall, processor=None if workers else processor)


def _report(name: str, workers: int, *, wall: float, processor: float | None) -> dict[str, Any]:
    source, target = np.ones(1 << 28, dtype=np.uint8), np.zeros(1 << 28, dtype=np.uint8)
    copied = 2 * source.nbytes / best_seconds(lambda: np.copyto(target, source), repeats=3)
    return report(
        "loader_speed",
        loader=name,
        workers=workers,
        wall=wall / 1e6,
        processor=None if processor is None else processor / 1e6,
        unit="M tokens/s",
        copy_gb_per_second=copied / 1e9,
        share_of_copy=(processor or wall) * BYTES_PER_TOKEN / copied,
        seq_len=SEQ_LEN,
        batch_rows=BATCH_ROWS,
    )


def _measure_peers(folder: Path, *, seconds: float, repeats: int) -> list[dict[str, Any]]:
    script, python = ROOT / "benchmarks" / "peer_loaders.py", _make_environment()
    numbers = [str(SEQ_LEN), str(BATCH_ROWS), str(seconds), str(repeats)]
    finished = run([python, script, folder / "tokens.npy", folder / "peers", *numbers])
    lines = [line for line in finished.stdout.splitlines() if line.startswith('{"name"')]
    return [_report(**json.loads(line)) for line in lines]


def _make_environment() -> Path:
    """Install the peers from the package index, once; return their Python."""
    python, stamp = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".installed"
    if stamp.exists() and stamp.read_text().split() == REQUIREMENTS:
        return python
    print(f"installing {', '.join(REQUIREMENTS)} into {ENVIRONMENT}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    command = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*command, *REQUIREMENTS], check=True, stdout=sys.stderr)
    stamp.write_text("\n".join(REQUIREMENTS))
    return python


def make_store(folder: Path, num_tokens: int) -> np.ndarray:
    """Write a store of random ids in documents of various lengths; return its ids."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, EOS, num_tokens).astype(np.uint16)
    lengths = rng.lognormal(np.log(MEAN_LENGTH) - 0.5, 1, size=2 * num_tokens // MEAN_LENGTH)
    ends = np.cumsum(np.maximum(2, lengths.astype(np.int64)))
    ends = np.append(ends[ends < num_tokens], num_tokens)
    ids[ends - 1] = EOS
    docs = np.zeros(len(ends), dtype=DOCS_DTYPE)
    docs["end"] = ends
    entries: list[ShardEntry] = []
    for index, start in enumerate(range(0, num_tokens, SHARD_TOKENS)):
        part = ids[start : start + SHARD_TOKENS]
        inside = (ends > start) & (ends <= start + len(part))
        with ShardWriter(
            folder, "train", index=index, dtype=ids.dtype, num_tokens=len(part)
        ) as writer:
            writer.write(part)
            entries.append(writer.finish(docs[inside], sync=False))
    _write_metadata(folder, tuple(entries), num_tokens=num_tokens, num_documents=len(ends))
    return ids


def _write_metadata(
    folder: Path, shards: tuple[ShardEntry, ...], *, num_tokens: int, num_documents: int
) -> None:
    definition = write_tokenizer(folder, "tokenizer.json", data=b"{}")
    counts: Any = {"num_tokens": num_tokens, "num_documents": num_documents}
    metadata = Metadata(
        created=datetime.now(UTC),
        versions={},
        dtype="uint16",
        bos_id=None,
        eos_id=EOS,
        shard_tokens=SHARD_TOKENS,
        tokenizer=TokenizerEntry(
            name="random",
            fingerprint=f"sha256:{'0' * 64}",
            num_ids=EOS + 1,
            eos_id=EOS,
            file="tokenizer.json",
            bytes=definition.bytes,
            sha256=definition.sha256,
        ),
        splits={"train": SplitEntry(num_bytes=0, shards=shards, **counts)},
        sources=(SourceEntry(path="a.txt", size=0, format="text", **counts),),
    )
    write_metadata(folder, metadata)


if __name__ == "__main__":
    main()
