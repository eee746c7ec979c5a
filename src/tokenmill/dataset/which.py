"""Which documents were in this batch, and in which batches was this document?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenmill.dataset.reading import Reading, Spans
from tokenmill.dataset.token_source import StoreSource, TokenSource
from tokenmill.errors import ConfigError

if TYPE_CHECKING:
    from tokenmill.dataset.plan import Plan
    from tokenmill.dataset.timeline import Segment


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentPart:
    """A part of a document in a row."""

    document: int
    """Its number in the split."""
    start: int
    """Its first token in the split that is in the row, and in `stop` the one after the last."""
    stop: int
    offset: int
    """Place of that token in the row."""
    file: str | None
    """The input file that the document came from, if the source knows."""
    position: int | None
    """Byte offset or row in that file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFacts:
    """One row of a global batch and what is in it."""

    place: int
    """Number of the row in the global batch."""
    source: str
    epoch: int
    row: int
    """Number of the row in the source; in a row of a rest, its number there."""
    is_rest: bool
    """Whether it was joined from what an earlier sequence length left of an epoch."""
    documents: tuple[DocumentPart, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Appearance:
    """One time that a part of a document is trained on."""

    step: int
    place: int
    """Number of the row in the global batch."""
    epoch: int
    offset: int
    """Place in the row of its first token there."""
    num_tokens: int
    """Tokens of the document in the row, from there on."""


def which_rows(plan: Plan, step: int, *, rank: int = 0, world_size: int = 1) -> list[RowFacts]:
    """Return the rows of a global batch, or of the part of a rank, with their documents."""
    stop = plan.total_steps
    if step < 0 or (stop is not None and step >= stop):
        raise ConfigError(f"step {step} is outside [0, {stop})")
    part = plan.rank_part(step, rank=rank, world_size=world_size)
    found = plan.indices(step, part)
    readings = plan.timeline.segment(step).readings
    facts: list[RowFacts] = []
    for index, place in enumerate(range(part.start, part.stop)):
        source, is_rest = int(found.sources[index]), bool(found.are_rest[index])
        epoch, row = int(found.epochs[index]), int(found.rows[index])
        documents = _row_documents(plan, source, readings[source], row, is_rest=is_rest)
        facts.append(
            RowFacts(
                place=place,
                source=plan.names[source],
                epoch=epoch,
                row=row,
                is_rest=is_rest,
                documents=tuple(documents),
            )
        )
    return facts


def which_steps(
    plan: Plan, document: int, *, source: str | None = None, num_steps: int | None = None
) -> list[Appearance]:
    """Return when a document is trained on, in the order of steps.

    Looks at the steps before `num_steps`; by default at the whole run or, if that has no end, at
    the first epoch of the source.
    """
    number = 0 if source is None else plan.source_number(source)
    if source is None and len(plan.names) > 1:
        raise ConfigError(
            f"the plan has {len(plan.names)} sources", hint=f"choose one: {', '.join(plan.names)}"
        )
    num_documents = plan.opened.tokens(plan.all_sources[number]).num_documents
    if not 0 <= document < num_documents:
        raise ConfigError(
            f"document {document} is outside [0, {num_documents}) of {plan.names[number]!r}"
        )
    stop = plan.total_steps if num_steps is None else num_steps
    if stop is None:
        stop = plan.timeline.epoch_step(number, 1)
    found = [
        appearance
        for segment in plan.timeline.segments
        if number < len(segment.readings)
        for appearance in _appearances(plan, segment, number, document=document, stop=stop)
    ]
    return sorted(found, key=lambda item: (item.step, item.place, item.offset))


def _row_documents(
    plan: Plan, source: int, reading: Reading, row: int, *, is_rest: bool
) -> list[DocumentPart]:
    """Return the documents in a row, from left to right."""
    if not is_rest:
        whole = _Place(seq_len=reading.seq_len, row=row, start=0, stop=reading.seq_len, offset=0)
        return _documents(plan, source, whole)
    places = [
        _Place(seq_len=parts.seq_len, row=earlier, start=start, stop=stop, offset=offset)
        for parts in reading.parts(np.array([row]))
        for _, offset, earlier, start, stop in zip(
            *(array.tolist() for array in parts[1:]), strict=True
        )
    ]
    places.sort(key=lambda place: place.offset)
    return [document for place in places for document in _documents(plan, source, place)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Inputs `start` to `stop` of a row of the source, and where they are in a row of the batch."""

    seq_len: int
    row: int
    start: int
    stop: int
    offset: int


def _documents(plan: Plan, source: int, place: _Place) -> list[DocumentPart]:
    tokens = plan.opened.tokens(plan.all_sources[source])
    parts: list[DocumentPart] = []
    for span in plan.rows(source, place.seq_len).documents(place.row):
        first = max(span.offset, place.start)
        last = min(span.offset + span.stop - span.start, place.stop)
        if first >= last:
            continue
        file, position = origin(tokens, span.document)
        start = span.start + first - span.offset
        parts.append(
            DocumentPart(
                document=span.document,
                start=start,
                stop=start + last - first,
                offset=place.offset + first - place.start,
                file=file,
                position=position,
            )
        )
    return parts


def origin(tokens: TokenSource, document: int) -> tuple[str | None, int | None]:
    """Return the input file of a document and its position there, where the source knows them."""
    if isinstance(tokens, StoreSource):
        return tokens.split.document_origin(document)
    return None, None


def _appearances(
    plan: Plan, segment: Segment, source: int, *, document: int, stop: int | None
) -> Iterator[Appearance]:
    """Yield when a document is trained on in one segment, before step `stop`."""
    reading = segment.readings[source]

    def rows_of(seq_len: int) -> Spans:
        return _rows_of(plan, source, seq_len, document)

    if not segment.mixture.weights[source]:
        return
    last = min(s for s in (segment.stop, stop) if s is not None)
    if last <= segment.start:
        return
    first_sample, stop_sample = (
        int(segment.cursors(step)[source]) for step in (segment.start, last)
    )
    if first_sample == stop_sample:
        return
    epochs = range(reading.epoch_of(first_sample), reading.epoch_of(stop_sample - 1) + 1)
    for epoch in epochs:
        found = reading.samples_of(epoch, rows_of)
        for sample, begin, end in zip(*(array.tolist() for array in found), strict=True):
            if not first_sample <= sample < stop_sample:
                continue  # drawn in another segment, or passed over
            step = segment.find(source, sample)
            assert step is not None
            yield Appearance(
                step=step,
                place=segment.place(step, source, sample),
                epoch=epoch,
                offset=begin,
                num_tokens=end - begin,
            )


def _rows_of(plan: Plan, source: int, seq_len: int, document: int) -> Spans:
    """Return the rows of a sequence length that hold a document, and where in them it is."""
    rows = plan.rows(source, seq_len)
    found = [
        (row, span.offset, span.offset + span.stop - span.start)
        for row in rows.rows_of(document).tolist()
        for span in rows.documents(row)
        if span.document == document
    ]
    return Spans(*np.array(found, dtype=np.int64).reshape(-1, 3).T)
