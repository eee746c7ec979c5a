"""What `metadata.json` holds: typed records, written canonically and read with suspicion.

The file begins with the format version and with `checksum`: the SHA-256 of the file as it is when
the checksum's own 64 digits are zeros. So a flipped bit anywhere in it is found at every open.
`digest` names the content: stores with the same digest hold the same tokens and documents.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, cast

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from tokenmill.errors import ConfigError, DamageError, NotAStoreError, StorageError
from tokenmill.files import storage_error
from tokenmill.folder import Folder, open_folder
from tokenmill.remote import has_objects, is_remote, join, object_info, read_object
from tokenmill.store import format as layout
from tokenmill.store.format import FORMAT_VERSION, METADATA_NAME

MAX_METADATA_BYTES: Final = 1 << 30
"""More than a million shards need; a larger file is not ours and is not read into memory."""

Count = Annotated[int, Meta(ge=0, le=1 << 60)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 32)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Digest = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}\Z")]


class FileEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One file of the store: its exact size and hash."""

    bytes: Count
    sha256: Sha256


class ShardEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One shard: how much it holds, and its three files."""

    num_tokens: Count
    num_documents: Count
    """Documents that end in this shard."""
    shard: FileEntry
    docs: FileEntry
    blocks: FileEntry


class ConsolidatedEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokens of a split once more as one file without a header, and an id for each sample."""

    seq_len: Annotated[int, Meta(ge=1, le=layout.MAX_SEQ_LEN)]
    """Tokens in a sample."""
    num_samples: Count
    """Whole samples; the tokens after the last of them have no id."""
    tokens: FileEntry
    sample_ids: FileEntry
    shards_deleted: bool = False
    """Whether the ids are in the tokens file alone; the tables of the shards stay."""


class SplitEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One split: its totals and its shards in order."""

    num_tokens: Count
    num_documents: Count
    num_bytes: Count
    """UTF-8 bytes of the text that became these tokens."""
    last_document_cut: bool = False
    """Whether the last document stops short, without EOS, because the tokens were limited."""
    consolidated: ConsolidatedEntry | UnsetType = UNSET
    """Left out of the file until the split is consolidated; no part of the content digest."""
    shards: tuple[ShardEntry, ...] = ()

    @property
    def shards_deleted(self) -> bool:
        """Whether the ids are to be read from the tokens file."""
        return self.consolidated is not UNSET and self.consolidated.shards_deleted


class TokenizerEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokenizer that made the ids, and the file beside the shards that defines it."""

    name: str
    fingerprint: Digest
    num_ids: Annotated[int, Meta(ge=1, le=1 << 32)]
    """Size of the full id space, added tokens included: the highest id plus one."""
    bos_id: TokenId | None = None
    eos_id: TokenId | None = None
    pad_id: TokenId | None = None
    file: str
    bytes: Count
    sha256: Sha256


class SourceEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One input file and what came of it; document tables refer to it by its number in the list.

    The counts are of what is in the store, over all splits, so they add up to those of the splits.
    """

    path: str
    size: Count
    format: str
    compression: str = ""
    num_documents: Count = 0
    num_tokens: Count = 0
    num_bytes: Count = 0
    num_rejected: Count = 0


class Counts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of the input is not in the store as it came."""

    rejected: dict[str, Count] = {}
    """Documents that were not tokenized, by reason; `rejects.jsonl` lists them."""
    num_blank: Count = 0
    """Blank lines of plain text that were passed over."""
    num_truncated_documents: Count = 0
    num_truncated_tokens: Count = 0
    """Tokens left out of the documents that were cut."""
    num_dropped_documents: Count = 0
    """Documents left out whole, for instance beyond a limit on the number of tokens."""
    num_dropped_tokens: Count = 0

    @property
    def num_rejected(self) -> int:
        """Documents rejected for any reason."""
        return sum(self.rejected.values())


