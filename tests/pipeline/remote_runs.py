"""Run the command line against an object store, through a door that can be shut."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tokenmill.remote import list_objects, read_object
from tokenmill.store import Metadata

if TYPE_CHECKING:
    from rigs.ceph import Ceph

PATCHED = "import os, signal, sys\n{patch}\nfrom tokenmill.cli import main; main(sys.argv[1:])"
COUNTED = """
import itertools
import tokenmill.folder.remote as remote
numbers = itertools.count(1)

def counted(function):
    def call(*args, **options):
        number = next(numbers)
        if number == {place} and {before}:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **options)
        if number == {place}:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call

for name in ("put_object", "upload_file", "delete_objects", "list_objects", "read_object"):
    setattr(remote, name, counted(getattr(remote, name)))
"""
"""Kills the process right before or after its n-th request to the object store."""
STOPPED = """
import tokenmill.pipeline.run as run
real = run.Run._finish_unit

def stop(self, receipt):
    real(self, receipt)
    if len(self.receipts) == 3:
        os.kill(os.getpid(), signal.SIGSTOP)

run.Run._finish_unit = stop
"""
"""Stops the process after three units, until it is told to go on."""


def command(corpus: str | Path, output: str, tokenizer: Path, *extra: str) -> list[str]:
    """A run with many small units and shards: many places to stop at."""
    return [
        *("tokenize", str(corpus), "-o", output, "--tokenizer", str(tokenizer)),
        *("--unit-bytes", "20000", "--shard-tokens", "20000"),
        *("--progress", "none", "--workers", "2", *extra),
    ]


def start(ceph: Ceph, arguments: list[str], *, patch: str = "", **environment: str) -> Started:
    """Start the command line, with something in it changed if that is asked for."""
    program = ["-c", PATCHED.format(patch=patch)] if patch else ["-m", "tokenmill"]
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        env={**os.environ, **ceph.environment, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


Started = subprocess.Popen[str]


def finish(process: Started) -> tuple[int, str]:
    """Wait for the command to end; return its exit code and what it printed."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out + err


def expected_objects(metadata: Metadata) -> set[str]:
    """Return the names of a store's files, as its metadata has them."""
    names = {"metadata.json", metadata.tokenizer.file}
    if metadata.rejects is not None:
        names.add("rejects.jsonl")
    for split, entry in metadata.splits.items():
        shards = {f"{split}_{index:06d}.npy" for index in range(len(entry.shards))}
        names |= {f"{folder}{shard}" for folder in ("", "docs/", "blocks/") for shard in shards}
    return names


def objects(url: str) -> dict[str, bytes]:
    """Return every object below a URL."""
    return {info.path[len(url) + 1 :]: read_object(info.path) for info in list_objects(url)}


class Door:
    """Passes connections on to a server until so many bytes went in; then it is shut."""

    def __init__(self, endpoint: str, num_bytes: int) -> None:
        self._target, self._left = urlsplit(endpoint), num_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def shut(self) -> None:
        """Cut every connection and take no more."""
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                inside, _ = self._listener.accept()
                address = (str(self._target.hostname), int(self._target.port or 80))
                outside = socket.create_connection(address)
                self._open += [inside, outside]
                for way in ((inside, outside, True), (outside, inside, False)):
                    threading.Thread(target=self._pass, args=way, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, is_inwards: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 12):
                self._left -= len(data) if is_inwards else 0
                if self._left < 0:
                    self.shut()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
