"""Measure `stream_text` against the encoder alone: tokens for each second of CPU time, one process.

python benchmarks/stream_text.py FILE... [--context-length 1024] [--max-mb 100]

"encoder" is given texts that are in memory already; the stream also reads them. CPU time, since
other work on the machine does not change it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from typing import Any

from tokenmill import load_tokenizer
from tokenmill.dataset import stream_text
from tokenmill.sources import SourceSettings, cut_units, find_files, read_unit


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--tokenizer", default="gpt2")
    parser.add_argument("--context-length", type=int, default=1024)
    parser.add_argument("--max-mb", type=float, default=100)
    args = parser.parse_args()
    tokenizer = load_tokenizer(args.tokenizer)
    settings = SourceSettings(places=tuple(args.files))
    files = find_files(settings)

    texts: list[list[str]] = []
    num_bytes = 0
    for unit in cut_units(files):
        for batch in read_unit(files, unit, settings):
            if num_bytes < args.max_mb * 1e6:
                texts.append(batch.texts)
                num_bytes += batch.num_bytes
    tokenizer.encode_batch(texts[0])
    begin = time.process_time()
    num_encoded = sum(len(tokenizer.encode_batch(batch)[0]) for batch in texts)
    encoder = num_encoded / (time.process_time() - begin)
    del texts

    results = {}
    variants: tuple[tuple[str, dict[str, Any]], ...] = (("in order", {}), ("shuffled", {"seed": 1}))
    for name, options in variants:
        stream = stream_text(
            args.files, tokenizer, args.context_length, output="numpy", on_error="skip", **options
        )
        begin, num_tokens = time.process_time(), 0
        for row in stream:
            num_tokens += len(row.token_ids)
            if num_tokens > num_encoded:
                break
        # what was encoded ahead in the lanes is work that was done, too
        results[name] = stream.counts.num_tokens / (time.process_time() - begin)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    result = {
        "benchmark": "stream_text",
        "commit": commit,
        "machine": platform.machine(),
        "tokenizer": args.tokenizer,
        "context_length": args.context_length,
        "megabytes": round(num_bytes / 1e6, 1),
        "encoder_tokens_per_cpu_second": round(encoder),
        **{
            f"{name.replace(' ', '_')}_tokens_per_cpu_second": round(rate)
            for name, rate in results.items()
        },
        "part_of_encoder": {name: round(rate / encoder, 3) for name, rate in results.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
