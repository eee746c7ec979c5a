from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.dataset.reading import Reading, Spans

lengths = st.integers(1, 12)


def begin(num_tokens: int, seq_len: int) -> Reading:
    return Reading(seq_len=seq_len, num_rows=num_tokens // seq_len, seed=5)


def inputs(reading: Reading, sample: int) -> list[tuple[int, int]]:
    """Return the inputs of a sample, in order, each as (epoch, token)."""
    found = reading.locate(np.array([sample]))
    epoch = int(found.epochs[0])
    if not found.are_rest[0]:
        first = int(found.rows[0]) * reading.seq_len
        return [(epoch, token) for token in range(first, first + reading.seq_len)]
    tokens: dict[int, int] = {}
    for parts in reading.parts(np.array([sample])):
        for _, offset, row, start, stop in zip(*parts[1:], strict=True):
            for place in range(start, stop):
                assert offset + place - start not in tokens
                tokens[int(offset + place - start)] = int(row * parts.seq_len + place)
    assert sorted(tokens) == list(range(reading.seq_len))
    return [(epoch, tokens[place]) for place in range(reading.seq_len)]


def drawn(reading: Reading, num_samples: int) -> list[tuple[int, int]]:
    return [pair for sample in range(num_samples) for pair in inputs(reading, sample)]


@settings(max_examples=150, deadline=None)
@given(st.integers(12, 60), lengths)
def test_an_epoch_has_every_row_once_and_ends_before_the_next(num_tokens: int, seq_len: int):
    reading = begin(num_tokens, seq_len)
    found = reading.locate(np.arange(3 * reading.num_rows))
    assert (found.epochs == np.repeat(np.arange(3), reading.num_rows)).all()
    for epoch in range(3):
        assert sorted(found.rows[found.epochs == epoch]) == list(range(reading.num_rows))


@settings(max_examples=400, deadline=None)
@given(
    st.integers(12, 60),
    lengths,
    st.lists(st.tuples(st.integers(0, 40), lengths), min_size=1, max_size=4),
)
def test_a_change_of_length_repeats_nothing_early_and_loses_only_what_is_counted(
    num_tokens: int, seq_len: int, changes: list[tuple[int, int]]
):
    reading = begin(num_tokens, seq_len)
    past: list[tuple[int, int]] = []
    num_dropped = 0
    for num_samples, new_len in changes:
        past += drawn(reading, num_samples)
        rows = num_tokens // new_len
        reading = reading.change(num_samples, seq_len=new_len, num_rows=rows)
        num_dropped += reading.num_dropped
    past += drawn(reading, reading.num_rest + reading.num_rows)

    assert len(past) == len(set(past))
    epochs = [epoch for epoch, _ in past]
    assert epochs == sorted(epochs)
    # Every epoch that was begun is complete but for what is counted, and for the tokens after the
    # last whole row of the length that it was begun with.
    seen = {epoch: epochs.count(epoch) for epoch in set(epochs)}
    whole = sum(num_tokens - count for count in seen.values())
    assert whole <= num_dropped + len(seen) * 11
    assert reading.epoch_of(reading.num_rest) == max(epochs)


@settings(max_examples=300, deadline=None)
@given(st.integers(12, 60), lengths, lengths, st.integers(0, 30))
def test_the_rest_is_exactly_what_was_not_read(
    num_tokens: int, seq_len: int, new_len: int, num_samples: int
):
    before = begin(num_tokens, seq_len)
    after = before.change(num_samples, seq_len=new_len, num_rows=num_tokens // new_len)
    epoch = max(after.first_epoch - 1, 0)
    read = {token for e, token in drawn(before, num_samples) if e == epoch}
    rest = [token for sample in range(after.num_rest) for _, token in inputs(after, sample)]
    everything = before.num_rows * before.seq_len
    assert read.isdisjoint(rest)
    if after.rest is not None:
        assert len(read) + len(rest) + after.num_dropped == everything
    assert after.num_dropped < new_len


@settings(max_examples=200, deadline=None)
@given(st.integers(12, 60), lengths, st.lists(st.tuples(st.integers(0, 20), lengths), max_size=3))
def test_what_is_in_a_sample_is_found_there(
    num_tokens: int, seq_len: int, changes: list[tuple[int, int]]
):
    reading = begin(num_tokens, seq_len)
    for num_samples, new_len in changes:
        reading = reading.change(num_samples, seq_len=new_len, num_rows=num_tokens // new_len)
    wanted = range(num_tokens // 3, num_tokens // 3 + 5)

    def rows_of(length: int) -> Spans:
        places = [
            divmod(token, length) for token in wanted if token < num_tokens // length * length
        ]
        rows, starts = np.array(places, dtype=np.int64).reshape(-1, 2).T
        return Spans(rows, starts, starts + 1)

    first = max(reading.first_epoch - 1, 0)
    num_samples = reading.num_rest + reading.num_rows
    expected = {
        (sample, place, epoch)
        for sample in range(num_samples)
        for place, (epoch, token) in enumerate(inputs(reading, sample))
        if token in wanted
    }
    found = {
        (int(sample), int(start), epoch)
        for epoch in range(first, reading.first_epoch + 1)
        for sample, start, _ in zip(*reading.samples_of(epoch, rows_of), strict=True)
        if sample < num_samples
    }
    assert found == expected


def test_after_a_whole_epoch_there_is_no_rest():
    reading = begin(60, 5)
    for num_samples, epoch in ((0, 0), (12, 1), (36, 3)):
        changed = reading.change(num_samples, seq_len=7, num_rows=8)
        assert (changed.rest, changed.first_epoch) == (None, epoch)
    assert reading.change(13, seq_len=7, num_rows=8).num_rest == 11 * 5 // 7
