"""Token ids on disk: the format, the writer, the reader, and proof that nothing changed."""

from tokenmill.store.format import DOCS_DTYPE, check_fits, choose_dtype, narrow, num_shards
from tokenmill.store.metadata import (
    Counts,
    FileEntry,
    Metadata,
    ShardEntry,
    SourceEntry,
    SplitEntry,
    TokenizerEntry,
    content_digest,
    read_metadata,
    write_metadata,
)
from tokenmill.store.reader import Document, Split, Store, open_store
from tokenmill.store.writer import ShardWriter, hash_file, write_tokenizer

__all__ = [
    "DOCS_DTYPE",
    "Counts",
    "Document",
    "FileEntry",
    "Metadata",
    "ShardEntry",
    "ShardWriter",
    "SourceEntry",
    "Split",
    "SplitEntry",
    "Store",
    "TokenizerEntry",
    "check_fits",
    "choose_dtype",
    "content_digest",
    "hash_file",
    "narrow",
    "num_shards",
    "open_store",
    "read_metadata",
    "write_metadata",
    "write_tokenizer",
]
