"""What the Ray engine costs: the same run on the local engine and on a Ray cluster of this machine.

The cluster, with a core for each worker, is started before anything is measured. `ratio` compares
the rates of the engines once everything is up: a program that is connected tokenizes a little text
and then, timed, all of it. Each worker still loads the tokenizer in that time, as the local engine
does. `ratio_command` compares whole commands, which on Ray load Ray, connect, and start and fill
the worker processes; `ratio_cpu` is their processor time, Ray's own processes included, which a
busy machine disturbs less. Rounds alternate between the engines; the best of each counts.

The text is made here: sentences of words whose lengths and frequencies are like those of English,
the same for the same size.

    python benchmarks/ray_overhead.py                # 300 MB, 2 workers
    python benchmarks/ray_overhead.py --mb 50 --repeats 1
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from measure import ROOT, TOKENMILL, report, run, warm

GOAL = 0.70
LOOK_SECONDS = 0.05
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Taken(NamedTuple):
    """Seconds by the clock, of the whole command and of a call, and of processors."""

    command: float
    call: float
    cpu: float


def main() -> None:
    """Measure both engines, and print the ratio of their rates."""
    arguments = _arguments()
    if arguments.child:
        print(_time_call(arguments.child, workers=arguments.workers))
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from rigs.ray_cluster import ray_cluster  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        source = Path(folder) / "docs.txt"
        num_bytes = write_text(source, arguments.mb * 1_000_000)
        warm(source)
        with ray_cluster(num_cpus=arguments.workers) as rig:
            engines = {"local": [], "ray": ["--engine", "ray", "--address", rig.address]}
            rounds = [
                {
                    name: _measure(
                        source, Path(folder), ["--workers", str(arguments.workers), *how]
                    )
                    for name, how in engines.items()
                }
                for _ in range(arguments.repeats)
            ]
    best = {
        name: Taken(*map(min, zip(*(r[name] for r in rounds), strict=True))) for name in engines
    }
    ratio = best["local"].call / best["ray"].call
    report(
        "ray_overhead",
        mb=num_bytes / 1e6,
        workers=arguments.workers,
        best_of=arguments.repeats,
        **{
            f"{name}_{what}": value
            for name, taken in best.items()
            for what, value in (
                ("mb_per_second", num_bytes / 1e6 / taken.call),
                ("command_mb_per_second", num_bytes / 1e6 / taken.command),
                ("cpu_seconds", taken.cpu),
            )
        },
        ratio=ratio,
        ratio_command=best["local"].command / best["ray"].command,
        ratio_cpu=best["local"].cpu / best["ray"].cpu,
        goal=GOAL,
        reached=ratio >= GOAL,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the overhead of the Ray engine.")
    parser.add_argument("--mb", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)  # a call, in a fresh process
    parser.add_argument("--folder", type=Path, help="where to write (default: the system's)")
    return parser.parse_args()


def _measure(source: Path, folder: Path, how: list[str]) -> Taken:
    output = folder / "store"
    shutil.rmtree(output, ignore_errors=True)
    with _watched_cpu() as seconds:
        started = time.perf_counter()
        run([TOKENMILL, "tokenize", source, "-o", output, "--progress", "none", *how])
        command = time.perf_counter() - started
    child = [sys.executable, __file__, "--child", source, *how[:2]]
    environment = {**os.environ, "RAY_ADDRESS": how[-1]} if len(how) > 2 else dict(os.environ)
    call = float(run(child, env=environment).stdout.splitlines()[-1])
    return Taken(command, call, sum(seconds.values()))


def _time_call(source: Path, *, workers: int) -> float:
    """Return how long a call takes in a program that has made a small one before."""
    import tokenmill

    engine: dict[str, Any] = {"engine": "ray"} if "RAY_ADDRESS" in os.environ else {}
    if engine:
        import logging

        import ray

        ray.init(log_to_driver=False, logging_level=logging.ERROR)
    small = source.with_name("small.txt")
    with source.open("rb") as file:
        small.write_bytes(file.read(16_000_000).rpartition(b"\n")[0])
    seconds = 0.0
    for name, text in (("small", small), ("large", source)):
        output = source.with_name(name)
        shutil.rmtree(output, ignore_errors=True)
        started = time.perf_counter()
        tokenmill.tokenize(text, output, workers=workers, **engine)
        seconds = time.perf_counter() - started
        shutil.rmtree(output)
    return seconds


@contextmanager
def _watched_cpu() -> Generator[dict[int, float]]:
    """Watch the processes below this one; at the end, each has its processor time in the block.

    What a process took after the last look before its end is lost: Ray's workers end unreaped.
    """
    before, seconds = _cpu_seconds(), dict[int, float]()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_SECONDS):
            seconds.update((pid, s - before.get(pid, 0.0)) for pid, s in _cpu_seconds().items())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seconds
    finally:
        done.set()
        watcher.join()


def _cpu_seconds() -> dict[int, float]:
    """Return the processor time of each process that this one started, or those did."""
    stats: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        stats[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:13])) / CLOCK_TICKS
    found: dict[int, float] = {}
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        children = [child for child, (parent, _) in stats.items() if parent == pid]
        found.update((child, stats[child][1]) for child in children)
        waiting += children
    return found


def write_text(path: Path, num_bytes: int) -> int:
    """Write documents, one a line, of made-up words with the frequencies of a natural language."""
    rng = random.Random(0)
    vowels, consonants = "aeiou", "bcdfghjklmnprstvw"
    words = [
        "".join(
            rng.choice((consonants, vowels)[i % 2]) for i in range(max(1, int(rng.gauss(5, 2))))
        )
        for _ in range(30_000)
    ]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    sentences = [
        " ".join(rng.choices(words, weights, k=rng.randint(5, 25))).capitalize() + ". "
        for _ in range(40_000)
    ]
    written = 0
    with path.open("w") as file:
        while written < num_bytes:
            text = "".join(rng.choices(sentences, k=rng.randint(3, 40))).rstrip() + "\n"
            written += file.write(text)
    return written


if __name__ == "__main__":
    main()
