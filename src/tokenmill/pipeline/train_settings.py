"""The settings of a training run, each with its help text."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from tokenmill.errors import ConfigError
from tokenmill.pipeline.train_memory import MEBIBYTE, MIN_MEMORY_MIB
from tokenmill.sources import SourceSettings

NUM_BYTES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """What to train a tokenizer on, and what it shall be like."""

    sources: tuple[str, ...]
    """Files, folders or globs, in any format that `tokenize` reads."""
    vocab_size: int = 32_000
    """Ids in all: the 256 bytes, the special tokens and the merges."""
    special: tuple[str, ...] = ("<|endoftext|>",)
    """Special tokens, in the order of their ids; texts are cut where they occur in documents."""
    special_first: bool = False
    """Give the special tokens the first ids; by default they follow the 256 bytes."""
    pattern: str = "gpt2"
    """How text is cut into words: gpt2, gpt4, o200k, qwen2, nanochat, tekken, or an expression."""
    tie_break: Literal["bytes", "huggingface"] = "bytes"
    """Among pairs as frequent: the greatest bytes first, or as HF tokenizers does."""
    min_count: int = 1
    """Merge no pair that occurs less often."""
    held_out: float = 0.001
    """Share of the documents, by a hash of their content, kept back to measure compression."""
    memory_mib: int = 4096
    """Memory of all processes, in MiB; what does not fit waits on disk, then rare words go."""
    format: Literal["auto", "text", "file", "jsonl", "json", "parquet", "arrow", "csv"] = "auto"
    """What files hold; auto goes by their names. text: a document a line; file: one a file."""
    separator: str | None = None
    """Cut text at this string instead of at line ends."""
    split: str | None = None
    """Take this split of folders and hub datasets: train, validation, test, another name, all."""
    catalog: str | None = None
    """A JSON file of named datasets; `tokenmill catalog` writes it."""
    text_field: str = "text"
    """The field or column that holds the text; a.b reaches into nested records."""
    on_error: Literal["fail", "skip"] = "fail"
    """What to do with a broken document: stop, or count it and go on."""
    workers: int | None = None
    """Processes; by default one for each core, 0 or less: 75% of the cores."""
    engine: Literal["local", "ray"] = "local"
    """Where words are counted: on this machine, or on a Ray cluster."""
    address: str | None = None
    """Of the Ray cluster, host:port; else RAY_ADDRESS, else one is started on this machine."""
    max_document_bytes: int = 512 * MEBIBYTE
    """A longer document counts as broken."""
    unit_bytes: int | None = None
    """Input bytes in a unit of work; by default 8 to 64 MiB, by the size of the input."""

    def __post_init__(self) -> None:
        if not self.sources:
            raise ConfigError("no sources given", hint="name at least one file, folder or glob")
        if len(set(self.special)) != len(self.special) or not all(self.special):
            raise ConfigError(f"special tokens must be different and not empty: {self.special}")
        smallest = NUM_BYTES + len(self.special)
        if self.vocab_size < smallest:
            raise ConfigError(
                f"vocab_size is {self.vocab_size}, but the 256 bytes and {len(self.special)} "
                f"special tokens need {smallest}"
            )
        minima = {"min_count": 1, "memory_mib": MIN_MEMORY_MIB, "max_document_bytes": 1}
        for name, minimum in minima.items():
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, got {getattr(self, name)}")
        if self.address is not None and self.engine != "ray":
            raise ConfigError("address is that of a Ray cluster: give --engine ray as well")
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out must be at least 0 and below 1, got {self.held_out}")
        single = [token for token in self.special if len(token.encode()) == 1]
        if single:
            raise ConfigError(f"the special token {single[0]!r} is a single byte, which has an id")

    def content(self) -> dict[str, Any]:
        """Return the settings that decide the tokenizer, as JSON-able values."""
        fields = dataclasses.asdict(self)
        for name in (
            "workers",
            "engine",
            "address",
            "on_error",
            "catalog",
        ):  # how it runs, not what comes out
            del fields[name]
        return fields | {"sources": list(self.sources), "special": list(self.special)}

    def source_settings(self) -> SourceSettings:
        """Return the part of the settings that says what to read."""
        return SourceSettings(
            places=self.sources,
            format=self.format,
            separator=self.separator,
            split=self.split,
            catalog=self.catalog,
            text_field=self.text_field,
            max_document_bytes=self.max_document_bytes,
        )
