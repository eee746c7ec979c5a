"""Prepare documents as nanoGPT's users do: `datasets.map` with tiktoken, then one mapped file.

Run by `peers.py` in an environment of its own:

    python peer_nanogpt.py DOCS.jsonl OUTPUT_FOLDER NUM_PROC VOCABULARY_FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from datasets import Dataset, load_dataset
from tiktoken import Encoding

from peer_vocabulary import gpt2_encoding

NUM_WRITES = 1024
"""How many pieces the ids are copied in, as in the original."""


def main() -> None:
    """Tokenize one JSON Lines file into `train.bin`, ids of 16 bits with no header."""
    documents, output, num_proc = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    encoding = gpt2_encoding(Path(sys.argv[4]))
    start = time.perf_counter()
    rows = load_dataset("json", data_files=str(documents), split="train", cache_dir=str(output))
    assert isinstance(rows, Dataset)
    rows = rows.map(
        encode,
        fn_kwargs={"encoding": encoding},
        remove_columns=rows.column_names,
        num_proc=num_proc,
    )
    num_tokens = int(np.sum(rows["len"], dtype=np.uint64))
    ids = np.memmap(output / "train.bin", dtype=np.uint16, mode="w+", shape=(num_tokens,))
    stop = 0
    for index in range(min(NUM_WRITES, len(rows))):
        shard = rows.shard(min(NUM_WRITES, len(rows)), index, contiguous=True).with_format("numpy")
        piece = np.concatenate(shard["ids"])
        ids[stop : stop + len(piece)] = piece
        stop += len(piece)
    ids.flush()
    assert stop == num_tokens
    print(num_tokens, time.perf_counter() - start)


def encode(row: dict[str, str], encoding: Encoding) -> dict[str, object]:
    """Return a document's ids, closed by end-of-text, and how many they are."""
    ids = encoding.encode_ordinary(row["text"])
    ids.append(encoding.eot_token)
    return {"ids": ids, "len": len(ids)}


if __name__ == "__main__":
    main()
