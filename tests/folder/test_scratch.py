"""Files on their way to an object store take room on the disk only as long as they must."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from tokenmill.folder.scratch import scratch_path
path = scratch_path("docs/a")
path.write_bytes(b"x")
print(path, flush=True)
sys.stdin.read()
"""


def start(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("", timeout=60)


def test_a_process_takes_its_files_with_it(tmp_path: Path):
    process, path = start(tmp_path)
    assert path.is_file()
    assert path.is_relative_to(tmp_path)
    end(process)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_when_another_starts(tmp_path: Path):
    killed, left = start(tmp_path)
    alive, used = start(tmp_path)
    killed.send_signal(signal.SIGKILL)
    end(killed)
    assert left.is_file()
    another, _ = start(tmp_path)
    assert not left.parent.exists()
    assert used.is_file()  # its process still runs
    end(alive)
    end(another)
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_leaves_the_files_of_its_parent(tmp_path: Path):
    program = PROGRAM.replace(
        "sys.stdin.read()",
        "import os; pid = os.fork()\nif not pid: sys.exit(0)\nos.waitpid(pid, 0)\n"
        "print(path.is_file())",
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "True"
    assert list(tmp_path.iterdir()) == []
