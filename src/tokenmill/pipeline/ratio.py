"""How well tokenizers compress documents: bytes per token, side by side on the same text."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from tokenmill.errors import BadDocumentError, ConfigError
from tokenmill.pipeline.order import shuffle_keys
from tokenmill.sources import Batch, SourceSettings, cut_units, find_files, read_unit
from tokenmill.tokenizer import Tokenizer


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """How one tokenizer compresses some documents."""

    tokenizer: str
    vocab_size: int
    num_documents: int
    num_bytes: int
    num_tokens: int
    bytes_per_token: float
    lowest: float
    """Bytes per token of the document that compresses worst."""
    highest: float


def compression_ratios(
    source: SourceSettings,
    tokenizers: Sequence[Tokenizer],
    *,
    num_documents: int | None = 10,
    seed: int = 42,
) -> list[Ratio]:
    """Measure tokenizers on sampled documents, or on all with `num_documents=None`.

    A sample depends on the seed and on where documents stand in the input alone, so repeating it
    gives the same documents. Broken and empty documents are passed over.
    """
    if num_documents is not None and num_documents < 1:
        raise ConfigError(f"the number of documents must be at least 1, got {num_documents}")
    tallies = [_Tally(tokenizer) for tokenizer in tokenizers]
    batches = (batch.texts for batch in _read(source))
    if num_documents is not None:
        batches = [_sample(_read(source), num_documents, seed=seed)]
    for texts in batches:
        for tally in tallies:
            tally.add([text for text in texts if text])
    if not tallies or not tallies[0].num_documents:
        raise BadDocumentError("the sources hold no documents", hint="check the format")
    return [tally.ratio() for tally in tallies]


class _Tally:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.num_documents = self.num_bytes = self.num_tokens = 0
        self.lowest, self.highest = float("inf"), 0.0

    def add(self, texts: list[str]) -> None:
        if not texts:
            return
        _, offsets = self.tokenizer.encode_batch(texts)
        num_bytes = np.array([len(text.encode()) for text in texts])
        num_tokens = np.diff(offsets.astype(np.int64))
        each = num_bytes / np.maximum(num_tokens, 1)
        self.lowest = min(self.lowest, float(each.min()))
        self.highest = max(self.highest, float(each.max()))
        self.num_documents += len(texts)
        self.num_bytes += int(num_bytes.sum())
        self.num_tokens += int(num_tokens.sum())

    def ratio(self) -> Ratio:
        return Ratio(
            tokenizer=self.tokenizer.name,
            vocab_size=self.tokenizer.num_ids,
            num_documents=self.num_documents,
            num_bytes=self.num_bytes,
            num_tokens=self.num_tokens,
            bytes_per_token=round(self.num_bytes / max(self.num_tokens, 1), 4),
            lowest=round(self.lowest, 4),
            highest=round(self.highest, 4),
        )


def _read(source: SourceSettings) -> Iterator[Batch]:
    files = find_files(source)
    for unit in cut_units(files):
        yield from read_unit(files, unit, source)


def _sample(batches: Iterable[Batch], num_documents: int, *, seed: int) -> list[str]:
    """Return the documents with the smallest keys, in the order of the input."""
    # (-key, -file, -position, text): the top of the heap is the first to go
    chosen: list[tuple[int, int, int, str]] = []
    for batch in batches:
        files = np.full(len(batch.texts), batch.file, dtype=np.uint32)
        keys = shuffle_keys(files, batch.positions, seed=seed).tolist()
        for key, position, text in zip(keys, batch.positions.tolist(), batch.texts, strict=True):
            if not text:
                continue
            if len(chosen) < num_documents:
                heapq.heappush(chosen, (-key, -batch.file, -position, text))
            elif -key > chosen[0][0]:
                heapq.heapreplace(chosen, (-key, -batch.file, -position, text))
    return [text for *_, text in sorted(chosen, key=lambda item: (-item[1], -item[2]))]
