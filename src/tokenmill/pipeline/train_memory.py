"""How a training run shares out its memory, so that all its processes stay within one number."""

from __future__ import annotations

from dataclasses import dataclass

MEBIBYTE = 1 << 20
PROCESS_MIB = 224
"""What a process takes before it has counted anything: the interpreter and its libraries."""
WORKER_MIB = 32
"""What a worker takes beside its table: a batch of documents, in more than one form."""
TABLE_MIB = 16
"""The least that a worker needs for its table."""
MIN_MEMORY_MIB = PROCESS_MIB + WORKER_MIB + TABLE_MIB
MERGE_MEMORY = 24
"""Bytes of memory that finding merges takes for each byte of distinct words."""
_COPIES = 3
"""A table is held up to three times: when it grows, and when it is sorted to be written."""


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """How many workers there can be, and what each of them may hold."""

    memory_mib: int
    wanted_workers: int
    threads_per_process: int

    @property
    def workers(self) -> int:
        """As many workers as are wanted, or as few as there is memory for."""
        fits = self.wanted_workers
        while fits > 1 and self._tables_mib(fits) < fits * TABLE_MIB:
            fits -= 1
        return fits

    @property
    def processes(self) -> int:
        """How many worker processes there are; with 1, tasks run in the process that drives."""
        return self._processes(self.workers)

    @property
    def threads(self) -> int:
        """How many tasks a process works on at a time."""
        return min(self.threads_per_process, self.workers)

    @property
    def table_bytes(self) -> int:
        """How large the table of a worker may become before it is written out."""
        return self.sum_bytes // _COPIES

    @property
    def sum_bytes(self) -> int:
        """What a worker that adds up counts may take."""
        return max(self._tables_mib(self.workers) // self.workers, TABLE_MIB) * MEBIBYTE

    @property
    def word_bytes(self) -> int:
        """How many bytes of distinct words can be merged; it depends on the memory alone."""
        return max(self.memory_mib - PROCESS_MIB, TABLE_MIB) * MEBIBYTE // MERGE_MEMORY

    def _processes(self, workers: int) -> int:
        return -(-workers // self.threads_per_process)

    def _tables_mib(self, workers: int) -> int:
        processes = self._processes(workers)
        others = processes if processes > 1 else 0  # beside the one that drives
        return self.memory_mib - (1 + others) * PROCESS_MIB - workers * WORKER_MIB
