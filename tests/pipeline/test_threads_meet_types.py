"""msgspec learns a type at its first use; two threads that come first together must not meet."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading
sys.setswitchinterval(1e-6)
from tokenmill.config import resolve
from tokenmill.engine.protocol import decode_answer
from tokenmill.folder import open_folder
from tokenmill.pipeline.parts import read_receipt
from tokenmill.pipeline.settings import TokenizeSettings

folder = open_folder(sys.argv[1])
start = threading.Barrier(8)

def first() -> None:
    start.wait()
    read_receipt(folder, 0)
    decode_answer(b'{"id": 1, "error": {"kind": "x", "message": "y"}}')
    resolve(TokenizeSettings, {"sources": ["a"]})

threads = [threading.Thread(target=first) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
RECEIPT = (
    '{"type": "Receipt", "unit": 0, "attempt": "a", "num_tokens": 1, "num_documents": 1,'
    ' "pieces": [[1, 2]], "runs": [], "docs_hash": 3, "counts": [{"source": 0, "split": "train",'
    ' "num_documents": 1, "num_tokens": 1, "num_bytes": 1}], "num_blank": 0, "rejects": {},'
    ' "rejects_by_source": {}, "rejects_hash": 0, "seconds": 0.1}'
)


def test_threads_may_meet_a_type_for_the_first_time_together(tmp_path):
    path = tmp_path / "_run" / "parts" / "000000.json"
    path.parent.mkdir(parents=True)
    path.write_text(RECEIPT)
    for _ in range(5):
        subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, timeout=60)
