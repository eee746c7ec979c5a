"""`stream_text`: rows straight from text files, tokenized while they are read.

The input is cut into units by its size alone, and the units are dealt to lanes (see `stream_lane`).
Lane `l` belongs to rank `l % world_size`, and there to worker `l // world_size % num_workers`. Each
worker takes rows from its lanes in turn, always from the one that has given the fewest. So the rows
are the same for any number of ranks and workers, and with a number of ranks that divides the number
of lanes so are the rows of each global batch. The state is a cursor for each lane.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from tokenmill.dataset.batch import IGNORED, PADDING, Batch
from tokenmill.dataset.buffers import BufferPool
from tokenmill.dataset.numbering import empty_batch, number_documents
from tokenmill.dataset.stream_lane import Input, Row, StreamCounts, read_lane
from tokenmill.dataset.stream_settings import Cursor, StreamSettings, stream_digest
from tokenmill.errors import ConfigError, MissingDependencyError, TokenizerError
from tokenmill.sources import SourceSettings, cut_units, find_files
from tokenmill.tokenizer import Tokenizer, load_definition, load_tokenizer

_VERSION: Final = 1
_GROUP_ROWS: Final = 16
"""Rows that become arrays together."""
_WINDOW_ROWS: Final = 16
"""Rows of a window where nothing is shuffled."""
_UNITS_PER_LANE: Final = 4
_UNIT_BYTES: Final = (256 << 10, 16 << 20)

Places = str | Path | Sequence[str | Path]


def stream_text(  # noqa: PLR0913  (what to read, which part of it, and how)
    files: Places,
    tokenizer: Tokenizer | str,
    context_length: int = 1024,
    *,
    rank: int = 0,
    world_size: int = 1,
    output: Literal["torch", "numpy"] = "torch",
    batch_size: int | None = None,
    source: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """Return rows of `context_length` tokens from text files: every document exactly once an epoch.

    With output "torch" it is an `IterableDataset`, for a `DataLoader` with any number of workers
    and `collate_fn=stream.collate`; with "numpy" a `TextStream`. Given a `batch_size`, the dataset
    makes whole batches, which is faster: then the loader is given `batch_size=None`.

    Args:
        files: Files, folders or globs, in any format that `tokenmill tokenize` reads.
        rank: Which of the `world_size` parts to read.
        source: How files are cut into documents: fields of `SourceSettings`, such as
            `{"separator": "<|endoftext|>"}` or `{"text_field": "content"}`.
        settings: Fields of `StreamSettings`, such as `seed=1` or `num_epochs=None`.
    """
    places = (files,) if isinstance(files, str | Path) else tuple(files)
    stream = TextStream(
        SourceSettings(places=tuple(str(place) for place in places), **(source or {})),
        load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer,
        settings=StreamSettings(context_length=context_length, **settings),
        rank=rank,
        world_size=world_size,
    )
    if batch_size is not None and (batch_size < 1 or output == "numpy"):
        raise ConfigError(f"batch_size is {batch_size}: expected at least 1, and output torch")
    if output == "numpy":
        return stream
    if output != "torch":
        raise ConfigError(f"output is {output!r}, expected torch or numpy")
    try:
        from tokenmill.dataset.torch import TextStreamDataset
    except ImportError as error:
        raise MissingDependencyError("torch", extra="train", purpose='output="torch"') from error
    return TextStreamDataset(stream, batch_size=batch_size)


class TextStream:
    """The rows of one rank. Iterating goes on from where the state stands.

    Every row carries, beside what a `Batch` has, `cursors`: what `note` needs to know of it. Rows
    are noted as they are delivered, unless `rows` is told not to; `restart` begins from the start.
    """

    def __init__(
        self,
        source: SourceSettings,
        tokenizer: Tokenizer,
        *,
        settings: StreamSettings,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.settings = settings
        self.rank = rank
        self.world_size = world_size
        self.counts = StreamCounts()
        self.tokenizer = tokenizer
        _check_special_ids(tokenizer, settings)
        files = find_files(source)
        units = cut_units(
            files,
            unit_bytes=settings.unit_bytes or _choose_unit_bytes(files, settings),
            text_field=source.text_field,
        )
        num_lanes = max(1, min(settings.num_lanes, len(units)))
        window_rows = _WINDOW_ROWS if settings.seed is None else settings.shuffle_rows // num_lanes
        self.input = Input(
            files=files,
            units=units,
            source=source,
            settings=settings,
            num_lanes=num_lanes,
            window_rows=max(1, window_rows),
        )
        self.digest = stream_digest(files, settings, source=source, tokenizer=tokenizer)
        self._cursors: dict[int, Cursor] = {}
        self._pool = BufferPool()
        self._check_share()

    @property
    def num_lanes(self) -> int:
        """How many ranks and workers can have a part of the input, all together."""
        return self.input.num_lanes

    def __iter__(self) -> Iterator[Batch]:
        return self.rows()

    def rows(
        self, worker: int = 0, num_workers: int = 1, *, noting: bool = True
    ) -> Iterator[Batch]:
        """Yield the rows of one worker of this rank, from where the state stands."""
        for batch in self.batches(_GROUP_ROWS, worker, num_workers=num_workers, noting=False):
            for index in range(len(batch.token_ids)):
                row = batch.row(index)
                if noting:
                    self.note(row)
                yield row

    def batches(
        self, batch_size: int, worker: int = 0, *, num_workers: int = 1, noting: bool = True
    ) -> Iterator[Batch]:
        """Yield the same rows as batches, made at once; the last one may have fewer rows."""
        rows = self._take_turns(self.lanes(worker, num_workers))
        while group := list(islice(rows, batch_size)):
            batch = self._make_batch([row for _, row in group])
            batch["cursors"] = np.array([(lane, *row.after) for lane, row in group])
            self.counts.num_rows += len(group)
            if noting:
                self.note(batch)
            yield batch

    def lanes(self, worker: int = 0, num_workers: int = 1) -> range:
        """Return the lanes of one worker of this rank."""
        step = self.world_size * num_workers
        return range(self.rank + worker * self.world_size, self.num_lanes, step)

    def note(self, batch: Mapping[str, Any]) -> None:
        """Take note that a batch, or a row, was used; again is as good as once."""
        for lane, *values in np.asarray(batch["cursors"]).reshape(-1, 7).tolist():
            self._cursors[lane] = max(self._cursors.get(lane, Cursor()), Cursor(*values))

    def restart(self) -> None:
        """Begin from the start when iterated next."""
        self._cursors = {}

    def state_dict(self) -> dict[str, Any]:
        """Return where the lanes of this rank stand: plain values, some 25 bytes a lane as JSON."""
        return {
            "version": _VERSION,
            "stream": self.digest,
            "lanes": {str(lane): list(cursor) for lane, cursor in sorted(self._cursors.items())},
        }

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue where a stream of the same input and settings stood.

        With another number of ranks, give the states of all ranks; the number of workers does not
        matter.
        """
        cursors: dict[int, Cursor] = {}
        states: Sequence[Mapping[str, Any]] = [state] if isinstance(state, Mapping) else state
        for one in states:
            if one.get("version") != _VERSION:
                raise ConfigError(
                    f"the state has version {one.get('version')!r}, expected {_VERSION}"
                )
            if one["stream"] != self.digest:
                raise ConfigError(
                    f"the state belongs to another stream ({one['stream']}, this one is "
                    f"{self.digest}): files, tokenizer or settings differ",
                    hint="open the stream as it was when the state was saved",
                )
            for lane, values in one["lanes"].items():
                cursor = Cursor(*values)
                cursors[int(lane)] = max(cursors.get(int(lane), Cursor()), cursor)
        self._cursors = cursors

    def __getstate__(self) -> dict[str, Any]:
        tokenizer = self.tokenizer
        packed = (tokenizer.definition, tokenizer.definition_name, tokenizer.special_ids)
        return {**self.__dict__, "tokenizer": packed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        definition, name, special_ids = state.pop("tokenizer")
        self.__dict__.update(state)
        self.tokenizer = load_definition(definition, name).with_special_ids(special_ids)

    def _take_turns(self, lanes: Iterable[int]) -> Iterator[tuple[int, Row]]:
        """Yield rows from lanes, always from the one that has given the fewest."""
        waiting: list[tuple[int, int, Iterator[Row]]] = []
        for lane in lanes:
            cursor = self._cursors.get(lane, Cursor())
            rows = read_lane(
                self.input, self.tokenizer, lane=lane, cursor=cursor, counts=self.counts
            )
            waiting.append((cursor.num_rows, lane, rows))
        heapq.heapify(waiting)
        while waiting:
            num_rows, lane, rows = waiting[0]
            row = next(rows, None)
            if row is None:
                heapq.heappop(waiting)
                continue
            yield lane, row
            heapq.heapreplace(waiting, (num_rows + 1, lane, rows))

    def _make_batch(self, rows: list[Row]) -> Batch:
        seq_len = self.settings.context_length
        batch = empty_batch(len(rows), seq_len, pool=self._pool)
        for index, row in enumerate(rows):
            filled = len(row.ids) - 1
            batch["token_ids"][index, :filled] = row.ids[:-1]
            batch["labels"][index, :filled] = row.ids[1:]
        lengths = np.array([len(row.ids) - 1 for row in rows])
        numbers = np.repeat(np.arange(len(rows)), [len(row.begins) for row in rows])
        columns = np.concatenate([row.begins for row in rows])
        if self.settings.mask_boundaries:
            batch.labels[numbers, columns - 1] = IGNORED
        inside = columns < lengths[numbers]
        number_documents(batch, numbers[inside], columns=columns[inside])
        if self.settings.pad_last:
            self._pad(batch, lengths)
        return batch

    def _pad(self, batch: Batch, lengths: np.ndarray[Any, Any]) -> None:
        seq_len = self.settings.context_length
        pad_id = next(
            (i for i in (self.tokenizer.pad_id, self.tokenizer.eos_id) if i is not None), 0
        )
        for row in np.flatnonzero(lengths < seq_len).tolist():
            filled = int(lengths[row])
            batch["token_ids"][row, filled:] = pad_id
            batch["labels"][row, filled:] = IGNORED
            batch["document_ids"][row, filled:] = PADDING
            batch["position_ids"][row, filled:] = np.arange(seq_len - filled)
            self.counts.num_padded += seq_len - filled
        batch["attention_mask"] = np.arange(seq_len) < lengths[:, None]

    def _check_share(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank is {self.rank}, expected 0 to {self.world_size - 1}")
        if self.world_size > self.num_lanes:
            raise ConfigError(
                f"the input has {self.num_lanes} lanes, too few for {self.world_size} ranks",
                hint="set num_lanes higher or unit_bytes lower; one file that cannot be cut, such "
                "as a compressed one, is one unit",
            )


def _choose_unit_bytes(files: Sequence[Any], settings: StreamSettings) -> int:
    least, most = _UNIT_BYTES
    total = sum(file.size for file in files)
    return max(least, min(most, total // (settings.num_lanes * _UNITS_PER_LANE)))


def _check_special_ids(tokenizer: Tokenizer, settings: StreamSettings) -> None:
    for kind in ("bos", "eos"):
        if getattr(settings, kind) and getattr(tokenizer, f"{kind}_id") is None:
            raise TokenizerError(
                f"{tokenizer.name}: has no {kind.upper()} id, and {kind}=True asks for one",
                hint=f"pass {kind}=False, or a tokenizer that has one",
            )
