"""How long it takes, and how much memory, from nothing to the first shuffled batch of a huge store.

The store is made of sparse files: 10,000 shards of 100 million tokens and a document every 1,000
tokens. Of the tables, only those that the first batch needs are filled in; all are opened, measured
and proved as in any store. The time is that of a whole process, Python's own start included.

    python benchmarks/loader_open.py
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from measure import DATA, print_table, report, run
from tokenmill.dataset import permute
from tokenmill.store import (
    DOCS_DTYPE,
    FileEntry,
    Metadata,
    ShardEntry,
    SourceEntry,
    SplitEntry,
    TokenizerEntry,
    blocks_path,
    docs_path,
    shard_path,
    write_metadata,
    write_tokenizer,
)

SHARD_TOKENS = 100_000_000
DOCUMENT_TOKENS = 1000
BATCH_ROWS, SEQ_LEN, SEED = 64, 1024, 0
BLOCK_BYTES = 1 << 16

PROGRAM = f"""
import sys, time
start = time.perf_counter()
import numpy as np
from tokenmill.dataset import get_dataset, permute
imported = time.perf_counter()
dataset = get_dataset(sys.argv[1], {SEQ_LEN}, output="numpy")
opened = time.perf_counter()
batch = dataset[permute(np.arange({BATCH_ROWS}), len(dataset), seed={SEED}, epoch=0)]
read = time.perf_counter()
assert batch.document_ids.max() > 0
print(imported - start, opened - imported, read - opened)
"""


def main() -> None:
    """Make the store unless it is there, and time fresh processes."""
    parser = argparse.ArgumentParser(description="Measure the time to the first batch.")
    parser.add_argument("--data", type=Path, default=DATA, help="where the store is made")
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    store = arguments.data / f"sparse-{arguments.shards}"
    shutil.rmtree(store, ignore_errors=True)
    try:
        make_sparse_store(store, arguments.shards)
        _measure(store, num_shards=arguments.shards, repeats=arguments.repeats)
    finally:
        shutil.rmtree(store, ignore_errors=True)


def _measure(store: Path, *, num_shards: int, repeats: int) -> None:
    command = [sys.executable, "-c", PROGRAM, store]
    runs = [run(command) for _ in range(repeats)]
    best = min(runs, key=lambda finished: finished.seconds)
    imported, opened, read = map(float, best.stdout.split())
    result = report(
        "loader_open",
        num_shards=num_shards,
        num_tokens=num_shards * SHARD_TOKENS,
        seconds=best.seconds,
        import_seconds=imported,
        open_seconds=opened,
        first_batch_seconds=read,
        peak_mb=run(command, sample_memory=True).peak_bytes / 1e6,
        best_of=repeats,
    )
    print_table([("what", "value"), *((k, v) for k, v in result.items() if "s" in k)])


def make_sparse_store(folder: Path, num_shards: int) -> None:
    """Write a store of empty pages whose tables are right where the first batch looks."""
    folder.mkdir(parents=True)
    definition = write_tokenizer(folder, "tokenizer.json", data=b"{}")
    num_tokens = num_shards * SHARD_TOKENS
    num_rows = (num_tokens - 1) // SEQ_LEN
    first_rows = permute(np.arange(BATCH_ROWS), num_rows, seed=SEED, epoch=0)
    needed = set((first_rows * SEQ_LEN // SHARD_TOKENS).tolist())
    blocks = _block_table()
    entries: list[ShardEntry] = []
    for index in range(num_shards):
        shard = _npy_header(np.dtype("<u2"), SHARD_TOKENS)
        size = len(shard) + 2 * SHARD_TOKENS
        _write_sparse(shard_path(folder, "train", index=index), shard, size=size)
        docs, num_documents = _docs_table(index), SHARD_TOKENS // DOCUMENT_TOKENS
        entries.append(
            ShardEntry(
                num_tokens=SHARD_TOKENS,
                num_documents=num_documents,
                shard=FileEntry(bytes=size, sha256="0" * 64),
                docs=_write_table(docs_path(folder, "train", index=index), docs, index in needed),
                blocks=_write_table(
                    blocks_path(folder, "train", index=index), blocks, index in needed
                ),
            )
        )
    counts: Any = {"num_tokens": num_tokens, "num_documents": num_tokens // DOCUMENT_TOKENS}
    metadata = Metadata(
        created=datetime.now(UTC),
        versions={},
        dtype="uint16",
        bos_id=None,
        eos_id=None,
        shard_tokens=SHARD_TOKENS,
        tokenizer=TokenizerEntry(
            name="none",
            fingerprint=f"sha256:{'0' * 64}",
            num_ids=1 << 16,
            file="tokenizer.json",
            bytes=definition.bytes,
            sha256=definition.sha256,
        ),
        splits={"train": SplitEntry(num_bytes=0, shards=tuple(entries), **counts)},
        sources=(SourceEntry(path="a.txt", size=0, format="text", **counts),),
    )
    write_metadata(folder, metadata)


def _docs_table(index: int) -> NDArray[np.void]:
    docs = np.zeros(SHARD_TOKENS // DOCUMENT_TOKENS, dtype=DOCS_DTYPE)
    docs["end"] = index * SHARD_TOKENS + DOCUMENT_TOKENS * np.arange(1, len(docs) + 1)
    return docs


def _block_table() -> NDArray[np.uint64]:
    """Return the checksums of a shard of zeros, the same for all of them."""
    header = _npy_header(np.dtype("<u2"), SHARD_TOKENS)
    size = len(header) + 2 * SHARD_TOKENS
    num_blocks = -(-size // BLOCK_BYTES)
    empty = bytes(BLOCK_BYTES)
    sums = np.full(num_blocks, xxhash.xxh3_64_intdigest(empty), dtype="<u8")
    sums[0] = xxhash.xxh3_64_intdigest(header + empty[len(header) :])
    sums[-1] = xxhash.xxh3_64_intdigest(empty[: size - (num_blocks - 1) * BLOCK_BYTES])
    return sums


def _npy_header(dtype: np.dtype[Any], length: int) -> bytes:
    file = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False}
    np.lib.format.write_array_header_1_0(file, {**header, "shape": (length,)})
    return file.getvalue()


def _write_sparse(path: Path, head: bytes, *, size: int) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)


def _write_table(path: Path, table: NDArray[np.generic], is_needed: bool) -> FileEntry:
    """Write a table, or only its header if nobody will look at the rest."""
    data = _npy_header(table.dtype, len(table)) + (table.tobytes() if is_needed else b"")
    size = len(data) + (0 if is_needed else table.nbytes)
    _write_sparse(path, data, size=size)
    return FileEntry(bytes=size, sha256=sha256(data).hexdigest())


if __name__ == "__main__":
    main()
