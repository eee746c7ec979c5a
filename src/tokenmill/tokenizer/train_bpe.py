"""Merges from word counts: the core of training a byte-level BPE.

The rule: count every two neighbouring symbols of every word, overlapping ones too, each as often as
the word occurs; join the pair with the highest count everywhere, from left to right; repeat. Ties
are settled by a `TieBreak`.

Counting again after every merge would take for ever. Two facts make it fast:

1. All occurrences of a pair (x, y) come into being at once, when the younger of x and y does. Until
   the pair itself is merged they only become fewer. (No two pairs make the same bytes: a stretch of
   text that nothing was joined across evolves as it would alone, so at any time it has one
   parse.) So each pair keeps the places where it began, and its count then is an upper bound.
2. A heap by upper bounds gives the right pair if the one on top is counted again before it is used,
   and put back when it has become rarer.

The pairs of a new symbol are kept as one block in arrays; only those whose turn comes become Python
objects. So a merge costs about as much as its occurrences, in numpy. `merge_loop` does the same in
compiled code, where numba is installed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import ConfigError
from tokenmill.tokenizer.alphabet import GPT2_BYTE_ORDER
from tokenmill.tokenizer.bpe import ByteLevelBpe, special_tokens
from tokenmill.tokenizer.word_counts import WordCounts, can_compile

TieBreak = Literal["bytes", "huggingface"]
"""Which of several pairs with the same count is merged first.

bytes: the pair whose left token is the greatest, then the right one, compared as byte strings.
huggingface: the pair of the lowest ids, where the bytes are numbered in GPT-2's order, and the
tokens after them in the order of the merges. This is what HF `tokenizers` does.
"""

_NUM_BYTES = 256
_CHUNK_PLACES = 1 << 20
_NARROW_SYMBOLS = 65_000
_MAX_PLACES = 2**31 - 2
_WORTH_COMPILING = 1 << 20
_INVERTED = [chr(255 - byte) for byte in range(256)]


@dataclass(frozen=True, slots=True)
class Merge:
    """One step of training."""

    left: bytes
    right: bytes
    count: int


def train_merges(
    words: WordCounts,
    num_merges: int,
    *,
    tie_break: TieBreak = "bytes",
    min_count: int = 1,
    on_merge: Callable[[int, Merge], None] | None = None,
    compiled: bool | None = None,
) -> list[Merge]:
    """Return up to `num_merges` merges in order; fewer when no pair occurs `min_count` times.

    The result depends on the counts alone, not on the order of the words. `on_merge(index, merge)`
    is called after each one. Memory is at most about 24 bytes for each byte of distinct words.

    Args:
        compiled: Whether to use `merge_loop`; by default, if there is much to do.
    """
    if tie_break not in get_args(TieBreak):
        raise ConfigError(f"unknown tie-break {tie_break!r}; known are bytes and huggingface")
    if len(words.data) + len(words.lengths) >= _MAX_PLACES:
        raise ConfigError(
            f"the distinct words have {len(words.data):,} bytes, more than {_MAX_PLACES:,}",
            hint="give a smaller memory budget: rare words are then left out",
        )
    if compiled is None:
        compiled = len(words.data) >= _WORTH_COMPILING and can_compile()
    by_bytes, min_count = tie_break == "bytes", max(min_count, 1)
    if compiled:
        from tokenmill.tokenizer.merge_loop import find_merges as find
    else:
        find = _find_merges
    tokens = [bytes([byte]) for byte in GPT2_BYTE_ORDER]
    merges: list[Merge] = []
    for left, right, count in find(words, num_merges, by_bytes=by_bytes, min_count=min_count):
        merges.append(Merge(tokens[left], tokens[right], count))
        tokens.append(tokens[left] + tokens[right])
        if on_merge is not None:
            on_merge(len(merges) - 1, merges[-1])
    return merges


def build_bpe(
    merges: Sequence[Merge],
    specials: Sequence[str],
    *,
    pattern: str,
    special_first: bool = False,
) -> ByteLevelBpe:
    """Number the tokens: bytes, special tokens, merges; or the special tokens first of all."""
    first_special = 0 if special_first else _NUM_BYTES
    first_byte = len(specials) if special_first else 0
    ids = {bytes([byte]): first_byte + byte for byte in range(_NUM_BYTES)}
    for merge in merges:
        ids[merge.left + merge.right] = len(ids) + len(specials)
    pairs = [(ids[merge.left], ids[merge.right]) for merge in merges]
    return ByteLevelBpe(
        tokens={token_id: token for token, token_id in ids.items()},
        merges=np.array(pairs, dtype=np.uint32).reshape(-1, 2),
        patterns=(pattern,),
        added=special_tokens({text: first_special + i for i, text in enumerate(specials)}),
    )


def _find_merges(
    words: WordCounts, num_merges: int, *, by_bytes: bool, min_count: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the left and right symbol of each merge, and its count."""
    state = _Symbols(words, num_merges)
    queue = _Queue(by_bytes, min_count)
    queue.add_block(state.first_pairs())
    for _ in range(num_merges):
        top = queue.pop_most_frequent(state)
        if top is None:
            return
        queue.add_block(state.join(top, len(queue.tokens)))
        queue.add_token(queue.tokens[top.left] + queue.tokens[top.right])
        yield top.left, top.right, top.count


