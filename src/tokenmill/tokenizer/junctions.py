r"""What is certain about two neighbouring ASCII characters: one word, two words, a safe cut?

Patterns that are matched from left to right decide between most classes of characters whatever the
rest of the text is. With L for letters, N for digits, P for what is neither those nor white space,
leaving out the apostrophe, which may begin a contraction and is never certain:

    junction        all patterns below              GPT-2 alone
    L L, P P        same word (o200k: unless the    same word
                    case rises, as in "aB")
    L N, N L        two words                       two words
    L P, N P, P N   two words                       two words
    P L             unsure: "(a" is one in cl100k   two words
    N N             unsure: "1234" is two           same word
    space L, P      same word                       same word; before N as well
    CR, LF + L N P  two words                       two words; after a tab as well
    P + CR, LF      unsure                          two words, as before any white space

Letters go on with letters, digits with digits, and P with P, and a match takes all that it can. A
space before L or P belongs to them, also as the last one of a run: `\s+(?!\S)` leaves it.
After a contraction letters are a new word: but that begins with an apostrophe.
Everything else is unsure: digits in groups, white space runs, all beyond ASCII.
"""

from __future__ import annotations

import string

import numpy as np
from numpy.typing import NDArray

from tokenmill.tokenizer.cuts import AFTER_ALPHANUMERIC
from tokenmill.tokenizer.patterns import COMPLETE_PATTERNS, GPT2, O200K, TEKKEN

TWO_WORDS = 0
SAME = 1
UNSURE = 2
CUT = 4
"""Two words, and a place where the text can be cut (see `cuts`)."""

_LETTERS = string.ascii_letters
_DIGITS = string.digits
_SIGNS = "".join(sorted(set(string.punctuation) - {"'"}))
_LINE_ENDS = "\r\n"
_NUM_BYTES = 256


def junctions(pattern: str) -> NDArray[np.uint8]:
    """Return what is certain between two bytes, at 256 * left + right, for a known pattern."""
    table = np.full((_NUM_BYTES, _NUM_BYTES), UNSURE, dtype=np.uint8)

    def put(left: str, right: str, junction: int) -> None:
        table[np.ix_(list(left.encode()), list(right.encode()))] = junction

    if pattern in COMPLETE_PATTERNS:
        put(_LETTERS, _LETTERS, SAME)
        put(_LETTERS, _DIGITS + _SIGNS, TWO_WORDS)
        put(_DIGITS, _LETTERS + _SIGNS, TWO_WORDS)
        put(_SIGNS, _DIGITS, TWO_WORDS)
        put(_SIGNS, _SIGNS, SAME)
        put(" ", _LETTERS + _SIGNS, SAME)
        put(_LINE_ENDS, _LETTERS + _DIGITS + _SIGNS, TWO_WORDS)
    if pattern in {O200K, TEKKEN}:
        put(string.ascii_lowercase, string.ascii_uppercase, TWO_WORDS)
    if pattern == GPT2:
        put(_SIGNS, _LETTERS, TWO_WORDS)
        put(_DIGITS, _DIGITS, SAME)
        put(" ", _DIGITS, SAME)
        put("\t", _LETTERS + _DIGITS + _SIGNS, TWO_WORDS)
        put(_SIGNS, string.whitespace, TWO_WORDS)
    not_space = "".join(chr(i) for i in range(128) if not chr(i).isspace())
    put(not_space, " ", CUT)
    put(_LETTERS + _DIGITS, "".join(c for c in AFTER_ALPHANUMERIC if c.isascii()), CUT)
    return table.ravel()
