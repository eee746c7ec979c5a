"""The regular expressions by which known tokenizers cut text into words before merging.

The same expression is in use in several spellings, some with possessive quantifiers for speed. Each
known spelling is led back to one canonical string, so that a tokenizer has one fingerprint whatever
file it came from, and so that the encoders meet the spelling that they know a fast path for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
NANOCHAT = CL100K.replace("{1,3}", "{1,2}")
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+CONTRACTION"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*CONTRACTION|\p{{N}}{{1,3}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = _CASED.replace("CONTRACTION", _CONTRACTION)
TEKKEN = _CASED.replace("CONTRACTION", "").replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)

EACH_DIGIT = r"\p{N}"
DIGIT_GROUPS = r"\p{N}{1,3}"
CJK_RUNS = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

WORD_PATTERNS = frozenset({GPT2, CL100K, QWEN2, NANOCHAT, O200K, TEKKEN, DEEPSEEK})
"""Patterns that cut any text into words; what each of them guarantees is proved in `cuts`."""
COMPLETE_PATTERNS = WORD_PATTERNS - {DEEPSEEK}
"""Those that match every character; DeepSeek's leaves out what is no letter, mark or symbol."""
PART_PATTERNS = frozenset({EACH_DIGIT, DIGIT_GROUPS, CJK_RUNS})
"""Patterns that only set certain runs apart, used before one of the others."""

NAMES = {
    "gpt2": GPT2,
    "gpt4": CL100K,
    "cl100k": CL100K,
    "qwen2": QWEN2,
    "nanochat": NANOCHAT,
    "o200k": O200K,
    "tekken": TEKKEN,
}
"""Short names for the patterns that cut any text into words by themselves."""


def named_pattern(name: str) -> str:
    """Return the pattern of a short name; anything else is taken as an expression itself."""
    return NAMES.get(name, name)


_SPELLINGS = {
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": GPT2,
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}]+| ?[\p{N}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": GPT2,
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s": GPT2,
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+": CL100K,
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+": NANOCHAT,
}
"""Other ways to write a pattern that match exactly the same, whatever the vocabulary."""

_CL100K_POSSESSIVE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_TEXT_AFTER_NEWLINE = re.compile(rb"[\r\n][^\r\n]")


def canonical_pattern(pattern: str, tokens: Iterable[bytes]) -> str:
    """Return the canonical spelling of a pattern, or the pattern itself if it is not a known one.

    tiktoken's present spelling of cl100k keeps white space at the end of a text in one piece, where
    the older one cuts it after its last newline. No merge reaches over that cut if no token holds
    anything after a newline; then, as with cl100k's own tokens, both give the same ids.
    """
    if pattern == _CL100K_POSSESSIVE:
        same = not any(_TEXT_AFTER_NEWLINE.search(token) for token in tokens)
        return CL100K if same else pattern
    known = _SPELLINGS.get(pattern)
    if known is None:  # some files hold the characters CR and LF, others their escapes
        escaped = pattern.replace("\r", r"\r").replace("\n", r"\n")
        known = escaped if escaped in WORD_PATTERNS else pattern
    return known


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """One of OpenAI's tokenizers: what its file of ranks does not say, and where the file is."""

    pattern: str
    special_tokens: Mapping[str, int]
    num_ranks: int
    url: str
    sha256: str


_HOME = "https://openaipublic.blob.core.windows.net/encodings"
_GPT2 = Encoding(
    pattern=GPT2,
    special_tokens={"<|endoftext|>": 50256},
    num_ranks=50256,
    url=f"{_HOME}/r50k_base.tiktoken",
    sha256="306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
)
ENCODINGS = {
    "gpt2": _GPT2,
    "r50k_base": _GPT2,
    "p50k_base": Encoding(
        pattern=GPT2,
        special_tokens={"<|endoftext|>": 50256},
        num_ranks=50280,
        url=f"{_HOME}/p50k_base.tiktoken",
        sha256="94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
    ),
    "cl100k_base": Encoding(
        pattern=CL100K,
        special_tokens={
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
        num_ranks=100256,
        url=f"{_HOME}/cl100k_base.tiktoken",
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": Encoding(
        pattern=O200K,
        special_tokens={"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
        num_ranks=199998,
        url=f"{_HOME}/o200k_base.tiktoken",
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
}
"""By short name. GPT-2 is built in; its entry serves rank files that carry its name."""
