"""Give commands to the Slurm of the rig, and look at what their jobs left."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rigs.slurm import Slurm

import tokenmill

SMALL = ("-c", "1", "--mem", "500M", "--time", "20")
"""Flags of a job that fits eight times into the rig."""
_WORDS = ["the", "of a", "naïve", "猫", "<|endoftext|>", "e=mc²", "cat", "sat on", "mat"]


@dataclass(frozen=True)
class LoginNode:
    """A shell on the cluster, in a folder that all nodes see."""

    slurm: Slurm
    folder: Path
    environment: dict[str, str]

    def tokenmill(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tokenmill", *arguments],
            env=self.slurm.environment | self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def submit(self, *arguments: str) -> list[str]:
        """Run `tokenmill run`, which must succeed, and return the numbers of its jobs."""
        done = self.tokenmill("run", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["jobs"]

    def status(self, output: str) -> dict[str, Any]:
        done = self.tokenmill("status", "--json", output)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def logs(self) -> str:
        """Return what all jobs printed."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')}" for path in logs)

    def digest(self, output: str) -> str:
        """Wait for all jobs, and return the digest of the store that they made."""
        self.slurm.wait(seconds=200)
        assert (self.folder / output / "metadata.json").exists(), self.logs()
        return tokenmill.open_store(self.folder / output).digest


def write_corpus(path: Path, *, num_documents: int) -> None:
    rng = random.Random(11)
    with path.open("w") as file:
        for _ in range(num_documents):
            text = " ".join(rng.choices(_WORDS, k=rng.choice([1, 5, 30, 90])))
            file.write(json.dumps({"text": text}) + "\n")


def wait_for_file(path: Path, text: str = "", *, seconds: float = 60.0) -> str:
    """Wait until a file is there and holds a text; return all that it holds."""
    deadline = time.monotonic() + seconds
    while True:
        found = path.read_text(errors="replace") if path.exists() else None
        if found is not None and text in found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path}: waited {seconds:.0f} s for {text!r}, it holds {found!r}")
        time.sleep(0.02)