@dataclass(slots=True)
class _Pair:
    """A pair of symbols, and the places of its left halves; some may no longer hold it."""

    left: int
    right: int
    count: int
    places: NDArray[np.int32]


@dataclass(slots=True)
class _Block:
    """The pairs that came into being together, as columns in the order of their keys."""

    keys: NDArray[Any]
    """Two bytes, left and right; or, with a new symbol, twice the other one, plus 1 if right."""
    counts: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Where the places of each pair begin."""
    places: NDArray[np.int32]
    new: int | None = None
    order: NDArray[np.int64] | None = None
    """The pairs by falling count, once the first is asked for."""
    falling: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Their counts in that order, negative."""
    num_taken: int = 0

    def take_most_frequent(self) -> tuple[list[_Pair], int]:
        """Remove the pairs of the highest count; return them and the next count, 0 at the end."""
        if self.order is None:
            self.order = np.argsort(-self.counts, kind="stable")
            self.falling = -self.counts[self.order]
        first = self.num_taken
        count = -int(self.falling[first])
        self.num_taken = int(np.searchsorted(self.falling, -count, side="right"))
        pairs: list[_Pair] = []
        for index in self.order[first : self.num_taken].tolist():
            left, right = self._symbols(int(self.keys[index]))
            stop = self.starts[index + 1] if index + 1 < len(self.starts) else None
            pairs.append(_Pair(left, right, count, self.places[self.starts[index] : stop]))
        at_end = self.num_taken == len(self.order)
        return pairs, 0 if at_end else -int(self.falling[self.num_taken])

    def _symbols(self, key: int) -> tuple[int, int]:
        if self.new is None:
            return key >> 8, key & 0xFF
        return (self.new, key >> 1) if key & 1 else (key >> 1, self.new)


class _Queue:
    """Pairs by falling upper bound of their count, ties in the order of the tie-break."""

    def __init__(self, by_bytes: bool, min_count: int) -> None:
        self.min_count = min_count
        self.tokens = [bytes([byte]) for byte in GPT2_BYTE_ORDER]
        self._by_bytes = by_bytes
        self._keys: list[str] = [_greatest_first(token) for token in self.tokens]
        # (-count, 0, serial number, block) or (-count, 1, key, key, pair); blocks of a count come
        # before its pairs, so that all pairs of that count are there when one is taken
        self._heap: list[tuple[Any, ...]] = []
        self._num_blocks = 0

    def add_token(self, token: bytes) -> None:
        """Number a new symbol."""
        self.tokens.append(token)
        if self._by_bytes:
            self._keys.append(_greatest_first(token))

    def add_block(self, block: _Block | None) -> None:
        """Put in the pairs of a new symbol."""
        if block is not None and (highest := int(block.counts.max())) >= self.min_count:
            self._push_block(block, highest)

    def pop_most_frequent(self, state: _Symbols) -> _Pair | None:
        """Return the pair to be merged next, with only the places where it still is."""
        heap = self._heap
        while heap:
            entry = heapq.heappop(heap)
            if entry[1] == 0:
                block = entry[3]
                pairs, next_count = block.take_most_frequent()
                for pair in pairs:
                    self._push(pair)
                if next_count >= self.min_count:
                    self._push_block(block, next_count)
                continue
            pair = entry[4]
            if not state.recount(pair):
                return pair
            if pair.count >= self.min_count:
                self._push(pair)
        return None

    def _push_block(self, block: _Block, count: int) -> None:
        self._num_blocks += 1
        heapq.heappush(self._heap, (-count, 0, self._num_blocks, block))

    def _push(self, pair: _Pair) -> None:
        if self._by_bytes:
            keys: Sequence[Any] = (self._keys[pair.left], self._keys[pair.right])
        else:
            keys = (pair.left, pair.right)
        heapq.heappush(self._heap, (-pair.count, 1, *keys, pair))


