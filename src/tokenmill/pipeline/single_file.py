"""`tokenize --output FILE.npy`: all ids in one plain file, and nothing else left behind.

A store is built in a hidden folder beside the file, as one shard. So an interrupted run continues
like any other; at the end the shard gets the file's name, and the folder goes.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from tokenmill.errors import ConfigError
from tokenmill.files import atomic_write, publish_new, storage_error, sync_folder
from tokenmill.pipeline.run import Outcome, tokenize_corpus
from tokenmill.pipeline.settings import TokenizeSettings
from tokenmill.progress import Report, silent
from tokenmill.remote import is_remote
from tokenmill.store import METADATA_NAME, read_metadata, shard_path

_ONE_SHARD = 1 << 50


def is_single_file(output: str | Path) -> bool:
    """Tell whether an output means one plain file instead of a store."""
    return str(output).endswith(".npy") and not Path(output).is_dir()


def work_folder(output: Path) -> Path:
    """Return where the work for a single file is done."""
    return output.with_name(f".{output.name}.tokenmill")


def tokenize_file(
    settings: TokenizeSettings, output: str | Path, *, report: Report = silent
) -> Outcome:
    """Tokenize into one `.npy` file, or continue where an earlier run stopped.

    A file that exists is never replaced. It is made on a disk, not in an object store.
    """
    if is_remote(str(output)):
        raise ConfigError(
            f"{output}: one plain file is written to a disk only",
            hint="name a local file and copy it, or leave .npy out to write a store",
        )
    output = Path(output)
    if settings.has_val:
        raise ConfigError(
            f"{output}: one file cannot hold two splits", hint="name a folder as the output"
        )
    started = time.monotonic()
    folder = work_folder(output)
    shard = shard_path(folder, "train", index=0)
    if output.exists():
        if not _was_published(folder, shard):
            raise ConfigError(f"{output}: exists already", hint="remove it, or name another file")
        outcome = Outcome(read_metadata(folder), True, time.monotonic() - started)
    else:
        one_shard = replace(settings, shard_tokens=_ONE_SHARD)
        outcome = tokenize_corpus(one_shard, folder, report=report)
        _publish(shard, output, dtype=outcome.metadata.dtype)
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise storage_error(error) from error
    return replace(outcome, seconds=time.monotonic() - started)


def _was_published(folder: Path, shard: Path) -> bool:
    """Tell whether only the removal of the folder is left to do."""
    return (folder / METADATA_NAME).exists() and not shard.exists()


def _publish(shard: Path, output: Path, *, dtype: str) -> None:
    if not shard.exists():  # no tokens, no shard
        with atomic_write(shard) as file:
            np.lib.format.write_array_header_1_0(
                file,  # pyright: ignore[reportArgumentType]
                {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (0,)},
            )
    if not publish_new(shard, output):
        raise ConfigError(f"{output}: appeared while it was being made; it was left alone")
    sync_folder(output.parent)
