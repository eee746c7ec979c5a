"""The adapter to HF `tokenizers`, the reference implementation of tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


class HfEncoder:
    """Encodes and decodes with HF `tokenizers`."""

    name = "tokenizers"

    def __init__(self, data: bytes, *, added: Mapping[str, int]) -> None:
        """Load the content of a tokenizer.json; `ValueError` if the library does not accept it.

        Args:
            added: The added tokens by content, to check that the library gave them their ids.
        """
        self._data = data
        self._special_as_text = _load(data, special_as_text=True)
        moved = [text for text, i in added.items() if self._special_as_text.token_to_id(text) != i]
        if moved:
            raise ValueError(f"the added token {moved[0]!r} gets another id than the file says")

    @cached_property
    def _special_as_ids(self) -> Any:
        # The library keeps the choice in the tokenizer: with one for each, threads do not meet.
        return _load(self._data, special_as_text=False)

    def encode_batch(
        self, texts: Sequence[str], *, allow_special: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """Return the ids of all texts in one array, and len(texts) + 1 offsets into it."""
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a text is not a str")  # a pair would be taken as two sequences
        tokenizer = self._special_as_ids if allow_special else self._special_as_text
        encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        pieces = [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]
        offsets = np.zeros(len(pieces) + 1, dtype=np.uint64)
        np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
        return np.concatenate([np.empty(0, dtype=np.uint32), *pieces]), offsets

    def decode(self, ids: list[int]) -> str:
        """Return the text that the library's decoder makes of the ids, special tokens included."""
        return self._special_as_text.decode(ids, skip_special_tokens=False)


def _load(data: bytes, *, special_as_text: bool) -> Any:
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the library raises no narrower class
        raise ValueError(str(error)) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = special_as_text
    return tokenizer
