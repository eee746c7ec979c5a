"""A lane: some units of the input, read one after the other and cut into rows without a gap.

    unit of the lane      documents               tokens                   rows of 4, and one more
    [..............]  ->  d0 | d1 | d2  ->  a a a | b b | c c c c   ->  a a a b b
    [..............]      d3 | d4           d d d d d d | e e               b c c c c ...

A lane is read by whoever it is dealt to, and what it gives depends on the input and the settings
alone. It can be taken up at any row: a cursor names the document and the token in it, so all before
is read past and not encoded again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.dataset.permutation import permute
from tokenmill.dataset.stream_settings import Cursor, StreamSettings
from tokenmill.errors import BadDocumentError
from tokenmill.sources import BATCH_BYTES, SourceFile, SourceSettings, Unit, read_unit
from tokenmill.sources import Batch as Documents
from tokenmill.tokenizer import Tokenizer

_LONG_CHARS: Final = 4 << 20
_BEGIN, _EPOCH, _PLACE, _NUMBER = range(4)

Ids = NDArray[np.uint32]
Table = NDArray[np.int64]


@dataclass(slots=True)
class StreamCounts:
    """What became of the input in one process so far."""

    num_rows: int = 0
    num_documents: int = 0
    num_tokens: int = 0
    """Encoded, BOS and EOS included; a resume encodes a part of a document again."""
    num_padded: int = 0
    """Places in rows that hold no token."""
    num_dropped: int = 0
    """Tokens in no row: after the last whole row of a lane."""
    num_rejected: int = 0
    """Broken documents that were passed over."""
    num_blank: int = 0
    """Blank lines that were passed over."""


class Row(NamedTuple):
    """Tokens of a row with the label of the last one, and what to note once it is delivered."""

    ids: Ids
    begins: Table
    """Where documents begin in `ids`, after its first token."""
    after: Cursor


@dataclass(frozen=True, kw_only=True)
class Input:
    """What all lanes read, and how."""

    files: Sequence[SourceFile]
    units: Sequence[Unit]
    source: SourceSettings
    settings: StreamSettings
    num_lanes: int
    window_rows: int
    """Rows of a lane that are made together, and shuffled if there is a seed."""


class _Tokens(NamedTuple):
    """Tokens in a row, and where each document of them begins and comes from.

    A row of `documents` is begin, epoch, place and number; the first may begin before the tokens.
    """

    ids: Ids
    documents: Table


def read_lane(
    given: Input, tokenizer: Tokenizer, *, lane: int, cursor: Cursor, counts: StreamCounts
) -> Iterator[Row]:
    """Yield the rows of a lane from a cursor on."""
    seq_len = given.settings.context_length
    window = given.window_rows * seq_len
    rest, start = _Tokens(np.empty(0, np.uint32), np.empty((0, 4), np.int64)), 0
    for tokens in _encode_lane(given, tokenizer, lane=lane, cursor=cursor, counts=counts):
        rest, start = _join(_tail(rest, start), tokens), 0
        del tokens
        while len(rest.ids) - start > window:  # the last label needs one more
            begin, end = _locate(rest, start), _locate(rest, start + window)
            ids = rest.ids[start : start + window + 1]
            rows = _cut(given, ids, _begins(rest, start, len(ids)), lane=lane, cursor=cursor)
            yield from _number(rows, begin, after=end, cursor=cursor)
            start += window
            cursor = Cursor(cursor.num_rows - cursor.num_done + given.window_rows, *end)
    rest = _tail(rest, start)
    num_inputs = max(len(rest.ids) - 1, 0)
    if not given.settings.pad_last:
        whole = num_inputs // seq_len * seq_len
        counts.num_dropped += num_inputs - whole
        num_inputs = whole
    if not cursor.num_rows and not num_inputs:
        counts.num_dropped += min(len(rest.ids), 1)  # the first token is the label of none
    if num_inputs:
        ids = rest.ids[: num_inputs + 1]
        rows = _cut(given, ids, _begins(rest, 0, len(ids)), lane=lane, cursor=cursor)
        end = (given.settings.num_epochs or 0, 0, 0, 0)
        yield from _number(rows, _locate(rest, 0), after=end, cursor=cursor)


def _cut(
    given: Input, ids: Ids, begins: Table, *, lane: int, cursor: Cursor
) -> list[tuple[Ids, Table]]:
    """Cut the tokens of a window into rows, and shuffle these if there is a seed."""
    seq_len, seed = given.settings.context_length, given.settings.seed
    starts = np.arange(0, len(ids) - 1, seq_len)
    if seed is not None:
        number = (cursor.num_rows - cursor.num_done) // given.window_rows
        key = number * given.num_lanes + lane
        starts = starts[permute(np.arange(len(starts)), len(starts), seed=seed, epoch=key)]
    low = np.searchsorted(begins, starts, side="right")
    high = np.searchsorted(begins, starts + seq_len, side="right")
    cuts = zip(starts.tolist(), low.tolist(), high.tolist(), strict=True)
    return [(ids[s : s + seq_len + 1], begins[a:b] - s) for s, a, b in cuts]


def _number(
    rows: list[tuple[Ids, Table]],
    begin: tuple[int, ...],
    *,
    after: tuple[int, ...],
    cursor: Cursor,
) -> Iterator[Row]:
    """Yield the rows of a window that were not delivered yet, each with the cursor after it."""
    first = cursor.num_rows - cursor.num_done
    for number, (ids, begins) in enumerate(rows[cursor.num_done :], start=cursor.num_done + 1):
        is_last = number == len(rows)
        there = Cursor(first + number, *(after if is_last else (*begin, number)))
        yield Row(ids, begins, there)


def _encode_lane(
    given: Input, tokenizer: Tokenizer, *, lane: int, cursor: Cursor, counts: StreamCounts
) -> Iterator[_Tokens]:
    """Yield the tokens of a lane in pieces of about a mebibyte of text."""
    num_epochs, num_units = given.settings.num_epochs, len(given.units)
    places = np.arange(lane, num_units, given.num_lanes)
    epoch, skipped = cursor.epoch, cursor.document
    while num_epochs is None or epoch < num_epochs:
        num_tokens = 0
        order = places
        if given.settings.seed is not None:
            order = permute(places, num_units, seed=given.settings.seed, epoch=epoch)
        first_place = cursor.place if epoch == cursor.epoch else 0
        for place, index in enumerate(order.tolist()[first_place:], start=first_place):
            unit = given.units[index]
            for number, texts in _read_documents(given, unit, skipped, counts=counts):
                ids, begins = _encode(given.settings, tokenizer, texts)
                cut = cursor.token if (epoch, place, number) == cursor[1:4] else 0
                documents = np.empty((len(texts), 4), dtype=np.int64)
                documents[:, _BEGIN] = begins[:-1] - cut
                documents[:, _EPOCH], documents[:, _PLACE] = epoch, place
                documents[:, _NUMBER] = np.arange(number, number + len(texts))
                counts.num_documents += len(texts)
                texts.clear()  # many lanes wait here: none holds on to text that is encoded
                counts.num_tokens += len(ids) - cut
                num_tokens += len(ids)
                # without tokens, a document is nowhere
                yield _Tokens(ids[cut:], documents[np.diff(begins) > 0])
            skipped = 0
        if not num_tokens and epoch > cursor.epoch:
            return  # nothing will ever come
        epoch += 1


def _read_documents(
    given: Input, unit: Unit, num_skipped: int, *, counts: StreamCounts
) -> Iterator[tuple[int, list[str]]]:
    """Yield the documents of a unit after the first few, about a mebibyte at once, with numbers."""
    number = 0
    waiting: list[str] = []
    num_bytes = 0
    for batch in read_unit(given.files, unit, given.source):
        if number + len(batch.texts) <= num_skipped and num_skipped:
            number += len(batch.texts)
            continue
        _count_skipped(given, batch, counts=counts)
        texts = batch.texts[max(num_skipped - number, 0) :]
        number += len(batch.texts)
        if waiting and num_bytes + batch.num_bytes > BATCH_BYTES:
            yield number - len(texts) - len(waiting), waiting
            waiting, num_bytes = [], 0
        waiting = waiting + texts if waiting else texts
        num_bytes += batch.num_bytes
    if waiting:
        yield number - len(waiting), waiting


def _count_skipped(given: Input, batch: Documents, *, counts: StreamCounts) -> None:
    counts.num_blank += batch.num_blank
    counts.num_rejected += len(batch.rejects)
    if batch.rejects and given.settings.on_error == "fail":
        reject = batch.rejects[0]
        path = given.files[reject.file].path
        raise BadDocumentError(
            f"{path}: at {reject.position:,}: {reject.reason}: {reject.detail}",
            hint='mend the file, or pass on_error="skip", which counts such documents',
        )


def _encode(
    settings: StreamSettings, tokenizer: Tokenizer, texts: list[str]
) -> tuple[Ids, NDArray[np.int64]]:
    """Return the ids of documents with BOS and EOS, where each begins, and where the last ends."""
    if len(texts) == 1 and len(texts[0]) > _LONG_CHARS:
        pieces = list(tokenizer.encode_long(texts[0], allow_special=settings.allow_special))
        ids = np.concatenate(pieces)
        offsets = np.array([0, len(ids)], dtype=np.int64)
    else:
        ids, found = tokenizer.encode_batch(texts, allow_special=settings.allow_special)
        offsets = found.astype(np.int64)
    added = settings.bos + settings.eos
    if not added:
        return ids, offsets
    begins = offsets + added * np.arange(len(offsets))
    framed = np.empty(begins[-1], dtype=np.uint32)
    is_text = np.ones(len(framed), dtype=np.bool_)
    marks: list[tuple[NDArray[np.int64], Any]] = []
    if settings.bos:
        marks.append((begins[:-1], tokenizer.bos_id))
    if settings.eos:
        marks.append((begins[1:] - 1, tokenizer.eos_id))
    for places, token_id in marks:
        framed[places] = token_id
        is_text[places] = False
    framed[is_text] = ids
    return framed, begins


def _join(first: _Tokens, second: _Tokens) -> _Tokens:
    if not len(first.ids):
        return second
    later = second.documents.copy()
    later[:, _BEGIN] += len(first.ids)
    return _Tokens(
        np.concatenate((first.ids, second.ids)), np.concatenate((first.documents, later))
    )


def _tail(tokens: _Tokens, start: int) -> _Tokens:
    """Return the tokens from `start` on, with the document in which that lies."""
    if not start:
        return tokens
    first = max(_document_at(tokens, start), 0)
    documents = tokens.documents[first:].copy()
    documents[:, _BEGIN] -= start
    return _Tokens(tokens.ids[start:], documents)


def _document_at(tokens: _Tokens, place: int) -> int:
    return int(np.searchsorted(tokens.documents[:, _BEGIN], place, side="right")) - 1


def _locate(tokens: _Tokens, place: int) -> tuple[int, int, int, int]:
    """Return epoch, place of the unit, number of the document and of the token in it."""
    begin, epoch, unit, number = tokens.documents[_document_at(tokens, place)].tolist()
    return epoch, unit, number, place - begin


def _begins(tokens: _Tokens, start: int, length: int) -> Table:
    """Return where documents begin in a part of the tokens, counted from its start."""
    all_begins: Iterable[Any] = tokens.documents[:, _BEGIN]
    low, high = np.searchsorted(all_begins, (start, start + length), side="left").tolist()
    return tokens.documents[low:high, _BEGIN] - start