class Metadata(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of `metadata.json`. `checksum` and `digest` are filled in when it is written."""

    format: int = FORMAT_VERSION
    checksum: Digest = ""
    digest: Digest = ""
    created: Annotated[datetime, Meta(tz=True)]
    versions: dict[str, str]
    """Versions of tokenmill and of the libraries that had a part in the content."""
    dtype: str
    """uint16 or uint32."""
    bos_id: TokenId | None
    """The id put before each document; null when none is."""
    eos_id: TokenId | None
    """The id put after each document; null when none is."""
    shard_tokens: Annotated[int, Meta(ge=1, le=1 << 50)]
    tokenizer: TokenizerEntry
    counts: Counts = Counts()
    settings: dict[str, Any] = {}
    """The resolved settings of the run, for people and for repeating it."""
    rejects: FileEntry | None = None
    splits: dict[str, SplitEntry]
    sources: tuple[SourceEntry, ...] = ()

    @property
    def add_bos(self) -> bool:
        """Whether each document begins with `bos_id`."""
        return self.bos_id is not None

    @property
    def add_eos(self) -> bool:
        """Whether each document ends with `eos_id`."""
        return self.eos_id is not None

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """The numpy type of the ids, little-endian."""
        return layout.TOKEN_DTYPES[self.dtype]

    @property
    def num_tokens(self) -> int:
        """Tokens in all splits."""
        return sum(split.num_tokens for split in self.splits.values())

    @property
    def num_documents(self) -> int:
        """Documents in all splits."""
        return sum(split.num_documents for split in self.splits.values())


_METADATA: Final = msgspec.json.Decoder(Metadata)  # made once: first use by two threads is not safe


def content_digest(metadata: Metadata) -> str:
    """Return the name of the content: a SHA-256 over what defines it.

    That is the format version, dtype, tokenizer fingerprint, the ids added around documents, for
    each split the counts and hashes of its shards and document tables, and the number of rejected
    documents. Not in it: times, paths, versions, sizes of sources, settings.
    """
    content = {
        "format": metadata.format,
        "dtype": metadata.dtype,
        "tokenizer": metadata.tokenizer.fingerprint,
        "bos_id": metadata.bos_id,
        "eos_id": metadata.eos_id,
        "num_rejected": metadata.counts.num_rejected,
        "splits": {
            name: [
                (s.num_tokens, s.num_documents, s.shard.sha256, s.docs.sha256) for s in split.shards
            ]
            for name, split in metadata.splits.items()
        },
    }
    return f"sha256:{hashlib.sha256(msgspec.json.encode(content, order='sorted')).hexdigest()}"


def write_metadata(folder: Path | Folder, metadata: Metadata) -> Metadata:
    """Write `metadata.json`, which makes the folder a store; return it with its digest.

    To be called last. Metadata that does not add up is a `ValueError`, and nothing is written.
    """
    data, target = encode_metadata(metadata), open_folder(folder)
    path = target.where(METADATA_NAME)
    try:
        complete = decode_metadata(data, path)
    except DamageError as error:
        raise ValueError(
            f"metadata that does not add up was not written: {error.message}"
        ) from error
    try:
        target.write(METADATA_NAME, data)
    except OSError as error:
        raise storage_error(error, path) from error
    return complete


def read_metadata(place: Path | str) -> Metadata:
    """Read and check the metadata of the store at `place`, a folder or a URL."""
    return decode_metadata(read_metadata_bytes(place), f"{place}/{METADATA_NAME}")


def read_metadata_bytes(place: Path | str) -> bytes:
    """Return the bytes of `metadata.json`; without one, raise an error that says what is there."""
    path = f"{place}/{METADATA_NAME}"
    try:
        if is_remote(str(place)):
            info = object_info(path)
            is_large = info is not None and info.size > MAX_METADATA_BYTES
            data = b"" if is_large else read_object(path)
        else:
            with Path(path).open("rb") as file:
                data = file.read(MAX_METADATA_BYTES + 1)
            is_large = len(data) > MAX_METADATA_BYTES
    except (FileNotFoundError, NotADirectoryError):
        raise _not_a_store(place) from None
    except OSError as error:
        raise storage_error(error, path) from error
    if is_large:
        raise DamageError(
            f"{path}: larger than {MAX_METADATA_BYTES} bytes: not the metadata of a store"
        )
    return data


def encode_metadata(metadata: Metadata) -> bytes:
    """Return the bytes of `metadata.json`, a pure function of the content of `metadata`."""
    zeros = f"sha256:{'0' * 64}"
    record = msgspec.structs.replace(metadata, checksum=zeros, digest=content_digest(metadata))
    try:
        data = msgspec.json.encode(record, order="deterministic")
    except UnicodeEncodeError:  # a file name that is not UTF-8 must not stop a run at its last step
        record = msgspec.convert(_escape_surrogates(msgspec.to_builtins(record)), Metadata)
        data = msgspec.json.encode(record, order="deterministic")
    data = msgspec.json.format(data, indent=2) + b"\n"
    found = _PREFIX.match(data)
    assert found is not None
    checksum = hashlib.sha256(data).hexdigest().encode()
    return data[: found.start(2)] + checksum + data[found.end(2) :]


def decode_metadata(data: bytes, path: str | Path) -> Metadata:
    """Check and decode the bytes of `metadata.json`; `path` is named in errors."""
    found = _PREFIX.match(data)
    if found is None:
        raise _not_ours(data, path)
    checksum = hashlib.sha256(data[: found.start(2)])
    checksum.update(b"0" * 64)
    checksum.update(memoryview(data)[found.end(2) :])
    if checksum.hexdigest().encode() != found[2]:
        raise _damage(path, "its checksum does not match its content")
    if int(found[1]) != FORMAT_VERSION:
        raise _other_version(path, int(found[1]))
    try:
        metadata = _METADATA.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise _damage(path, f"{error} (unknown keys may come from a newer tokenmill)") from error
    problem = next(find_problems(metadata), None)
    if problem is not None:
        raise _damage(path, problem)
    return metadata


def find_problems(metadata: Metadata) -> Iterator[str]:
    """Yield what does not add up in well-typed metadata."""
    yield from _tokenizer_problems(metadata)
    if metadata.dtype not in layout.TOKEN_DTYPES:
        yield f"dtype is {metadata.dtype!r}, expected uint16 or uint32"
        return
    if metadata.tokenizer.num_ids > 1 << 8 * metadata.token_dtype.itemsize:
        yield f"{metadata.tokenizer.num_ids} ids do not fit {metadata.dtype}"
    if metadata.digest != content_digest(metadata):
        yield "the content digest does not match the entries"
    if sum(source.num_documents for source in metadata.sources) != metadata.num_documents:
        yield "the documents of the sources do not add up to those of the splits"
    if sum(source.num_tokens for source in metadata.sources) != metadata.num_tokens:
        yield "the tokens of the sources do not add up to those of the splits"
    for name, split in metadata.splits.items():
        if not layout.is_split_name(name):
            yield f"split {name!r}: not a name for a split"
            continue
        for problem in _split_problems(split, metadata):
            yield f"split {name}: {problem}"


def _tokenizer_problems(metadata: Metadata) -> Iterator[str]:
    tokenizer = metadata.tokenizer
    if not layout.is_tokenizer_name(tokenizer.file):
        yield f"tokenizer file {tokenizer.file!r}: not a name for a tokenizer file"
    ids = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id, metadata.bos_id, metadata.eos_id)
    if any(i is not None and i >= tokenizer.num_ids for i in ids):
        yield f"a special id is not below the number of ids, {tokenizer.num_ids}"


def _split_problems(split: SplitEntry, metadata: Metadata) -> Iterator[str]:
    shards, shard_tokens = split.shards, metadata.shard_tokens
    expected = layout.num_shards(split.num_tokens, split.num_documents, shard_tokens=shard_tokens)
    if len(shards) != expected:
        yield f"{len(shards)} shards are listed, {expected} are expected"
        return
    if split.num_tokens and not shards[-1].num_documents:
        yield "no document ends in the last shard"
    if sum(shard.num_documents for shard in shards) != split.num_documents:
        yield "the documents of the shards do not add up"
    dtype, left = metadata.token_dtype, split.num_tokens
    if split.consolidated is not UNSET:
        yield from consolidated_problems(split.consolidated, split.num_tokens, dtype=dtype)
    for index, shard in enumerate(shards):
        tokens = min(left, shard_tokens)
        left -= tokens
        file_bytes = layout.npy_bytes(dtype, tokens)
        docs_bytes = layout.npy_bytes(layout.DOCS_DTYPE, shard.num_documents)
        blocks_bytes = layout.npy_bytes(layout.BLOCKS_DTYPE, layout.num_blocks(file_bytes))
        found = (shard.num_tokens, shard.shard.bytes, shard.docs.bytes, shard.blocks.bytes)
        if found != (tokens, file_bytes, docs_bytes, blocks_bytes):
            yield f"shard {index}: its counts and sizes do not add up"


def consolidated_problems(
    entry: ConsolidatedEntry, num_tokens: int, *, dtype: np.dtype[Any]
) -> Iterator[str]:
    """Yield what does not add up in the entry of a split with `num_tokens` tokens."""
    if entry.num_samples != num_tokens // entry.seq_len:
        yield f"{num_tokens} tokens make {num_tokens // entry.seq_len} samples"
    sizes = (entry.tokens.bytes, entry.sample_ids.bytes)
    if sizes != (num_tokens * dtype.itemsize, entry.num_samples * layout.SAMPLE_ID_DTYPE.itemsize):
        yield "the sizes of its consolidated files do not add up"


_PREFIX: Final = re.compile(
    rb'\{\n  "format": ([1-9][0-9]{0,8}),\n  "checksum": "sha256:([0-9a-f]{64})",\n'
)
"""How the file begins in every format version, so that damage is told from a newer format."""


class _Beginning(Struct):
    """As much of any metadata file as it takes to tell whose it is."""

    format: int | str | None = None
    splits: msgspec.Raw = msgspec.Raw()


def _not_ours(data: bytes, path: str | Path) -> ConfigError | DamageError:
    """Tell a newer store with another beginning, or some other JSON, from a damaged one."""
    try:
        beginning = msgspec.json.decode(data, type=_Beginning)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return _damage(path, "it is not JSON as tokenmill writes it")
    if isinstance(beginning.format, int) and beginning.format > FORMAT_VERSION:
        return _other_version(path, beginning.format)
    if not isinstance(beginning.format, int) and not beginning.splits:
        return NotAStoreError(
            f"{path}: not the metadata of a token store", hint="`tokenmill tokenize` makes a store"
        )
    return _damage(path, "it does not begin as tokenmill writes it")


def _other_version(path: str | Path, version: int) -> ConfigError:
    return ConfigError(
        f"{path}: store format {version}, this tokenmill reads format {FORMAT_VERSION}",
        hint="pip install --upgrade tokenmill",
    )


def _damage(path: str | Path, problem: str) -> DamageError:
    return DamageError(
        f"{path}: damaged: {problem}",
        hint="restore the file from a copy, or run the same `tokenmill tokenize` command again",
    )


def _not_a_store(place: Path | str) -> NotAStoreError | StorageError:
    if is_remote(str(place)):
        has_run = has_objects(join(str(place), layout.RUN_FOLDER))
    else:
        folder = Path(place)
        if not folder.exists():
            return NotAStoreError(f"{folder}: no such folder", hint="check the spelling")
        if not folder.is_dir():
            return NotAStoreError(f"{folder}: a file, expected the folder of a store")
        has_run = (folder / layout.RUN_FOLDER).is_dir()
    if has_run:
        return NotAStoreError(
            f"{place}: not a store yet: its run is in progress or did not finish",
            hint=f"`tokenmill status {shlex.quote(str(place))}` shows how far it is; "
            "the same tokenize command again continues it",
        )
    return NotAStoreError(
        f"{place}: not a store: it has no {METADATA_NAME}",
        hint="check the spelling; `tokenmill tokenize` makes a store",
    )


def _escape_surrogates(value: Any) -> Any:
    """Return JSON-able `value` with the bytes of names that are not UTF-8 written as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
        return {_escape_surrogates(key): _escape_surrogates(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_escape_surrogates(item) for item in cast("list[Any]", value)]
    return value
