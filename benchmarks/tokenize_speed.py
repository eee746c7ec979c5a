"""How fast `tokenmill tokenize` is, next to its encoder alone and to other projects.

Four kinds of measurement, all with the GPT-2 vocabulary and the input in the page cache:

* encoder: the documents are in memory as Python strings; threads encode batches of about 1 MiB to
  arrays of ids. Nothing is read or written. Each run is a fresh process with cold caches.
* command: `tokenmill tokenize` from process start to end, into a fresh folder: reading, encoding,
  document table, checksums, SHA-256 and fsync included.
* call: `tokenmill.tokenize` from Python, without the process start.
* peers: see peers.py; a smaller sample, because they are slow.

Rounds are interleaved, so that a noisy minute hits all of them; the best of three counts. MB/s are
millions of UTF-8 bytes of document text a second, whatever the size of the file around it. MB/s of
processor time, summed over threads, are given as well: a busy machine disturbs them less. Wall
times from a machine on which other programs run are worth nothing; `load` in the results tells.

    python benchmarks/tokenize_speed.py --data benchmarks/data --peers
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from measure import DATA, TOKENMILL, Finished, corpus_facts, print_table, report, run, warm
from peers import Row, measure_peers

FORMATS = ("txt", "jsonl", "parquet")
GOALS = {"txt": 0.80, "jsonl": 0.65, "parquet": 0.65}
"""The share of the encoder's own speed that the whole command is to reach."""
PEER_GOAL = 20
BATCH_BYTES = 1 << 20


class Speed(NamedTuple):
    """MB of text by wall time and by processor time."""

    mb_per_second: float
    mb_per_cpu_second: float


def main() -> None:
    """Measure everything that was asked for, then print the ratios."""
    arguments = _arguments()
    if arguments.child:
        kind, _, name = arguments.child.partition(":")
        print(json.dumps(CHILDREN[kind](arguments, name)))
        return
    facts = corpus_facts(arguments.data)
    cases = [f"{k}:{f}" for f in arguments.formats for k in ("encoder", "command", "call")]
    rounds = [{c: _measure(c, arguments) for c in cases} for _ in range(arguments.repeats)]
    results = {
        case: Speed(*map(max, zip(*(speeds[case] for speeds in rounds), strict=True)))
        for case in cases
    }
    for case, speed in results.items():
        kind, _, name = case.partition(":")
        settings = {"workers": arguments.workers, "best_of": arguments.repeats, **facts}
        report("tokenize_speed", kind=kind, format=name, **speed._asdict(), settings=settings)
    peers: dict[str, float] = {}
    if arguments.peers:
        found = measure_peers(
            arguments.data,
            sample_mb=arguments.peer_mb,
            workers=arguments.workers,
            repeats=arguments.repeats,
        )
        peers = {item["peer"]: item["mb_per_second"] for item in found}
    _print_summary(results, peers, formats=arguments.formats)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the speed of tokenmill tokenize.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder made by corpus.py")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", action="store_true", help="measure other projects too")
    parser.add_argument("--peer-mb", type=float, default=60, help="MB of text for each of them")
    parser.add_argument("--child", help=argparse.SUPPRESS)  # one measurement in a fresh process
    return parser.parse_args()


def _measure(case: str, arguments: argparse.Namespace) -> Speed:
    """Run one case once, in a fresh process."""
    kind, _, name = case.partition(":")
    source = arguments.data / f"docs.{name}"
    warm(source)
    if kind == "command":
        output = arguments.data / f"out-{os.getpid()}"
        try:
            finished = run_tokenize(source, output, workers=arguments.workers)
        finally:
            shutil.rmtree(output, ignore_errors=True)
        seconds, cpu_seconds = finished.seconds, finished.cpu_seconds
    else:
        program = [sys.executable, __file__, "--child", case, "--data", arguments.data]
        finished = run([*program, "--workers", str(arguments.workers)])
        seconds, cpu_seconds = json.loads(finished.stdout.splitlines()[-1])
    megabytes = _text_bytes(arguments.data, name) / 1e6
    return Speed(megabytes / seconds, megabytes / cpu_seconds)


