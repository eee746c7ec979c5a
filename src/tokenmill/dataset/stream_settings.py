"""What a stream of text is made of, and where each part of it stands."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

import msgspec

from tokenmill.errors import ConfigError
from tokenmill.sources import SourceFile, SourceSettings
from tokenmill.tokenizer import Tokenizer

OnError = Literal["fail", "skip"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamSettings:
    """How text becomes rows. All but `on_error` decide which rows come in which order."""

    context_length: int
    """Inputs in a row."""
    num_lanes: int = 32
    """Parts into which the input is dealt, at most; each is read by one rank and worker. A lane
    takes some 7 MiB of memory, and 25 bytes of the state."""
    unit_bytes: int | None = None
    """Bytes of input that stay together; by default 256 KiB to 16 MiB, by the size of the input."""
    seed: int | None = None
    """Shuffle by this seed: the units, and the rows inside windows. None keeps the order."""
    shuffle_rows: int = 1024
    """Rows among which is shuffled, in all lanes together; these are held in memory."""
    num_epochs: int | None = 1
    """How many times the input is read; None does not end, and gives every rank as much."""
    bos: bool = False
    """Open each document with the tokenizer's beginning-of-sequence id."""
    eos: bool = True
    """Close each document with the tokenizer's end-of-sequence id."""
    pad_last: bool = True
    """Fill the last row of a lane up with padding; otherwise its tokens are dropped and counted."""
    mask_boundaries: bool = False
    """Let the last token of a document predict nothing."""
    on_error: OnError = "fail"
    """What to do with a broken document: stop, or count it and go on."""
    allow_special: bool = False
    """Let a special token's text in a document become its id."""

    def __post_init__(self) -> None:
        least = {"context_length": 1, "num_lanes": 1, "shuffle_rows": 1}
        for name in ("unit_bytes", "num_epochs"):
            if getattr(self, name) is not None:
                least[name] = 1
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ConfigError(f"{name} must be at least {minimum}, got {getattr(self, name)}")
        if self.on_error not in ("fail", "skip"):
            raise ConfigError(f"on_error is {self.on_error!r}, expected fail or skip")


class Cursor(NamedTuple):
    """Where a lane stands; a later one is greater.

    Rows are made window by window: the cursor names the first token of the window under way, and
    how many of its rows were delivered.
    """

    num_rows: int = 0
    """Rows that the lane has delivered."""
    epoch: int = 0
    place: int = 0
    """Of the unit, in the order of the lane."""
    document: int = 0
    """Number in the unit."""
    token: int = 0
    """Number in the document, its BOS and EOS included."""
    num_done: int = 0
    """Rows of the window that were delivered."""


def stream_digest(
    files: Sequence[SourceFile],
    settings: StreamSettings,
    *,
    source: SourceSettings,
    tokenizer: Tokenizer,
) -> str:
    """Return a hash of all that decides the rows; files count by size and format, not by path."""
    how = asdict(settings)
    del how["on_error"]
    facts = {
        "version": 1,
        "how": how,
        "read": [source.separator, source.text_field, source.max_document_bytes],
        "tokenizer": [tokenizer.fingerprint, tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id],
        "files": [(file.size, file.format, file.compression) for file in files],
    }
    return hashlib.sha256(msgspec.json.encode(facts, order="deterministic")).hexdigest()[:32]
