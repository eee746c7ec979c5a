"""Measure `encode_iterable` against batch encoding, in CPU seconds: the same text, in chunks.

Batch encoding gets the documents of the corpus, as `tokenize` does; the stream gets the same text
in chunks of a fixed size that begin and end anywhere. CPU time, since other work on the machine
hardly changes it.

    python benchmarks/encode_chunks.py --mb 50 --chunk-kb 1000
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

from measure import DATA, best_seconds, corpus_facts, print_table, report
from tokenmill.tokenizer import Tokenizer, load_tokenizer

BATCH_DOCUMENTS = 1024


def main() -> None:
    """Measure both and print how they compare."""
    parser = argparse.ArgumentParser(description="Measure encoding of a text in chunks.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder made by corpus.py")
    parser.add_argument("--mb", type=float, default=50, help="MB of text")
    parser.add_argument("--chunk-kb", type=float, action="append", help="default: 10, 100, 1000")
    parser.add_argument("--tokenizer", default="gpt2")
    arguments = parser.parse_args()
    corpus_facts(arguments.data)
    with (arguments.data / "docs.txt").open("rb") as file:
        text = file.read(int(arguments.mb * 1e6)).decode(errors="ignore")
    tokenizer = load_tokenizer(arguments.tokenizer)
    documents = text.splitlines(keepends=True)
    batches = range(0, len(documents), BATCH_DOCUMENTS)

    def encode_batches() -> int:
        parts = (documents[start : start + BATCH_DOCUMENTS] for start in batches)
        return sum(len(tokenizer.encode_batch(part)[0]) for part in parts)

    batch_seconds = best_seconds(encode_batches, repeats=3, timer=time.process_time)
    rows: list[tuple[object, ...]] = [("chunk", "CPU s", "times batch")]
    rows.append(("batches of documents", round(batch_seconds, 2), 1.0))
    for chunk_kb in arguments.chunk_kb or [10, 100, 1000]:
        encode = partial(_encode_chunks, tokenizer, text, size=int(chunk_kb * 1000))
        seconds = best_seconds(encode, repeats=3, timer=time.process_time)
        report(
            "encode_chunks",
            tokenizer=arguments.tokenizer,
            megabytes=len(text.encode()) / 1e6,
            chunk_kb=chunk_kb,
            num_tokens=encode(),
            cpu_seconds=seconds,
            batch_cpu_seconds=batch_seconds,
            times_batch=seconds / batch_seconds,
        )
        rows.append((f"{chunk_kb:g} KB", round(seconds, 2), round(seconds / batch_seconds, 2)))
    print_table(rows)


def _encode_chunks(tokenizer: Tokenizer, text: str, *, size: int) -> int:
    chunks = (text[start : start + size] for start in range(0, len(text), size))
    return sum(len(ids) for ids in tokenizer.encode_iterable(chunks))


if __name__ == "__main__":
    main()
