"""Raw text as training data: a tokenizer for it, and a store, made in the folder of the run.

    data/tokenizer/   a byte-level BPE trained on the text, or just the bytes
    data/store/       the text as token ids

Both continue when they were interrupted, and are there already when a run is repeated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tokenmill.errors import ConfigError
from tokenmill.pipeline import tokenize, train_tokenizer
from tokenmill.progress import Event, Report
from tokenmill.sources import SourceFile, SourceSettings, find_files
from tokenmill.store import Store
from tokenmill.train.settings import TrainSettings

STORE_FOLDER: Final = "data/store"
TOKENIZER_FOLDER: Final = "data/tokenizer"
NUM_BYTES: Final = 256
END_OF_TEXT: Final = "<|endoftext|>"
_PROBE_BYTES: Final = 1 << 20
_MAX_FILE_BYTES: Final = 256 << 20
"""A larger text file is not taken for one document."""


def tokenize_text(settings: TrainSettings, out_dir: Path, *, report: Report) -> Store:
    """Return the store of a raw text, made now unless it is there."""
    source = _source_options(settings, report)
    tokenizer = settings.tokenizer
    if tokenizer in {"bpe", "bytes"}:
        size = NUM_BYTES + 1 if tokenizer == "bytes" else settings.bpe_vocab_size
        tokenizer = str(out_dir / TOKENIZER_FOLDER)
        train_tokenizer(
            settings.data,
            tokenizer,
            report=report,
            vocab_size=size,
            special=[END_OF_TEXT],
            held_out=0,
            **source,
        )
    # Of a single document nothing can be set apart: then the last rows of all are held out.
    ratio = 0.0 if source.get("format") == "file" else settings.val_ratio
    return tokenize(
        settings.data,
        out_dir / STORE_FOLDER,
        report=report,
        tokenizer=tokenizer,
        val_ratio=ratio,
        **source,
    )


def _source_options(settings: TrainSettings, report: Report) -> dict[str, Any]:
    """Return how to cut the text into documents.

    Text files that say it themselves, or by --separator, are cut there. Others are one document
    each, because their line ends belong to what is to be learned.
    """
    given = {"text_field": settings.text_field, "split": settings.split}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if settings.separator is not None:
        return {**options, "separator": settings.separator}
    files = find_files(SourceSettings(places=(settings.data,), **options))
    if any(file.format != "text" for file in files):
        return options
    if any(_has_separator(file) for file in files):
        report(Event(stage="tokenize", message=f"documents are cut at {END_OF_TEXT}"))
        return {**options, "separator": END_OF_TEXT}
    for file in files:
        if file.size > _MAX_FILE_BYTES:
            raise ConfigError(
                f"{file.path}: {file.size:,} bytes are too many for one document",
                hint="say where documents end, e.g. --separator $'\\n\\n', or make a store of it "
                "with `tokenmill tokenize`",
            )
    return {**options, "format": "file"}


def _has_separator(file: SourceFile) -> bool:
    if file.compression:
        return False
    with Path(file.path).open("rb") as content:
        return END_OF_TEXT.encode() in content.read(_PROBE_BYTES)
