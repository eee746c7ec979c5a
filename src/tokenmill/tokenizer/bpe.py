"""Byte-level BPE as a value: tokens, merges, the patterns that cut text into words, special tokens.

Every file form of byte-level BPE is read into this one type (see `formats` and `tokenizer_json`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import TokenizerError

MAX_ID = 2**32 - 1
_PAIR = 2


class AddedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that is looked for in the raw text, before it is cut into words."""

    id: int
    content: str
    special: bool = True
    """A special token is matched only when the caller allows it; other added tokens always are."""
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class ByteLevelBpe:
    """A byte-level BPE, complete: ids, texts and every file form follow from these fields."""

    tokens: dict[int, bytes]
    """The bytes of every ordinary token by id, in the order of the ids; holes are allowed."""
    merges: NDArray[np.uint32]
    """Pairs of ids, shape (num_merges, 2), the one that is merged first first."""
    patterns: tuple[str, ...]
    """Regular expressions that set their matches apart, one after the other."""
    added: tuple[AddedToken, ...] = ()
    """In the order of the ids; one may be an ordinary token as well, under the same id."""
    ignore_merges: bool = False
    """A word that is a token as a whole becomes that token, even if no merges lead there."""

    def __post_init__(self) -> None:
        if len(set(self.tokens.values())) != len(self.tokens):
            raise TokenizerError("two ids stand for the same bytes")
        missing = 256 - sum(len(token) == 1 for token in self.tokens.values())
        if missing:
            raise TokenizerError(
                f"{missing} of the 256 single bytes are not in the vocabulary",
                hint="a byte-level tokenizer needs all of them, or some texts have no ids",
            )
        if np.any(np.diff(np.fromiter(self.tokens, dtype=np.int64)) <= 0):
            raise TokenizerError("the tokens are not in the order of their ids")
        contents: dict[int, bytes] = {}
        for added in self.added:
            content = added.content.encode()
            taken = contents.setdefault(added.id, self.tokens.get(added.id, content))
            if taken != content:
                raise TokenizerError(f"the id {added.id} stands for both {taken!r} and {content!r}")
        lowest = min(next(iter(self.tokens)), *contents, MAX_ID)
        if lowest < 0 or self.num_ids > MAX_ID + 1:
            raise TokenizerError(f"ids run from {lowest} to {self.num_ids - 1}; expected 32 bits")

    @property
    def num_ids(self) -> int:
        """The highest id plus one, special tokens included."""
        return 1 + max(next(reversed(self.tokens)), *(token.id for token in self.added), 0)


def special_tokens(contents: Mapping[str, int]) -> tuple[AddedToken, ...]:
    """Return plain special tokens for a mapping of their texts to ids, in the order of the ids."""
    in_order = sorted(contents.items(), key=lambda item: item[1])
    return tuple(AddedToken(id=token_id, content=content) for content, token_id in in_order)


def merges_from_ranks(ranks: Mapping[bytes, int]) -> NDArray[np.uint32] | None:
    """Find the merges that do what ranks do, or None if single merges cannot.

    Ranks say: join the neighbours whose concatenation ranks lowest, again and again. For a token t
    of rank r, run that on t with the ranks below r alone, and suppose that for every t two parts
    (a, b) remain. Then in any word joins happen in the order of the ranks, and two neighbours
    (x, y) with xy = t meet only when everything below r is joined. Nothing was joined across the
    ends of xy, so between them happened what happens to t by itself: (x, y) = (a, b). So (a, b) is
    the only pair that ever becomes t, and "merge (a, b), in the order of the ranks" gives the same
    ids. For the same reason a word that is a token ends as that token: `ignore_merges` is idle.
    """
    pairs = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            parts = _join_below(token, rank, ranks)
            if len(parts) != _PAIR:
                return None
            pairs.append((ranks[parts[0]], ranks[parts[1]]))
    return np.array(pairs, dtype=np.uint32).reshape(-1, 2)


def all_merges(ranks: Mapping[bytes, int]) -> NDArray[np.uint32]:
    """Return every pair of tokens that makes up a token, in the order of the ranks.

    For ranks that single merges cannot express, as when tokens were put into a vocabulary by hand.
    Together with `ignore_merges` this is how such ranks are brought into tokenizer.json everywhere;
    it differs from the ranks only where one word holds overlapping pairs of the same result.
    """
    pairs = []
    for token in sorted(ranks, key=ranks.__getitem__):
        halves = ((token[:i], token[i:]) for i in range(1, len(token)))
        pairs += sorted((ranks[a], ranks[b]) for a, b in halves if a in ranks and b in ranks)
    return np.array(pairs, dtype=np.uint32).reshape(-1, 2)


def _join_below(token: bytes, rank: int, ranks: Mapping[bytes, int]) -> list[bytes]:
    """Join the bytes of a token by the ranks below `rank` until nothing is left to join."""
    parts = [token[i : i + 1] for i in range(len(token))]
    get = ranks.get
    # pair_ranks[i] is the rank of parts[i] + parts[i + 1]; `rank` itself stands for "cannot join"
    pair_ranks = [get(token[i : i + 2], rank) for i in range(len(token) - 1)]
    while len(parts) > _PAIR:
        lowest = min(pair_ranks)
        if lowest >= rank:
            break
        i = pair_ranks.index(lowest)
        parts[i] += parts.pop(i + 1)
        del pair_ranks[i]
        if i < len(pair_ranks):
            pair_ranks[i] = get(parts[i] + parts[i + 1], rank)
        if i > 0:
            pair_ranks[i - 1] = get(parts[i - 1] + parts[i], rank)
    return parts
