"""Where the tokens of each part go: bookkeeping between receipts and shards, in input order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from tokenmill.pipeline.parts import SourceCount

SPLITS = ("train", "val")


class Slot(msgspec.Struct, frozen=True):
    """A part's place in the token stream of a split."""

    unit: int
    start: int
    num_tokens: int


class ShardLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of one shard, and the parts they come from."""

    split: str
    index: int
    start: int
    """First token, counted in the split."""
    num_tokens: int
    last: bool
    """Whether the split ends here; a document that goes on beyond it is cut."""
    slots: tuple[Slot, ...]


@dataclass(slots=True)
class Stream:
    """The tokens of one split as far as units are finished without a gap."""

    split: str
    num_tokens: int = 0
    num_taken: int = 0
    """Shards that were laid out."""
    slots: list[Slot] = field(default_factory=list[Slot])
    """Parts that further shards need, in order."""

    def extend(self, unit: int, num_tokens: int) -> None:
        """Append the tokens of the next unit."""
        if num_tokens:
            self.slots.append(Slot(unit, self.num_tokens, num_tokens))
            self.num_tokens += num_tokens

    def take_shards(self, shard_tokens: int, *, complete: bool) -> list[ShardLayout]:
        """Lay out the shards whose tokens are all there; `complete`: no more will come."""
        taken: list[ShardLayout] = []
        first = (
            0  # of the slots that are still needed: they are in order, so none is looked at twice
        )
        while (left := self.num_tokens - (start := self.num_taken * shard_tokens)) > 0:
            if left < shard_tokens and not complete:
                break
            num_tokens = min(left, shard_tokens)
            stop = start + num_tokens
            after = bisect_left(self.slots, stop, lo=first, key=lambda slot: slot.start)
            slots = tuple(self.slots[first:after])
            goes_on = slots[-1].start + slots[-1].num_tokens > stop
            first = after - 1 if goes_on else after
            last = complete and stop == self.num_tokens
            taken.append(
                ShardLayout(
                    split=self.split,
                    index=self.num_taken,
                    start=start,
                    num_tokens=num_tokens,
                    last=last,
                    slots=slots,
                )
            )
            self.num_taken += 1
        del self.slots[:first]
        return taken


def split_tokens(counts: Iterable[SourceCount], split: str) -> int:
    """Return how many of the counted tokens belong to a split."""
    return sum(count.num_tokens for count in counts if count.split == split)