class _Symbols:
    """All words in one array, a place for each byte and each word's end.

    A token's symbol stands at its first and at its last place, so that both neighbours of a token
    are found from its own places and lengths. What is between them is never looked at, except for
    former first places, which are cleared: a place that once began a pair may be asked for it.
    """

    def __init__(self, words: WordCounts, num_merges: int) -> None:
        lengths = words.lengths.astype(np.int64)
        num_places = int(lengths.sum()) + len(lengths) + 1
        ends = np.cumsum(lengths + 1)
        is_byte = np.ones(num_places, dtype=np.bool_)
        is_byte[0] = False
        is_byte[ends] = False
        narrow = 256 + num_merges < _NARROW_SYMBOLS
        dtype = np.dtype(np.uint16 if narrow else np.uint32)
        self.end = dtype.type(np.iinfo(dtype).max)
        number = np.empty(256, dtype=dtype)
        number[np.frombuffer(GPT2_BYTE_ORDER, dtype=np.uint8)] = np.arange(256)
        self.symbols = np.full(num_places, self.end, dtype=dtype)
        self.symbols[is_byte] = number[np.frombuffer(words.data, dtype=np.uint8)]
        self.token_bytes = np.ones(256 + num_merges, dtype=np.int32)
        small = not len(words.counts) or int(words.counts.max()) < 1 << 32
        self.weights = np.zeros(num_places, dtype=np.uint32 if small else np.int64)
        self.weights[is_byte] = np.repeat(words.counts.astype(self.weights.dtype), lengths)

    def first_pairs(self) -> _Block | None:
        """Return the pairs of bytes.

        A counting sort in chunks that fit into the cache: how many places each pair has, and so
        where its places begin, is known before the first is put there.
        """
        chunks = range(0, len(self.symbols) - 1, _CHUNK_PLACES)
        totals = np.zeros(_NUM_BYTES**2, dtype=np.int64)
        for start in chunks:
            totals += np.bincount(self._byte_pairs(start)[0], minlength=len(totals))
        if not totals.any():
            return None
        starts = np.cumsum(totals) - totals
        free = starts.copy()
        places = np.empty(int(totals.sum()), dtype=np.int32)
        for start in chunks:
            unsorted, inside = self._byte_pairs(start)
            order = np.argsort(unsorted, kind="stable")  # of 16 bits: a radix sort
            keys = unsorted[order]
            first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
            sizes = np.diff(first, append=len(keys))
            rank = np.arange(len(keys)) - np.repeat(first, sizes)
            places[free[keys] + rank] = inside[order] + start
            free[keys[first]] += sizes
        present = np.flatnonzero(totals)
        return self._count_groups(present, places, starts[present])

    def _byte_pairs(self, start: int) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
        """Return the pairs of the chunk from `start` on, and their places counted from there."""
        stop = min(start + _CHUNK_PLACES, len(self.symbols) - 1)
        left, right = self.symbols[start:stop], self.symbols[start + 1 : stop + 1]
        inside = np.flatnonzero((left != self.end) & (right != self.end)).astype(np.int32)
        keys = left[inside].astype(np.uint16) << np.uint16(8)
        return keys | right[inside].astype(np.uint16), inside

    def recount(self, pair: _Pair) -> bool:
        """Drop the places that no longer hold a pair; tell whether its count has changed."""
        symbols, places = self.symbols, pair.places
        holds = symbols[places] == pair.left
        holds &= symbols[places + self.token_bytes[pair.left]] == pair.right
        if holds.all():
            return False
        pair.places = places[holds]
        pair.count = int(self.weights[pair.places].sum(dtype=np.int64))
        return True

    def join(self, pair: _Pair, new: int) -> _Block | None:
        """Join a pair into the symbol `new` wherever it is; return the pairs that this makes."""
        symbols, places = self.symbols, pair.places
        left_bytes, right_bytes = (int(self.token_bytes[i]) for i in (pair.left, pair.right))
        if pair.left == pair.right:
            places = _without_overlaps(places, left_bytes)
        num_bytes = left_bytes + right_bytes
        self.token_bytes[new] = num_bytes
        if right_bytes > 1:
            symbols[places + left_bytes] = self.end
        symbols[places] = new
        symbols[places + (num_bytes - 1)] = new
        left, right = symbols[places - 1], symbols[places + num_bytes]
        # where two new symbols meet, the pair is counted once, at the left one
        to_left = (left != self.end) & (left != new)
        to_right = right != self.end
        left, right = left[to_left], right[to_right]
        from_left = places[to_left] - self.token_bytes[left]
        # sorting key and place as one number groups the pairs and keeps their places in order
        keys = np.concatenate([left.astype(np.int64) * 2, right.astype(np.int64) * 2 + 1])
        keys <<= 32
        keys |= np.concatenate([from_left, places[to_right]])
        keys.sort()
        found = keys.astype(np.int32)  # the lower half
        keys >>= 32
        block = self._make_block(keys, found)
        if block is not None:
            block.new = new
        return block

    def _make_block(self, keys: NDArray[Any], places: NDArray[np.int32]) -> _Block | None:
        """Group places by their keys, which are sorted, and count each group."""
        if not len(keys):
            return None
        starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])
        return self._count_groups(keys[starts], places, starts)

    def _count_groups(
        self, keys: NDArray[Any], places: NDArray[np.int32], starts: NDArray[np.int64]
    ) -> _Block:
        """Count the occurrences of pairs whose places begin at `starts`."""
        counts = np.add.reduceat(self.weights[places], starts, dtype=np.int64)
        return _Block(keys=keys, counts=counts, starts=starts, places=places)


def _without_overlaps(places: NDArray[np.int32], num_bytes: int) -> NDArray[np.int32]:
    """Of pairs (x, x) that share a symbol with the one before, keep every second one."""
    index = np.arange(len(places))
    continues = np.concatenate([[False], places[:-1] + num_bytes == places[1:]])
    run_starts = np.maximum.accumulate(np.where(continues, 0, index))
    return places[(index - run_starts) % 2 == 0]


def _greatest_first(token: bytes) -> str:
    """Return a string that sorts before those of smaller tokens; a prefix is smaller."""
    return "".join([_INVERTED[byte] for byte in token]) + "\u0100"
