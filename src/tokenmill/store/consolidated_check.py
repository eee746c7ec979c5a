"""Check a tokens file and its sample ids, of a store or of a folder of plain shards."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tokenmill.errors import TokenmillError
from tokenmill.store.format import SAMPLE_ID_DTYPE
from tokenmill.store.metadata import ConsolidatedEntry
from tokenmill.store.sample_ids import sample_ids
from tokenmill.store.shard_check import Findings, check_hash
from tokenmill.store.tokens_file import files_of_entry

_SAMPLES: Final = 256


class ConsolidatedCheck:
    """The three levels of checks for the consolidated files of one split."""

    def __init__(
        self, folder: str, split: str, *, entry: ConsolidatedEntry, dtype: np.dtype[Any]
    ) -> None:
        self._entry = entry
        self._dtype = dtype
        self._tokens, self._sample_ids = files_of_entry(folder, split, entry=entry)

    def structure(self) -> Findings:
        """Compare the sizes of both files."""
        found = Findings(num_files=2)
        for file in (self._tokens, self._sample_ids):
            try:
                file.open()
            except TokenmillError as error:
                found.add(file.name, error)
            finally:
                file.forget()
        return found

    def sample(self, rng: np.random.Generator) -> Findings:
        """Hash the samples that `rng` picks, and compare them with their ids."""
        found = self.structure()
        total = self._entry.num_samples
        if found.problems or not total:
            return found
        chosen = np.sort(rng.choice(total, size=min(total, _SAMPLES), replace=False)).tolist()
        size, width = self._entry.seq_len * self._dtype.itemsize, SAMPLE_ID_DTYPE.itemsize
        try:
            for sample in chosen:
                ids = np.frombuffer(
                    self._tokens.read(sample * size, (sample + 1) * size), dtype=self._dtype
                )
                listed = self._sample_ids.read(sample * width, (sample + 1) * width)
                found.num_bytes += size + width
                if bytes(listed) != sample_ids(ids, self._entry.seq_len).tobytes():
                    problem = f"sample {sample} does not match the ids in {self._tokens.name}"
                    found.add(self._sample_ids.name, problem)
                    break
        except TokenmillError as error:
            found.add(self._tokens.name, error)
        finally:
            self._tokens.forget()
            self._sample_ids.forget()
        return found

    def full_tokens(self) -> Findings:
        """Compare the hash of the tokens file."""
        return check_hash(self._tokens, self._entry.tokens.sha256)

    def full_sample_ids(self) -> Findings:
        """Compare the hash of the sample ids."""
        return check_hash(self._sample_ids, self._entry.sample_ids.sha256)
