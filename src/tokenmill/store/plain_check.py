"""Check the consolidated files of a folder of plain shards against its `consolidated.json`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import numpy as np

from tokenmill.errors import TokenmillError
from tokenmill.store.consolidated_check import ConsolidatedCheck
from tokenmill.store.format import TOKEN_DTYPES
from tokenmill.store.plain_shards import PlainRecord, PlainShards, PlainSplit
from tokenmill.store.shard_check import Findings

_PIECE_IDS: Final = 1 << 19


def check_record(folder: Path, record: PlainRecord, *, level: str, seed: int = 0) -> Findings:
    """Check all splits of a plain folder at a level; full also compares the shards that exist."""
    found = Findings(num_files=1)
    for name, split in record.splits.items():
        entry, dtype = split.consolidated, TOKEN_DTYPES[split.dtype]
        check = ConsolidatedCheck(str(folder), name, entry=entry, dtype=dtype)
        if level == "structure":
            found.merge(check.structure())
        elif level == "sample":
            found.merge(check.sample(np.random.default_rng([seed, *name.encode()])))
        else:
            found.merge(check.full_tokens())
            found.merge(check.full_sample_ids())
            if not entry.shards_deleted:
                found.merge(_compare_shards(folder, name, split))
    return found


def _compare_shards(folder: Path, name: str, split: PlainSplit) -> Findings:
    """Compare the ids in the shards, one after the other, with the hash of the tokens file."""
    found = Findings(num_files=len(split.shards))
    reader = PlainShards(folder, name, shards=split.shards, dtype=split.dtype)
    digest = hashlib.sha256()
    buffer = np.empty(_PIECE_IDS, dtype=reader.dtype)
    try:
        for start in range(0, reader.num_tokens, _PIECE_IDS):
            ids = buffer[: min(_PIECE_IDS, reader.num_tokens - start)]
            reader.read_into(ids, start)
            digest.update(ids.data)
            found.num_bytes += ids.nbytes
    except TokenmillError as error:
        found.add(f"{name}_*.npy", error)
    else:
        if digest.hexdigest() != split.consolidated.tokens.sha256:
            found.add(f"{name}_*.npy", "the shards do not hold the ids that were consolidated")
    finally:
        reader.close()
    return found
