"""Tables of words: compiled code and numpy do the same, so that machines with and without mix."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.tokenizer.word_counts import WordCounts, add_up

tables = st.dictionaries(
    st.text(min_size=1, max_size=30).map(lambda text: text.encode(errors="replace")),
    st.sampled_from([1, 2, 2**40]),
    max_size=30,
)


def as_dict(table: WordCounts) -> dict[bytes, int]:
    ends = np.cumsum(table.lengths).tolist()
    found = [table.data[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    assert len(set(found)) == len(found)
    return dict(zip(found, table.counts.tolist(), strict=True))


@settings(max_examples=100, deadline=None)
@given(words=tables, seed=st.integers(0, 9))
def test_hashes_and_orders_are_the_same_compiled(words: dict[bytes, int], seed: int):
    table = WordCounts.of(words | {b"long" * 100: 3})
    plain = table.hashes(compiled=False)
    assert plain.tolist() == table.hashes(compiled=True).tolist()
    order = np.random.default_rng(seed).permutation(len(plain))
    moved = [table.in_order(order, compiled=compiled) for compiled in (False, True)]
    names = list(words | {b"long" * 100: 3})
    assert list(as_dict(moved[0])) == list(as_dict(moved[1])) == [names[i] for i in order.tolist()]
    assert as_dict(moved[0]) == as_dict(table)


@settings(max_examples=100, deadline=None)
@given(several=st.lists(tables, max_size=5))
def test_counts_add_up_the_same_compiled(several: list[dict[bytes, int]]):
    parts = [WordCounts.of(words) for words in several]
    total: dict[bytes, int] = {}
    for words in several:
        for word, count in words.items():
            total[word] = total.get(word, 0) + count
    for compiled in (False, True):
        assert as_dict(add_up(parts, compiled=compiled)) == total


def test_chosen_words_stay():
    table = WordCounts.of({b"a": 1, b"bcd": 2, b"ef": 3})
    assert as_dict(table.select(table.counts > 1)) == {b"bcd": 2, b"ef": 3}
    assert as_dict(table.select(table.counts > 9)) == {}
