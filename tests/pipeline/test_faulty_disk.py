"""Promise 3 on bad storage: a full disk, faults and lost writes: exit 5, and nothing is lost."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from faults import command, count_calls, needs_strace, run

import tokenmill

FAULTS = [
    ("write", "error=ENOSPC"),
    ("write", "error=EIO"),
    ("write", "retval=40"),  # the system says that it wrote 40 bytes, and wrote none
    ("fsync", "error=EIO"),
    ("link", "error=ENOSPC"),
    ("rename", "error=EIO"),
    ("mkdir", "error=ENOSPC"),
    ("openat", "error=EACCES"),
]


SHARES = defaultdict(lambda: (4, 8, 12, 16), openat=(17, 18, 19, 20))
"""Places in twentieths of the calls; the first files to be opened belong to Python."""


@needs_strace
@pytest.mark.parametrize(("call", "fault"), FAULTS)
def test_a_fault_ends_with_exit_5_and_the_run_continues(
    call: str, fault: str, corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    whole = tmp_path / "whole"
    total = count_calls(command(corpus, whole, tiny_tokenizer), tmp_path)[call]
    digest = tokenmill.open_store(whole).digest
    output, num_faults = tmp_path / "store", 0
    # Which thread makes how many calls differs from run to run: not every place need be hit.
    for place in {max(total * share // 20, 1) for share in SHARES[call]}:
        inject = f"{call}:{fault}:when={place}"
        done = run(command(corpus, output, tiny_tokenizer), inject=inject)
        assert "Traceback" not in done.stderr
        if done.returncode == 0:
            output = tmp_path / f"store{place}"
            continue
        num_faults += 1
        assert done.returncode == 5, done.stderr
        if "tokenmill: " in done.stderr:  # the message itself can fall victim to a failing write
            assert re.search("tokenmill: (/|standard output)", done.stderr)  # the path comes first
        if (output / "metadata.json").exists():  # it failed while it cleaned up behind itself
            assert tokenmill.open_store(output).digest == digest
    assert num_faults
    run(command(corpus, output, tiny_tokenizer)).check_returncode()
    assert tokenmill.open_store(output).digest == digest


def test_a_file_that_cannot_grow_ends_with_exit_5_and_the_run_continues(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    def no_large_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, resource.RLIM_INFINITY))

    output = tmp_path / "store"
    arguments = command(corpus, output, tiny_tokenizer)
    done = subprocess.run(
        arguments, preexec_fn=no_large_files, capture_output=True, text=True, check=False
    )
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr
    assert not (output / "metadata.json").exists()
    run(arguments).check_returncode()
    assert tokenmill.open_store(output).num_documents == 300


def test_an_output_that_may_not_be_written_is_exit_5(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    done = run(command(corpus, Path("/proc/store"), tiny_tokenizer))
    assert done.returncode == 5
    assert "Traceback" not in done.stderr
