"""How long `tokenmill --help` takes, from process start to end; the goal is 0.2 s.

python benchmarks/help_time.py
"""

from __future__ import annotations

import argparse
import statistics

from measure import TOKENMILL, print_table, report, run

GOAL_SECONDS = 0.2
COMMANDS = (("--help",), ("tokenize", "--help"), ("--version",))


def main() -> None:
    """Time each command and print best and median."""
    parser = argparse.ArgumentParser(description="Measure how fast help appears.")
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    rows: list[tuple[object, ...]] = [("command", "best s", "median s", "goal", "")]
    for words in COMMANDS:
        run([TOKENMILL, *words])
        seconds = [run([TOKENMILL, *words]).seconds for _ in range(repeats)]
        best, median = min(seconds), statistics.median(seconds)
        name = " ".join(("tokenmill", *words))
        report("help_time", command=name, best_seconds=best, median_seconds=median, runs=repeats)
        verdict = "ok" if median <= GOAL_SECONDS else "above the goal"
        rows.append((name, f"{best:.3f}", f"{median:.3f}", GOAL_SECONDS, verdict))
    print_table(rows)


if __name__ == "__main__":
    main()
