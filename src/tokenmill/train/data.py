"""What a run is trained on and measured with: a plan, validation rows and a tokenizer.

DATA is a store, a plan file, files of token ids, or raw text, which is tokenized first. Batch k is
`plan.batch(k)`, whatever feeds it to the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset import IGNORED, Batch, Plan, Rows, Source, StoreSource, open_rows
from tokenmill.errors import ConfigError, NotAStoreError, TokenmillError
from tokenmill.progress import Event, Report
from tokenmill.store import METADATA_NAME, RUN_FOLDER, Store, open_store
from tokenmill.tokenizer import Tokenizer
from tokenmill.train.raw_text import STORE_FOLDER, tokenize_text
from tokenmill.train.settings import TrainSettings, is_plan

MAX_HELD_OUT_TOKENS: Final = 1 << 20
"""A store without validation split gives up no more than this, however large it is."""
_IDS_SUFFIXES: Final = {".npy", ".bin"}


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Rows that are never trained on, and how many bytes of text their labels stand for."""

    parts: tuple[tuple[Rows, range], ...]
    """Rows of a source, and which of them."""
    num_bytes: int | None
    """None where nothing tells it: then there are no bits per byte."""
    name: str

    @property
    def num_rows(self) -> int:
        """Rows of all parts."""
        return sum(len(part) for _, part in self.parts)

    def read(self, start: int, stop: int) -> Batch:
        """Return the rows from `start` to `stop`, which must be of one part or several."""
        found: list[Batch] = []
        first = 0
        for rows, part in self.parts:
            inside = range(max(start - first, 0), min(stop - first, len(part)))
            if inside:
                numbers = part[inside.start : inside.stop]
                found.append(rows.read(np.arange(numbers.start, numbers.stop)))
            first += len(part)
        names = ("token_ids", "labels", "document_ids", "position_ids")
        return Batch({name: np.concatenate([batch[name] for batch in found]) for name in names})


@dataclass(frozen=True, kw_only=True)
class TrainData:
    """Everything that a run needs to know about its data."""

    plan: Plan
    validation: Validation | None
    tokenizer: Tokenizer | None
    """None for plain files of ids."""
    num_ids: int | None
    """Size of the vocabulary; None where nothing tells it."""
    bytes_per_token: float | None
    """Of the text that is trained on, on average."""
    notes: tuple[str, ...]
    """What the user should know about choices that were made."""


def open_data(
    settings: TrainSettings, out_dir: Path, *, report: Report, is_first: bool = True
) -> TrainData:
    """Open what DATA stands for; the first rank tokenizes raw text into the folder of the run."""
    data = settings.data
    if is_plan(data):
        plan = Plan.load(data)
        _check_plan(plan, settings)
        stores = [_store_of(source.path) for source in plan.all_sources]
        return _finish(settings, plan, stores)
    if not _holds_ids(data):
        if is_first:
            store = tokenize_text(settings, out_dir, report=report)
            report(Event(stage="tokenize", message=_store_line(store)))
        data = str(out_dir / STORE_FOLDER)
    store = _store_of(data)
    plan = Plan(
        sources=(Source(path=data, dtype=None if store else settings.dtype),),
        seq_len=settings.model.context_length,
        batch_size=settings.batch_rows,
        seed=settings.seed,
        packing=settings.packing,
    )
    return _finish(settings, plan, [store])


def _check_plan(plan: Plan, settings: TrainSettings) -> None:
    """Refuse settings that say other than the plan, which decides about data."""
    longest = max(segment.seq_len for segment in plan.timeline.segments)
    said = {
        "model.context_length": (settings.model.context_length, longest),
        "seed": (settings.seed, plan.seed),
        "packing": (settings.packing, plan.packing),
    }
    wrong = [
        f"{name} is {given}, the plan says {planned}"
        for name, (given, planned) in said.items()
        if (given < planned if name == "model.context_length" else given != planned)
    ]
    if wrong:
        raise ConfigError(
            f"{settings.data}: {'; '.join(wrong)}", hint="change it in the plan, or leave it out"
        )


def _finish(settings: TrainSettings, plan: Plan, stores: list[Store | None]) -> TrainData:
    notes: list[str] = []
    plan.check()
    tokenizer, num_ids = _vocabulary(plan, stores)
    validation = _open_validation(settings, plan, stores)
    if validation is None and not is_plan(settings.data):
        plan, validation = _hold_out(plan, stores[0], tokenizer, ratio=settings.val_ratio)
        notes.append(
            f"no validation split: the last {validation.num_rows:,} rows are held out "
            "and not trained on"
        )
    elif validation is None:
        notes.append("no source of the plan has a split 'val': nothing is evaluated")
    return TrainData(
        plan=plan,
        validation=validation,
        tokenizer=tokenizer,
        num_ids=num_ids,
        bytes_per_token=_bytes_per_token(stores),
        notes=tuple(notes),
    )


# -- validation


