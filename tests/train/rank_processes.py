"""Start the ranks of runs as torchrun does: processes that find each other by the environment.

One process loads torch, and forks for each rank before it computes anything: so many ranks of many
runs start as fast as one.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from dataclasses import dataclass
from typing import Any

import torch

from tokenmill.errors import Interrupted
from tokenmill.progress import Event
from tokenmill.train.run import train_model
from tokenmill.train.settings import TrainSettings, resolve_train_settings


@dataclass(frozen=True)
class Job:
    """A run with so many ranks; the first is sent a signal when it reports `stop_step`."""

    settings: TrainSettings
    num_ranks: int
    stop_step: int = 0


def train_with_ranks(jobs: list[Job]) -> None:
    """Do the jobs one after the other in another process, and wait for it."""
    plain = [(job.settings.as_mapping(), job.num_ranks, job.stop_step) for job in jobs]
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(plain),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def main() -> int:
    jobs = json.loads(sys.stdin.read())
    return max(start_ranks(mapping, num_ranks, stop) for mapping, num_ranks, stop in jobs)


def start_ranks(mapping: dict[str, Any], num_ranks: int, stop_step: int) -> int:
    """Fork the ranks of one run and return the worst of their exit codes."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["WORLD_SIZE"] = str(num_ranks)
    children: list[int] = []
    for rank in range(num_ranks):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            code = 1
            try:
                code = train_one(mapping, stop_step)
            finally:
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    return max(map(abs, codes))


def train_one(mapping: dict[str, Any], stop_step: int) -> int:
    """Be one rank."""
    torch.set_num_threads(1)

    def report(event: Event) -> None:
        if stop_step and event.done == stop_step:
            os.kill(os.getpid(), signal.SIGUSR1)

    try:
        train_model(resolve_train_settings(mapping), report=report)
    except Interrupted:
        return 0 if stop_step else 75
    except BaseException:
        traceback.print_exc()
        raise
    return 1 if stop_step else 0


if __name__ == "__main__":
    sys.exit(main())
