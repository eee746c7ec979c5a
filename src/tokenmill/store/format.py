"""The bytes of a store, format 1: names, headers, sizes and the types of ids.

A store is a folder. `metadata.json` is its commit point; the other names follow from a split and a
number:

    train_000000.npy            token ids
    docs/train_000000.npy       the documents that end in that shard
    blocks/train_000000.npy     one checksum for each 64 KiB of the shard file

    tokens.bin                  once consolidated: all ids of the split train, without a header
    sample_ids.bin              and one number for each sample; val_tokens.bin, val_sample_ids.bin …

The first three are standard one-dimensional .npy files, version 1.0, little-endian, byte for byte
what `np.save` writes. Their headers have a fixed length, so sizes follow from counts alone:

    shard     0  93 4E 55 4D 50 59 01 00 76 00   magic "NUMPY", 1.0, 118 bytes of text follow
             10  {'descr': '<u2', 'fortran_order': False, 'shape': (N,), }, spaces, newline
            128  id 0 | id 1 | ... | id N-1      <u2 or <u4

    blocks    0  header as above with 'descr': '<u8'
            128  xxh3_64 of shard file bytes [0, 65536) | of [65536, 131072) | ... | of the rest

    docs      0  93 4E 55 4D 50 59 01 00 B6 00   the same with 182 bytes of text
             10  {'descr': [('end', '<u8'), ('source', '<u4'), ('position', '<u8')], ...
            192  end <u8 | source <u4 | position <u8     20 bytes a document, without padding

Blocks count from the first byte of the shard *file*, header included. `end` is the token offset in
the split, exclusive, at which a document ends; it begins where the one before it ends. `source` is
a number in the metadata's list of sources, `position` the byte offset or row in it.

Every shard of a split but the last holds exactly `shard_tokens` ids. A shard that holds the tokens
[start, stop) lists the documents with an end in (start, stop]; the first also those with end 0.
A split with neither tokens nor documents has no shard; one with documents but no token (all of them
empty, no EOS) has one shard of zero ids.

    tokens    0  id 0 | id 1 | ... | id N-1      <u2 or <u4, the shards without their headers
    sample_ids 0 u64 of sample 0 | ...           <u8, BLAKE2b with 8 bytes over seq_len ids as <u4

Ids after the last whole sample have no sample id. Shards may be deleted once their ids are in the
tokens file: each is there at a known place, so its tables prove those bytes as before.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import ConfigError

FORMAT_VERSION: Final = 1
METADATA_NAME: Final = "metadata.json"
REJECTS_NAME: Final = "rejects.jsonl"
RUN_FOLDER: Final = "_run"
DOCS_FOLDER: Final = "docs"
BLOCKS_FOLDER: Final = "blocks"

BLOCK_BYTES: Final = 1 << 16
HEADER_BYTES: Final = 128
"""Length of the .npy header of shards and of block tables."""
DOCS_HEADER_BYTES: Final = 192
MAX_SEQ_LEN: Final = 1 << 22
"""Tokens in the largest sample that is consolidated: one is held in memory for each thread."""

DOCS_DTYPE: Final = np.dtype([("end", "<u8"), ("source", "<u4"), ("position", "<u8")])
BLOCKS_DTYPE: Final = np.dtype("<u8")
SAMPLE_ID_DTYPE: Final = np.dtype("<u8")
TOKEN_DTYPES: Final = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}

_DESCRS: Final = {
    np.dtype("<u2"): ("'<u2'", HEADER_BYTES),
    np.dtype("<u4"): ("'<u4'", HEADER_BYTES),
    BLOCKS_DTYPE: ("'<u8'", HEADER_BYTES),
    DOCS_DTYPE: ("[('end', '<u8'), ('source', '<u4'), ('position', '<u8')]", DOCS_HEADER_BYTES),
}
_SPLIT_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,30}")
_TOKENIZER_NAME: Final = re.compile(r"tokenizer\.[a-z0-9]{1,20}")


def shard_name(split: str, index: int) -> str:
    """Return the file name of a shard; its two tables bear the same name in their folders.

    >>> shard_name("train", 7)
    'train_000007.npy'
    """
    if not is_split_name(split) or index < 0:
        raise ConfigError(
            f"split {split!r}, shard {index}: not a name for a shard",
            hint="a split is named in small letters, digits, _ and -, for example train or val",
        )
    return f"{split}_{index:06d}.npy"


def docs_name(split: str, index: int) -> str:
    """Return the name in the store of the document table of a shard."""
    return f"{DOCS_FOLDER}/{shard_name(split, index)}"


def blocks_name(split: str, index: int) -> str:
    """Return the name in the store of the block checksums of a shard."""
    return f"{BLOCKS_FOLDER}/{shard_name(split, index)}"


def shard_path(folder: Path, split: str, *, index: int) -> Path:
    """Return where the token ids of a shard are."""
    return folder / shard_name(split, index)


def docs_path(folder: Path, split: str, *, index: int) -> Path:
    """Return where the document table of a shard is."""
    return folder / docs_name(split, index)


def blocks_path(folder: Path, split: str, *, index: int) -> Path:
    """Return where the block checksums of a shard are."""
    return folder / blocks_name(split, index)


def tokens_name(split: str) -> str:
    """Return the file name of the consolidated ids of a split.

    >>> tokens_name("train"), tokens_name("val")
    ('tokens.bin', 'val_tokens.bin')
    """
    return f"{_prefix(split)}tokens.bin"


def sample_ids_name(split: str) -> str:
    """Return the file name of the sample ids of a split.

    >>> sample_ids_name("train"), sample_ids_name("val")
    ('sample_ids.bin', 'val_sample_ids.bin')
    """
    return f"{_prefix(split)}sample_ids.bin"


def is_split_name(name: str) -> bool:
    """Tell whether a split may have this name; it becomes part of file names."""
    return _SPLIT_NAME.fullmatch(name) is not None


def is_tokenizer_name(name: str) -> bool:
    """Tell whether a tokenizer file may have this name: `tokenizer.` and a suffix, never a path."""
    return _TOKENIZER_NAME.fullmatch(name) is not None


def npy_header(dtype: np.dtype[Any], length: int) -> bytes:
    """Return the exact header of a one-dimensional .npy file of `length` items."""
    descr, num_bytes = _DESCRS[dtype]
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': ({length},), }}"
    text_bytes = num_bytes - 10
    prefix = b"\x93NUMPY\x01\x00" + text_bytes.to_bytes(2, "little")
    return prefix + text.encode().ljust(text_bytes - 1) + b"\n"


def npy_bytes(dtype: np.dtype[Any], length: int) -> int:
    """Return the size of a whole .npy file of `length` items.

    >>> npy_bytes(np.dtype("<u2"), 10)
    148
    """
    return _DESCRS[dtype][1] + dtype.itemsize * length


def num_blocks(file_bytes: int) -> int:
    """Return how many blocks a shard file of this size has; the last may be shorter."""
    return -(-file_bytes // BLOCK_BYTES)


def num_shards(num_tokens: int, num_documents: int, *, shard_tokens: int) -> int:
    """Return how many shards a split has.

    >>> [num_shards(tokens, 3, shard_tokens=10) for tokens in (0, 10, 21)]
    [1, 1, 3]
    """
    return max(-(-num_tokens // shard_tokens), 1 if num_documents else 0)


def choose_dtype(num_ids: int, dtype: str = "auto") -> np.dtype[Any]:
    """Return the type for ids below `num_ids`: uint16 up to 65,536 of them, else uint32.

    A named `dtype` is taken if it is wide enough, and is a `ConfigError` if not.
    """
    if dtype == "auto":
        dtype = "uint16" if num_ids <= 1 << 16 else "uint32"
    if dtype not in TOKEN_DTYPES:
        raise ConfigError(f"dtype is {dtype!r}, expected auto, {', '.join(TOKEN_DTYPES)}")
    check_fits(num_ids - 1, TOKEN_DTYPES[dtype])
    return TOKEN_DTYPES[dtype]


def check_fits(max_id: int, dtype: np.dtype[Any]) -> None:
    """Raise `ConfigError` unless `max_id` can be stored as `dtype` unchanged."""
    largest = (1 << 8 * dtype.itemsize) - 1
    if not max_id <= largest:
        hint = "use dtype uint32, or auto" if max_id < 1 << 32 else None
        raise ConfigError(
            f"token id {max_id} does not fit {dtype.name}, which ends at {largest}", hint=hint
        )


def narrow(ids: NDArray[np.uint32], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return ids as `dtype`; one that does not fit is a `ConfigError`: a cast would wrap it."""
    if ids.dtype != np.uint32:
        raise TypeError(f"ids are {ids.dtype}, expected uint32")
    if dtype.itemsize < ids.itemsize and ids.size:
        check_fits(int(ids.max()), dtype)
    return ids.astype(dtype, copy=False)


def _prefix(split: str) -> str:
    if not is_split_name(split):
        raise ConfigError(f"{split!r}: not a name for a split")
    return "" if split == "train" else f"{split}_"
