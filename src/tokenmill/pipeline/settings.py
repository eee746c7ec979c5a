"""The settings of a tokenize run, each with its help text."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from tokenmill.errors import ConfigError

MEBIBYTE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeSettings:
    """Which documents to tokenize, how, and how to cut the result into shards."""

    sources: tuple[str, ...]
    """Files, folders, globs, names in the catalog or hf://org/name, read in this order."""
    tokenizer: str = "gpt2"
    """A short name (gpt2, cl100k_base, o200k_base), a hub id, a folder or a tokenizer file."""
    vocab: str | None = None
    """A vocabulary file (vocab.json, or byte lists), together with --merges, as the tokenizer."""
    merges: str | None = None
    """The merges that belong to --vocab."""
    format: Literal["auto", "text", "file", "jsonl", "json", "parquet", "arrow", "csv"] = "auto"
    """What files hold; auto goes by their names. text: a document a line; file: one a file."""
    separator: str | None = None
    """Cut text at this string instead of at line ends, e.g. '<|endoftext|>'."""
    split: str | None = None
    """Take this split of folders and hub datasets: train, validation, test, another name, all."""
    catalog: str | None = None
    """A JSON file of named datasets; `tokenmill catalog` writes it."""
    text_field: str = "text"
    """The field or column that holds the text; a.b reaches into nested records."""
    shard_tokens: int = 100_000_000
    """Tokens in each shard; only the last of a split may be shorter."""
    dtype: Literal["auto", "uint16", "uint32"] = "auto"
    """Integer type of the stored ids; auto takes the smallest that holds the tokenizer's ids."""
    eos: bool = True
    """Close each document with the tokenizer's end-of-sequence id."""
    bos: bool = False
    """Open each document with the tokenizer's beginning-of-sequence id."""
    val_ratio: float = 0.0
    """Share of the documents that goes to the split 'val', chosen by a hash of their content."""
    val_documents: int = 0
    """Number of documents that goes to 'val' instead, those with the smallest content hash."""
    max_tokens: int | None = None
    """Stop at exactly this many tokens; the document it falls into is cut."""
    sample: bool = False
    """With --max-tokens: draw the documents from all over the input, into one shard."""
    shuffle: int | None = None
    """Seed: put the documents in an order that depends on it and on the input alone."""
    on_error: Literal["fail", "skip"] = "fail"
    """What to do with a broken document: stop, or write it to rejects.jsonl and go on."""
    max_errors: int | None = None
    """With --on-error skip: stop when more documents than this are broken."""
    allow_special: bool = False
    """Let a special token's text in a document become its control id; by default it stays text."""
    workers: int | None = None
    """Encoder threads; by default one for each core, 0 or less: 75% of the cores."""
    engine: Literal["local", "ray"] = "local"
    """Where the work is done: on this machine, or on a Ray cluster."""
    address: str | None = None
    """Of the Ray cluster, host:port; else RAY_ADDRESS, else one is started on this machine."""
    max_document_bytes: int = 512 * MEBIBYTE
    """A longer document counts as broken; this bounds the memory that a run needs."""
    unit_bytes: int | None = None
    """Input bytes in a unit of work; by default 8 to 64 MiB, by the size of the input."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("no sources given", hint="name at least one file, folder or glob")
        self._at_least(shard_tokens=1, val_documents=0, max_document_bytes=1)
        for name in ("max_tokens", "unit_bytes", "max_errors"):
            if getattr(self, name) is not None:
                self._at_least(**{name: 0 if name == "max_errors" else 1})
        if not 0 <= self.val_ratio < 1:
            raise ConfigError(f"val_ratio must be at least 0 and below 1, got {self.val_ratio}")
        if self.val_ratio and self.val_documents:
            raise ConfigError("val_ratio and val_documents are two ways to say one thing: give one")
        if self.shuffle is not None and not 0 <= self.shuffle < 1 << 64:
            raise ConfigError(f"shuffle must be a seed from 0 to 2^64-1, got {self.shuffle}")
        if (self.vocab is None) != (self.merges is None):
            raise ConfigError("vocab and merges are two halves of one tokenizer: give both")
        if self.sample:
            self._settle_sample()
        if self.address is not None and self.engine != "ray":
            raise ConfigError("address is that of a Ray cluster: give --engine ray as well")
        if self.separator == "":
            raise ConfigError("separator is empty: give the text that stands between documents")

    @property
    def has_val(self) -> bool:
        """Whether documents are divided between train and val."""
        return bool(self.val_ratio or self.val_documents)

    @property
    def needs_all_parts(self) -> bool:
        """Whether the order or the split of documents is known only when every unit is done."""
        return self.shuffle is not None or bool(self.val_documents)

    def content(self) -> dict[str, Any]:
        """Return the settings that decide the content of the store, as JSON-able values."""
        fields = dataclasses.asdict(self)
        # How it runs and where names come from, not what comes out.
        for name in ("workers", "engine", "address", "on_error", "max_errors", "catalog"):
            del fields[name]
        for name in ("vocab", "merges"):  # most runs have none; the tokenizer's hash counts anyway
            if fields[name] is None:
                del fields[name]
        return fields | {"sources": list(self.sources)}

    def _settle_sample(self) -> None:
        """Choose what a sample leaves open: an order, and shards long enough for one to do."""
        if self.max_tokens is None:
            raise ConfigError("sample needs max_tokens: how many tokens are to be drawn")
        object.__setattr__(self, "shuffle", self.shuffle or 0)
        object.__setattr__(self, "shard_tokens", max(self.shard_tokens, self.max_tokens))

    def _at_least(self, **minima: int) -> None:
        for name, minimum in minima.items():
            value = getattr(self, name)
            if value < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, got {value}")
