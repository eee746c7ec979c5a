"""Find out what a path holds and open it as a source of tokens."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from numpy.typing import DTypeLike

from tokenmill.dataset.file_source import FileSource
from tokenmill.dataset.token_files import SUFFIXES, TokenFiles, find_token_files
from tokenmill.dataset.token_source import StoreSource, TokenSource
from tokenmill.errors import ConfigError
from tokenmill.remote import is_remote, split_url
from tokenmill.store import METADATA_NAME, CacheSettings, open_store, tokens_name

_OTHER_NAMES: Final = {"val": "validation", "validation": "val"}


def open_source(
    path: str | Path,
    split: str = "train",
    *,
    dtype: DTypeLike | None = None,
    eos_id: int | None = None,
    vocab_size: int | None = None,
    cache: CacheSettings | None = None,
) -> TokenSource:
    """Open a store, the `tokens.bin` of a store, a plain `.npy` or `.bin` file or a folder of them.

    A store knows its dtype, EOS and vocabulary: they are refused there. Plain files know none of
    them: `dtype` is needed for `.bin`, and without `eos_id` all is one document. A store may be at
    s3://bucket/prefix; `cache` is as in `open_store`.
    """
    place = str(path)
    if is_remote(place):
        split_url(place)  # refuses what cannot be meant, before any message repeats it
    plain = {"dtype": dtype, "eos_id": eos_id, "vocab_size": vocab_size}
    given = [name for name, value in plain.items() if value is not None]
    is_tokens = place.endswith(tokens_name("train"))
    folder = place.rpartition("/")[0] or "." if is_tokens else place
    if is_remote(place) or Path(folder, METADATA_NAME).is_file() or not Path(place).exists():
        if given:
            raise ConfigError(
                f"{path}: {' and '.join(given)} given for a store, whose metadata says it",
                hint="leave it out",
            )
        if is_remote(place) and not is_tokens and place.endswith(SUFFIXES):
            raise ConfigError(
                f"{path}: plain files of token ids are read from a disk",
                hint=f"`tokenmill sync {shlex.quote(folder)} FOLDER` brings them here",
            )
        if is_tokens:
            return _open_consolidated(place, folder, cache=cache)
        return _open_split(place, split, cache=cache)
    path = Path(path)
    if path.is_dir():
        files = find_token_files(path, split)
    elif split == "train":
        files = [path]
    else:
        raise ConfigError(
            f"{path}: one file has no split {split!r}",
            hint="say which items are for validation, for example validation=0.1",
        )
    if files[0].suffix not in SUFFIXES:
        raise ConfigError(f"{path}: neither a store nor a file of token ids (.npy or .bin)")
    return FileSource(TokenFiles(files, dtype=dtype), eos_id=eos_id, vocab_size=vocab_size)


def _open_split(place: str, split: str, *, cache: CacheSettings | None) -> StoreSource:
    store = open_store(place, cache=cache)
    if split not in store.splits and _OTHER_NAMES.get(split) in store.splits:
        split = _OTHER_NAMES[split]
    return StoreSource(store, split)


def _open_consolidated(path: str, folder: str, *, cache: CacheSettings | None) -> StoreSource:
    """Open the split of a store of which `path` holds the tokens; its shards may be gone."""
    store = open_store(folder, cache=cache)
    for name, split in store.splits.items():
        if path.rpartition("/")[2] == tokens_name(name) and split.consolidated is not None:
            return StoreSource(store, name)
    raise ConfigError(
        f"{path}: not a consolidated split of the store in its folder",
        hint=f"`tokenmill consolidate {shlex.quote(folder)}` makes one",
    )
