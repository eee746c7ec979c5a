r"""Places where a text can be cut so that the ids of the parts are the ids of the whole.

A cut is made between two characters, c1 and c2, in one of two situations:

    A   c1 is not white space, c2 is a space (U+0020);
    B   c1 is a letter or a digit, c2 is another white-space character of ASCII, or one of a few
        punctuation marks: never an apostrophe, a slash, a letter, a digit or a combining mark.

Such a place is a boundary between two words whatever else the text holds, for each of the patterns
in `patterns.WORD_PATTERNS`. The proof, for patterns that are matched again and again from left to
right and in which nothing looks behind:

1. No match reaches over the cut. In all these patterns a space is either the optional first
   character of a match or part of a run of white space (`\s+`, `\s*[\r\n]+`); c1 is not white
   space, so in A no match can hold c1 and then c2. In B, c1 is in \p{L} or \p{N}: what Python calls
   alphanumeric is, also in later versions of Unicode than Python's. A match that holds a letter
   goes on with letters and marks (`\p{L}+`, `[\p{L}\p{M}]+`, o200k's runs of upper and lower case)
   or with a contraction, which is an apostrophe and letters; one that holds a digit goes on with
   digits. c2 is none of these. `[\r\n]*` and `[\r\n/]*` follow punctuation, not c1.
2. So the left part is cut into the same words alone as within the whole. A match there could tell
   the end of the text from c2 only by looking at it: a run that stops at c2 stops at the end as
   well, a contraction needs a letter and fails at both, and `\s+(?!\S)` and `\s+$` look only past
   white space, but c1 is none.
3. The right part is too, since what follows a match does not depend on what came before it.

Patterns that are applied before (`patterns.PART_PATTERNS`: digits, runs of Chinese and kana) set
runs apart that never hold c2, so the cut falls between or beside them, and the above holds in what
is left.

Added tokens are looked for in the raw text first, the leftmost and longest. A cut inside an
occurrence is refused; with none across the cut, the same ones are found in the parts. Those that
look at or take what is around them (`lstrip`, `rstrip`, `single_word`) must not even touch it.

Merging happens inside words, so the ids of the parts are the ids of the whole. A normalizer or any
other pattern is not covered: then there is no `CutRule`, and a text is encoded as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from tokenmill.tokenizer.bpe import AddedToken
from tokenmill.tokenizer.patterns import PART_PATTERNS, WORD_PATTERNS

AFTER_ALPHANUMERIC = '\t\n\r.,;:!?)]}"…、。，！？；：）」』】》'  # noqa: RUF001
# \S is the complement of str.isspace, which holds all of \s; [^\W_] is str.isalnum
_CANDIDATE = re.compile(rf"\S(?= )|[^\W_](?=[{re.escape(AFTER_ALPHANUMERIC)}])")
_WINDOW_CHARS = 512


@dataclass(frozen=True)
class CutRule:
    """Finds safe cuts in a text for one tokenizer."""

    added: tuple[AddedToken, ...]
    """All added tokens."""

    @cached_property
    def reach(self) -> int:
        """How many characters beyond a cut must be known to judge it."""
        return max((len(token.content) for token in self.added), default=1)

    def last_cut(self, text: str, start: int, stop: int, *, allow_special: bool) -> int | None:
        """Return the last safe cut after `start` and not after `stop`, or None.

        Cutting there gives text[:cut] and text[cut:]. The search runs backwards from `stop`.
        """
        stop = min(stop, len(text) - 1)
        while start < stop:
            window = max(start, stop - _WINDOW_CHARS)
            # a candidate is the character before the cut; the pattern needs to see the one after it
            found = [match.end() for match in _CANDIDATE.finditer(text, window, stop + 1)]
            for cut in reversed(found):
                if self._is_safe(text, cut, allow_special=allow_special):
                    return cut
            stop = window
        return None

    def first_cut(self, text: str, start: int, *, allow_special: bool) -> int | None:
        """Return the first safe cut after `start`, or None."""
        for match in _CANDIDATE.finditer(text, start):
            if self._is_safe(text, match.end(), allow_special=allow_special):
                return match.end()
        return None

    def _is_safe(self, text: str, cut: int, *, allow_special: bool) -> bool:
        """Tell whether no added token lies across the cut, nor touches it if it looks around."""
        window = text[max(0, cut - self.reach) : cut + self.reach]
        at = min(cut, self.reach)
        for token in self.added:
            if token.content in window and (allow_special or not token.special):
                margin = int(token.single_word or token.lstrip or token.rstrip)
                spans = _occurrences(token.content, window)
                if any(start < at + margin and at < stop + margin for start, stop in spans):
                    return False
        return True


def cut_rule(patterns: tuple[str, ...], added: tuple[AddedToken, ...]) -> CutRule | None:
    """Return the rule for a byte-level BPE without normalizer, or None for unknown patterns."""
    known = set(patterns) <= WORD_PATTERNS | PART_PATTERNS
    return CutRule(added) if known and set(patterns) & WORD_PATTERNS else None


def _occurrences(content: str, window: str) -> Iterator[tuple[int, int]]:
    start = window.find(content)
    while start >= 0:
        yield start, start + len(content)
        start = window.find(content, start + 1)