def _open_validation(
    settings: TrainSettings, plan: Plan, stores: list[Store | None]
) -> Validation | None:
    """Open the validation split of each store, or that of --val-data."""
    if settings.val_data is not None:
        given = _store_of(settings.val_data)
        if given is None:
            raise ConfigError(
                f"{settings.val_data}: not a store",
                hint="`tokenmill tokenize TEXT -o STORE` makes one",
            )
        trained = [store for store in stores if store is not None]
        if trained and _fingerprint(given) != _fingerprint(trained[0]):
            raise _other_tokenizer(given, trained[0])
        split = next((name for name in ("val", "validation") if name in given.splits), "train")
        chosen = [(given, split)]
    else:
        names = ("val", "validation")
        chosen = [
            (store, split)
            for store in stores
            if store is not None
            for split in names
            if split in store.splits and store.splits[split].num_tokens > 1
        ]
    if not chosen:
        return None
    parts: list[tuple[Rows, range]] = []
    for store, split in chosen:
        parts += _all_rows(StoreSource(store, split), plan.seq_len)
    return Validation(
        parts=tuple(parts),
        num_bytes=sum(store.splits[split].num_bytes for store, split in chosen),
        name=", ".join(f"{store.path}:{split}" for store, split in chosen),
    )


def _all_rows(source: StoreSource, seq_len: int) -> list[tuple[Rows, range]]:
    """Return every row of a split: whole ones, which are read fast, and a padded last one."""
    padded = open_rows(source, seq_len=seq_len, pad_last=True)
    num_whole = (source.num_tokens - 1) // seq_len
    last = (padded, range(num_whole, padded.num_rows))
    if not num_whole:
        return [last]
    return [(open_rows(source, seq_len=seq_len), range(num_whole)), last]


def _hold_out(
    plan: Plan, store: Store | None, tokenizer: Tokenizer | None, *, ratio: float
) -> tuple[Plan, Validation]:
    """Keep the last rows of the only source of a plan for validation."""
    rows = plan.rows(0, plan.seq_len)
    most = max(1, MAX_HELD_OUT_TOKENS // plan.seq_len)
    num_held_out = min(most, math.ceil(Fraction(str(ratio)) * rows.num_rows))
    if num_held_out >= rows.num_rows:
        raise ConfigError(
            f"{plan.sources[0].path}: {rows.num_rows:,} rows of {plan.seq_len:,} tokens are too "
            "few to hold some out for validation",
            hint="train on more text, or with a shorter context: --set model.context_length=64",
        )
    less = replace(plan, sources=(replace(plan.sources[0], hold_out=num_held_out),))
    less.check()
    part = range(rows.num_rows - num_held_out, rows.num_rows)
    num_bytes = None
    if store is not None and tokenizer is not None:
        labels = rows.read(np.array(part)).labels
        num_bytes = int(token_lengths(tokenizer)[labels[labels != IGNORED]].sum())
    return less, Validation(parts=((rows, part),), num_bytes=num_bytes, name="held-out rows")


def token_lengths(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return how many bytes of text each id stands for; special tokens stand for none."""
    lengths = np.zeros(tokenizer.num_ids, dtype=np.int64)
    special = set(tokenizer.special_tokens.values())
    for token_id in range(tokenizer.num_ids):
        if token_id not in special:
            lengths[token_id] = _num_bytes(tokenizer, token_id)
    return lengths


def _num_bytes(tokenizer: Tokenizer, token_id: int) -> int:
    try:
        return len(tokenizer.token_bytes(token_id))
    except TokenmillError:
        return 0  # an id that is not used


# -- vocabulary


def _vocabulary(plan: Plan, stores: list[Store | None]) -> tuple[Tokenizer | None, int | None]:
    """Return the tokenizer of all stores, and the size of the vocabulary."""
    known = [store for store in stores if store is not None]
    for store in known[1:]:
        if _fingerprint(store) != _fingerprint(known[0]):
            raise _other_tokenizer(store, known[0])
    sizes = [plan.opened.tokens(source).vocab_size for source in plan.all_sources]
    num_ids = max((size for size in sizes if size is not None), default=None)
    return (known[0].tokenizer() if known else None), num_ids


def _fingerprint(store: Store) -> str:
    return store.metadata.tokenizer.fingerprint


def _other_tokenizer(store: Store, first: Store) -> ConfigError:
    return ConfigError(
        f"{store.path}: made with the tokenizer {store.metadata.tokenizer.name}, "
        f"{first.path} with {first.metadata.tokenizer.name}",
        hint="tokenize all data of a run with the same tokenizer",
    )


def _bytes_per_token(stores: list[Store | None]) -> float | None:
    splits = [store.splits.get("train") for store in stores if store is not None]
    sizes = [(split.num_bytes, split.num_tokens) for split in splits if split is not None]
    if not sizes or len(sizes) < len(stores):
        return None
    return sum(size[0] for size in sizes) / max(1, sum(size[1] for size in sizes))


def _holds_ids(data: str) -> bool:
    path = Path(data)
    if _store_of(data) is not None:
        return True
    if path.is_dir():
        return any(item.suffix in _IDS_SUFFIXES for item in path.iterdir())
    return path.suffix in _IDS_SUFFIXES and path.exists()


def _store_of(path: str) -> Store | None:
    """Open a store; None for plain files of ids, and for raw data with a description.

    A store that is not finished is an error.
    """
    folder = Path(path)
    is_begun = (folder / RUN_FOLDER).is_dir()
    if not (path.startswith("s3://") or is_begun or (folder / METADATA_NAME).is_file()):
        return None
    try:
        return open_store(path)
    except NotAStoreError:
        if is_begun:
            raise
        return None


def _store_line(store: Store) -> str:
    text = sum(split.num_bytes for split in store.splits.values())
    return (
        f"tokenized: {store.num_tokens:,} tokens of {text:,} bytes, "
        f"{store.metadata.tokenizer.num_ids:,} ids"
    )
