from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.dataset.batch import IGNORED, PADDING, Batch
from tokenmill.dataset.packing import open_rows
from tokenmill.dataset.rows import Rows
from tokenmill.dataset.token_source import StoreSource
from tokenmill.errors import ConfigError, DamageError
from tokenmill.store import open_store

BuildStore = Callable[..., Any]
EOS = 1


@dataclass
class Case:
    """Documents whose ids tell the tokens apart, and how to pack them."""

    documents: list[list[int]]
    store: dict[str, Any]
    packing: dict[str, Any]

    def __post_init__(self) -> None:
        self.stream = [token for document in self.documents for token in document]
        self.ends = list(accumulate(map(len, self.documents)))
        self.owners = [i for i, document in enumerate(self.documents) for _ in document]
        self.seq_len = self.packing["seq_len"]

    def open(self, folder: Path, build_store: BuildStore) -> Rows:
        build_store(folder, self.documents, **self.store)
        return open_rows(StoreSource(open_store(folder)), **self.packing)


@dataclass
class Row:
    """What a row should hold: the positions of its inputs in the stream, and of its last label."""

    inputs: list[int]
    last: int | None


@st.composite
def cases(draw: st.DrawFn, packing: str = "") -> Case:
    with_eos = draw(st.booleans())
    documents, number = [], 2
    for length in draw(st.lists(st.integers(0, 14), min_size=1, max_size=14)):
        documents.append([*range(number, number + length), *[EOS] * with_eos])
        number += length
    packing = packing or draw(st.sampled_from(["concat", "best-fit", "pad", "sliding"]))
    options: dict[str, Any] = {"packing": packing, "seq_len": draw(st.integers(1, 9))}
    options["mask_boundaries"] = draw(st.booleans())
    if packing == "sliding":
        options["stride"] = draw(st.integers(1, 12))
    if packing == "concat":
        options["pad_last"] = draw(st.booleans())
    num_tokens = sum(map(len, documents))
    store = {
        "shard_tokens": draw(st.integers(max(1, num_tokens // 5), num_tokens + 1)),
        "eos_id": EOS if with_eos else None,
        "num_ids": draw(st.sampled_from([300, 70_000])),
        "pad_id": draw(st.sampled_from([None, 7])),
    }
    return Case(documents, store, options)


@settings(max_examples=300, deadline=None)
@given(case=cases(), data=st.data())
def test_rows_hold_what_the_packing_says_and_every_token_is_accounted_for(
    case: Case,
    data: st.DataObject,
    build_store: BuildStore,
    tmp_path_factory: pytest.TempPathFactory,
):
    folder = tmp_path_factory.mktemp("store")
    try:
        rows = case.open(folder, build_store)
    except ConfigError:
        assert not window_rows(case) if case.packing["packing"] in WINDOWS else not case.stream
        return
    order = data.draw(st.permutations(range(rows.num_rows)))
    found = rows.read(np.array(order))
    back = np.argsort(order)
    batch = Batch({key: value[back] for key, value in found.items()})
    expected = EXPECTED[case.packing["packing"]](case, rows)
    assert rows.num_rows == len(expected)
    for i, row in enumerate(expected):
        check_row(case, row, batch.row(i))
    check_accounting(case, rows, expected, batch=batch)
    check_documents(case, rows, expected)


def window_rows(case: Case, rows: Rows | None = None) -> list[Row]:
    """Return the rows of concat and sliding, by going along the stream."""
    del rows
    num_tokens, seq_len = len(case.stream), case.seq_len
    stride = case.packing.get("stride") or seq_len
    reach = 1 if case.packing.get("pad_last") else seq_len
    starts = [start for start in range(0, num_tokens, stride) if start + reach < num_tokens]
    return [cut(start, num_tokens, seq_len) for start in starts]


def padded_rows(case: Case, rows: Rows) -> list[Row]:
    del rows
    starts = [0, *case.ends]
    return [cut(starts[i], end, case.seq_len) for i, end in enumerate(case.ends)]


def cut(start: int, stop: int, seq_len: int) -> Row:
    last = start + seq_len
    return Row(list(range(start, min(last, stop))), last if last < stop else None)


def best_fit_rows(case: Case, rows: Rows) -> list[Row]:
    """Return the rows as they describe themselves, after proving that they are a best fit."""
    found, whole, packed = [], [], []
    for i in range(rows.num_rows):
        spans = rows.documents(i)
        inputs = [token for span in spans for token in range(span.start, span.stop)]
        goes_on = len(spans) == 1 and spans[0].stop < case.ends[spans[0].document]
        found.append(Row(inputs, spans[0].stop if goes_on else None))
        (whole if len(inputs) == case.seq_len and len(spans) == 1 else packed).append(i)
    assert sorted(t for row in found for t in row.inputs) == list(range(len(case.stream)))
    for i, document in enumerate(case.documents):
        num_rows = len(rows.rows_of(i))
        assert num_rows == -(-len(document) // case.seq_len)  # one row if it fits, never two
    remainders = [len(document) % case.seq_len for document in case.documents]
    num_whole = sum(len(document) // case.seq_len for document in case.documents)
    assert rows.num_rows - num_whole == len(best_fit_one_by_one(remainders, case.seq_len))
    return found


def best_fit_one_by_one(lengths: list[int], capacity: int) -> list[int]:
    """Place items by the textbook; return the room left in each bin."""
    rooms: list[int] = []
    for length in sorted(filter(None, lengths), reverse=True):
        fitting = [room for room in rooms if room >= length]
        rooms.append(capacity - length)
        if fitting:
            rooms[-1] = min(fitting) - length
            rooms.remove(min(fitting))
    return rooms


def check_row(case: Case, row: Row, found: Batch) -> None:
    num_padded = case.seq_len - len(row.inputs)
    pad_id = case.store["pad_id"] or case.store["eos_id"] or 0
    assert found.token_ids.tolist() == [case.stream[i] for i in row.inputs] + [pad_id] * num_padded
    labels, numbers, positions = [], [], []
    for k, token in enumerate(row.inputs):
        new = not k or case.owners[token] != case.owners[row.inputs[k - 1]]
        numbers.append(numbers[-1] + new if k else 0)
        positions.append(0 if new else positions[-1] + 1)
        target = row.inputs[k + 1] if k + 1 < len(row.inputs) else row.last
        labels.append(IGNORED if target is None else case.stream[target])
        if target is not None and case.packing["mask_boundaries"]:
            labels[-1] = labels[-1] if case.owners[target] == case.owners[token] else IGNORED
    assert found.labels.tolist() == labels + [IGNORED] * num_padded
    assert found.document_ids.tolist() == numbers + [PADDING] * num_padded
    assert found.position_ids.tolist()[: len(positions)] == positions
    if found.attention_mask is None:
        assert not num_padded
    else:
        mask = [True] * len(row.inputs) + [False] * num_padded
        assert found.attention_mask.tolist() == mask


def check_accounting(case: Case, rows: Rows, expected: list[Row], *, batch: Batch) -> None:
    account = rows.accounting()
    inputs = Counter(token for row in expected for token in row.inputs)
    used = inputs.keys() | {row.last for row in expected if row.last is not None}
    assert (account.num_rows, account.seq_len) == (rows.num_rows, case.seq_len)
    assert account.num_tokens == len(case.stream)
    assert account.num_used == len(used)
    assert account.num_used + account.num_dropped + account.num_truncated == len(case.stream)
    assert account.num_truncated == 0 or case.packing["packing"] == "pad"
    assert account.num_dropped == 0 or case.packing["packing"] in WINDOWS
    assert account.num_inputs == inputs.total()
    assert account.num_repeated == inputs.total() - len(inputs)
    assert account.num_padded == np.count_nonzero(batch.document_ids == PADDING)
    assert account.num_targets == np.count_nonzero(batch.labels != IGNORED)
    cells = account.num_targets + account.num_masked + account.num_padded
    assert cells == rows.num_rows * case.seq_len


def check_documents(case: Case, rows: Rows, expected: list[Row]) -> None:
    for i, row in enumerate(expected):
        spans = rows.documents(i)
        assert [t for span in spans for t in range(span.start, span.stop)] == row.inputs
        assert all(case.owners[span.start] == span.document for span in spans)
        assert [span.offset for span in spans] == [row.inputs.index(s.start) for s in spans]
    for number in range(len(case.documents)):
        having = [i for i, r in enumerate(expected) if number in {case.owners[t] for t in r.inputs}]
        assert rows.rows_of(number).tolist() == having


WINDOWS = {"concat", "sliding"}
EXPECTED = {
    "concat": window_rows,
    "sliding": window_rows,
    "pad": padded_rows,
    "best-fit": best_fit_rows,
}


def test_a_context_longer_than_the_store_is_refused(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path, [[2, 3, 1]])
    source = StoreSource(open_store(tmp_path))
    with pytest.raises(ConfigError, match=r"3 tokens make no row.*context of 3 needs 4"):
        open_rows(source, seq_len=3)
    assert open_rows(source, seq_len=2).num_rows == 1


@pytest.mark.parametrize("packing", ["concat", "best-fit", "sliding"])
@pytest.mark.parametrize("documents", [[], [[]]])
def test_an_empty_store_is_refused(
    packing: Any, documents: list[list[int]], tmp_path: Path, build_store: BuildStore
):
    build_store(tmp_path, documents)
    with pytest.raises(ConfigError, match="no tokens"):
        open_rows(StoreSource(open_store(tmp_path)), seq_len=2, packing=packing)


@pytest.mark.parametrize(
    "options",
    [
        {"packing": "tight"},
        {"seq_len": 0},
        {"stride": 2},
        {"packing": "sliding", "stride": 0},
        {"packing": "pad", "pad_last": True},
    ],
)
def test_settings_that_make_no_sense_are_refused(
    options: dict[str, Any], tmp_path: Path, build_store: BuildStore
):
    build_store(tmp_path, [[2, 3, 4, 5, 1]])
    values: dict[str, Any] = {"seq_len": 2, **options}
    with pytest.raises(ConfigError):
        open_rows(StoreSource(open_store(tmp_path)), **values)


@pytest.mark.parametrize("index", [-1, 2])
def test_a_row_outside_the_epoch_is_an_index_error(
    index: int, tmp_path: Path, build_store: BuildStore
):
    build_store(tmp_path, [[2, 3, 4, 5, 1]])
    rows = open_rows(StoreSource(open_store(tmp_path)), seq_len=2)
    with pytest.raises(IndexError, match=f"row {index} is outside"):
        rows.read(np.array([0, index]))
    with pytest.raises(IndexError):
        rows.documents(index)


@pytest.mark.parametrize("packing", ["concat", "best-fit", "pad"])
@pytest.mark.parametrize("file", ["train_000000.npy", "docs/train_000000.npy"])
def test_a_flipped_bit_is_never_served(
    packing: Any, file: str, tmp_path: Path, build_store: BuildStore
):
    build_store(tmp_path, [[2, 3, 4, 5, 1], [6, 7, 8, 1]])
    path = tmp_path / file
    data = bytearray(path.read_bytes())
    data[-17] ^= 1
    path.write_bytes(data)
    with pytest.raises(DamageError, match=path.name):
        open_rows(StoreSource(open_store(tmp_path)), seq_len=2, packing=packing).read(
            np.array([0, 1])
        )