def run_tokenize(
    source: Path, output: Path, *, workers: int | None = None, sample_memory: bool = False
) -> Finished:
    """Run the command as a user does, from process start to the store on disk."""
    command = [TOKENMILL, "tokenize", source, "-o", output, "--progress", "none", "--json"]
    if workers is not None:
        command += ["--workers", str(workers)]
    return run(command, sample_memory=sample_memory)


def _encode(arguments: argparse.Namespace, name: str) -> tuple[float, float]:
    """Encode all documents, already in memory: the ceiling for the command."""
    from tokenmill.tokenizer import load_tokenizer

    batches = list(_batches(_texts(arguments.data, name)))
    tokenizer = load_tokenizer("gpt2")
    start, cpu_start = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(arguments.workers) as pool:
        results = list(pool.map(tokenizer.encode_batch, batches))
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    assert sum(len(offsets) - 1 for _, offsets in results) == sum(map(len, batches))
    return seconds, cpu_seconds


def _call(arguments: argparse.Namespace, name: str) -> tuple[float, float]:
    """Tokenize by a call from Python; imports and loading the tokenizer count."""
    output = arguments.data / f"out-{os.getpid()}"
    start, cpu_start = time.perf_counter(), time.process_time()
    import tokenmill

    try:
        tokenmill.tokenize(arguments.data / f"docs.{name}", output, workers=arguments.workers)
        return time.perf_counter() - start, time.process_time() - cpu_start
    finally:
        shutil.rmtree(output, ignore_errors=True)


CHILDREN: dict[str, Callable[[argparse.Namespace, str], tuple[float, float]]] = {
    "encoder": _encode,
    "call": _call,
}


def _texts(data: Path, name: str) -> Iterator[str]:
    """Yield the documents that the format `name` holds; Parquet holds the same as JSON Lines."""
    if name == "txt":
        with (data / "docs.txt").open("rb") as lines:
            yield from (line.rstrip(b"\n").decode() for line in lines)
        return
    decode = msgspec.json.Decoder(Row).decode
    with (data / "docs.jsonl").open("rb") as lines:
        yield from (decode(line).text for line in lines)


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    num_bytes = 0
    for text in texts:
        batch.append(text)
        num_bytes += len(text)
        if num_bytes >= BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def _text_bytes(data: Path, name: str) -> int:
    """Return the UTF-8 bytes of all documents, line ends and markup left out."""
    facts = corpus_facts(data)
    if name == "txt":
        return facts["txt_bytes"] - facts["num_documents"]
    return facts["text_bytes"]


def _print_summary(
    results: dict[str, Speed], peers: dict[str, float], *, formats: list[str]
) -> None:
    head = ("format", "encoder MB/s", "command MB/s", "call MB/s", "command/encoder", "goal")
    rows: list[tuple[object, ...]] = [(*head, "by CPU time", "")]
    for name in formats:
        speeds = [results[f"{kind}:{name}"] for kind in ("encoder", "command", "call")]
        ratio, cpu_ratio = (speeds[1][i] / speeds[0][i] for i in (0, 1))
        verdict = "ok" if ratio >= GOALS[name] else "below the goal"
        cells = [f"{speed.mb_per_second:.0f}" for speed in speeds]
        shares = (f"{ratio:.0%}", f"{GOALS[name]:.0%}", f"{cpu_ratio:.0%}")
        rows.append((name, *cells, *shares, verdict))
    print_table(rows)
    if not peers or "jsonl" not in formats:
        return
    print(file=sys.stderr)
    ours = results["command:jsonl"].mb_per_second
    rows = [("peer (JSONL)", "MB/s", "tokenmill is faster by", "goal", "")]
    for peer, speed in peers.items():
        verdict = "ok" if ours / speed >= PEER_GOAL else "below the goal"
        rows.append((peer, f"{speed:.2f}", f"{ours / speed:.0f}x", f"{PEER_GOAL}x", verdict))
    print_table(rows)


if __name__ == "__main__":
    main()
