"""A small list of public texts that people learn and test with.

Sizes and hashes are those that the publishers list for these very versions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WellKnown:
    """A public text: where it is, and how to know that it arrived."""

    url: str
    num_bytes: int
    sha256: str
    about: str
    separator: str | None = None
    """What stands between documents; None: nothing does."""


_SHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare"
_STORIES = (
    "https://huggingface.co/datasets/roneneldan/TinyStories/resolve/"
    "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
)
_END = "<|endoftext|>"

WELL_KNOWN = {
    "tinyshakespeare": WellKnown(
        f"{_SHAKESPEARE}/input.txt",
        1_115_394,
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        "plays of Shakespeare, 1.1 MB",
    ),
    "tinystories-train": WellKnown(
        f"{_STORIES}/TinyStoriesV2-GPT4-train.txt",
        2_227_753_162,
        "6418d412de72888f52b5142c761ac21a582f7d1166f0bfbdb5f03ccfdec90443",
        "TinyStories V2 (GPT-4), 2.2 GB, CDLA-Sharing-1.0",
        _END,
    ),
    "tinystories-valid": WellKnown(
        f"{_STORIES}/TinyStoriesV2-GPT4-valid.txt",
        22_502_601,
        "6874bae9a4c1a4e7edcf0e53b86c17817e9cf881fc75ff2368da457b80c0585d",
        "its validation split, 22.5 MB",
        _END,
    ),
    "tinystories-v1-train": WellKnown(
        f"{_STORIES}/TinyStories-train.txt",
        1_924_281_556,
        "c5cf5e22ff13614e830afbe61a99fbcbe8bcb7dd72252b989fa1117a368d401f",
        "TinyStories as first published, 1.9 GB, CDLA-Sharing-1.0",
        _END,
    ),
    "tinystories-v1-valid": WellKnown(
        f"{_STORIES}/TinyStories-valid.txt",
        19_447_282,
        "94e431816c4cce81ff71e4408ff8d3bda9a42e8d2663986697c3954288cb38b4",
        "its validation split, 19.4 MB",
        _END,
    ),
}
