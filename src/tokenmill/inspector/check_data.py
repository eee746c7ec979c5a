"""Check data files from end to end before a run: each step that training takes, on a small scale.

Every check gives one line that says PASS or FAIL and why; what a failed one makes impossible fails
with it. Reading all of the text is the longest part, at the speed of the disk.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from tokenmill.dataset import IGNORED, TextDataModule, get_dataset, stream_text
from tokenmill.errors import BadDocumentError, ConfigError, DamageError, TokenmillError
from tokenmill.pipeline import tokenize
from tokenmill.sources import SourceFile, SourceSettings, cut_units, find_files, read_unit
from tokenmill.tokenizer import Tokenizer, load_tokenizer

_SAMPLE_BYTES: Final = 4 << 20
_SAMPLE_TOKENS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckSettings:
    """Which files to check, and how training will use them."""

    train: str
    val: str
    tokenizer: str = "gpt2"
    context_length: int = 256
    batch_size: int = 8
    num_workers: int = 2
    min_tokens_per_second: float = 0.0
    """Fail if the loader delivers fewer."""
    seconds: float = 2.0
    """How long the loader is measured."""
    source: dict[str, Any] = field(default_factory=dict[str, Any])
    """How files are cut into documents: fields of `SourceSettings`."""


class Check(msgspec.Struct, frozen=True):
    """The outcome of one check."""

    name: str
    passed: bool
    detail: str
    exit_code: int = 0


def check_data(settings: CheckSettings) -> Iterator[Check]:
    """Yield the outcome of each check as soon as it is known."""
    data = _Data(settings)
    checks: dict[str, Callable[[_Data], str]] = {
        "files": _check_files,
        "UTF-8": _check_utf8,
        "documents": _check_documents,
        "round trip": _check_round_trip,
        "dataset": _check_dataset,
        "loader": _check_loader,
        "throughput": _check_throughput,
        "preprocessing": _check_preprocessing,
    }
    for name, check in checks.items():
        try:
            outcome = Check(name, True, check(data))
        except TokenmillError as error:
            hint = f" ({error.hint})" if error.hint else ""
            outcome = Check(name, False, f"{error.message}{hint}", error.exit_code)
        yield outcome


class _Data:
    """What several checks look at, found once."""

    def __init__(self, settings: CheckSettings) -> None:
        self.settings = settings

    @cached_property
    def files(self) -> dict[str, list[SourceFile]]:
        return {name: find_files(self.source(name)) for name in ("train", "val")}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.settings.tokenizer)

    @cached_property
    def facts(self) -> dict[str, _Facts]:
        return {name: self._read(name) for name in ("train", "val")}

    @cached_property
    def measured(self) -> tuple[int, int, float]:
        """Batches and tokens that a loader with workers delivered, and in how many seconds."""
        return _measure(self)

    def source(self, name: str) -> SourceSettings:
        return SourceSettings(places=(getattr(self.settings, name),), **self.settings.source)

    def _read(self, name: str) -> _Facts:
        files, source, facts = self.files[name], self.source(name), _Facts()
        num_sampled = 0
        for unit in cut_units(files, text_field=source.text_field):
            for batch in read_unit(files, unit, source):
                facts.num_documents += len(batch.texts)
                facts.num_blank += batch.num_blank
                facts.num_bytes += batch.num_bytes
                facts.num_rejected += len(batch.rejects)
                if batch.rejects and facts.first_reject is None:
                    reject = batch.rejects[0]
                    place = f"{files[reject.file].path}: at {reject.position:,}"
                    facts.first_reject = f"{place}: {reject.reason}: {reject.detail}"
                if num_sampled < _SAMPLE_BYTES:
                    facts.sample += batch.texts
                    num_sampled += batch.num_bytes
        return facts


@dataclass(slots=True)
class _Facts:
    """What reading all files of one side found."""

    num_documents: int = 0
    num_blank: int = 0
    num_bytes: int = 0
    num_rejected: int = 0
    first_reject: str | None = None
    sample: list[str] = field(default_factory=list[str])


def _check_files(data: _Data) -> str:
    parts = [
        f"{name}: {len(files):,} files, {sum(file.size for file in files):,} bytes"
        for name, files in data.files.items()
    ]
    return "; ".join(parts)


def _check_utf8(data: _Data) -> str:
    for facts in data.facts.values():
        if facts.num_rejected:
            raise BadDocumentError(
                f"{facts.num_rejected:,} broken documents, the first in {facts.first_reject}"
            )
    return f"{sum(facts.num_bytes for facts in data.facts.values()):,} bytes of valid text"


def _check_documents(data: _Data) -> str:
    for name, facts in data.facts.items():
        if not facts.num_documents:
            raise ConfigError(f"{name}: there is no document")
    parts = [
        f"{name}: {facts.num_documents:,} documents, {facts.num_blank:,} blank lines"
        for name, facts in data.facts.items()
    ]
    return "; ".join(parts)


def _check_round_trip(data: _Data) -> str:
    num_texts = num_tokens = 0
    for name, facts in data.facts.items():
        ids, offsets = data.tokenizer.encode_batch(facts.sample)
        for number, text in enumerate(facts.sample):
            found = data.tokenizer.decode(ids[int(offsets[number]) : int(offsets[number + 1])])
            if found != text:
                raise DamageError(
                    f"{name}: document {number} is {text[:40]!r}, but decoding its ids gives "
                    f"{found[:40]!r}",
                    hint=f"the tokenizer {data.tokenizer.name} does not keep every text",
                )
        num_texts += len(facts.sample)
        num_tokens += len(ids)
    return f"{num_texts:,} documents, {num_tokens:,} tokens decode to the same text"


def _check_dataset(data: _Data) -> str:
    settings = data.settings
    for name in ("train", "val"):
        stream = stream_text(
            getattr(settings, name),
            data.tokenizer,
            settings.context_length,
            output="numpy",
            source=settings.source,
            on_error="skip",
        )
        row = next(iter(stream), None)
        if row is None:
            raise ConfigError(f"{name}: there are too few tokens for one row")
        has_label = row.labels[:-1] != IGNORED
        if not np.array_equal(row.labels[:-1][has_label], row.token_ids[1:][has_label]):
            raise DamageError(f"{name}: the labels of the first row are not the next tokens")
    return f"rows of {settings.context_length:,} tokens with labels"


def _check_loader(data: _Data) -> str:
    num_batches, num_tokens, _ = data.measured
    workers = data.settings.num_workers
    return f"{num_batches:,} batches, {num_tokens:,} tokens with {workers} workers"


def _check_throughput(data: _Data) -> str:
    _, num_tokens, seconds = data.measured
    rate, least = num_tokens / seconds, data.settings.min_tokens_per_second
    if rate < least:
        raise TokenmillError(
            f"{rate:,.0f} tokens/s, expected at least {least:,.0f}",
            hint="use more workers, or preprocess with `tokenmill tokenize`",
        )
    return f"{rate:,.0f} tokens/s" + (f", at least {least:,.0f} expected" if least else "")


def _check_preprocessing(data: _Data) -> str:
    settings = data.settings
    with tempfile.TemporaryDirectory() as folder:
        store = tokenize(
            settings.val,
            Path(folder) / "store",
            tokenizer=settings.tokenizer,
            max_tokens=_SAMPLE_TOKENS,
            on_error="skip",
            **settings.source,
        )
        length = min(settings.context_length, store.num_tokens - 1)
        dataset = get_dataset(Path(folder) / "store", length, output="numpy")
        if not np.array_equal(dataset[0].token_ids, store.read(0, length)):
            raise DamageError("val: the first row of the store is not its first tokens")
        return f"val: {store.num_documents:,} documents, {store.num_tokens:,} tokens in a store"


def _measure(data: _Data) -> tuple[int, int, float]:
    """Read batches of the training files for a while, after the first one has come."""
    settings = data.settings
    module = TextDataModule(
        settings.train,
        batch_size=settings.batch_size,
        context_length=settings.context_length,
        num_workers=settings.num_workers,
        preprocessed=False,
        tokenizer=data.tokenizer,
        source=settings.source,
        on_error="skip",
        num_epochs=None,
    )
    num_batches = num_tokens = 0
    begin = now = time.perf_counter()
    for batch in module.train_dataloader():
        now = time.perf_counter()
        if not num_batches:  # starting the workers is not what is measured
            begin = now
        num_batches += 1
        num_tokens += batch.token_ids.numel()
        if now - begin > settings.seconds:
            break
    if not num_batches:
        raise ConfigError("train: the loader gave no batch")
    first = num_tokens // num_batches
    return num_batches, num_tokens, (now - begin) * num_tokens / max(num_tokens - first, 1)
