"""The adapter to fastokens, the default encoder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tokenmill.tokenizer.bpe import AddedToken
from tokenmill.tokenizer.hf_encoder import HfEncoder

_CONTRACTION_AFTER_WORD = b"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_LONG_S_CONTRACTION = "'\u017f"


class FastokensEncoder:
    """Encodes with fastokens, which releases the interpreter lock while it does."""

    name = "fastokens"

    def __init__(
        self,
        data: bytes,
        *,
        added: Sequence[AddedToken],
        load_reference: Callable[[], HfEncoder],
    ) -> None:
        """Load the content of a tokenizer.json; `ValueError` if fastokens does not support it.

        Args:
            added: The added tokens, to check that the library gave them their ids.
            load_reference: Loads the encoder for texts on which fastokens is known to differ.
        """
        # Threads of ours, each with its own batch, give more for a CPU second than fastokens'
        # threads inside one batch. It reads the setting when it is first used.
        os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
        import fastokens

        tokenizer = fastokens.Tokenizer.from_json_str(data.decode())
        tokenizer.no_truncation()
        tokenizer.no_padding()
        moved = [token for token in added if tokenizer.token_to_id(token.content) != token.id]
        if moved:
            raise ValueError(f"the added token {moved[0].content!r} gets an id of its own")
        self._tokenizer = tokenizer
        self._load_reference = load_reference
        # Letters without regard to case include the long s (U+017F) beside s. fastokens 0.3.5 knows
        # that in cl100k's pattern, but not in o200k's; no other character differs.
        self._misses_long_s = _CONTRACTION_AFTER_WORD in data

    @cached_property
    def _reference(self) -> HfEncoder:
        return self._load_reference()

    def encode_batch(
        self, texts: Sequence[str], *, allow_special: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """Return the ids of all texts in one array, and len(texts) + 1 offsets into it."""
        if self._misses_long_s and any(_LONG_S_CONTRACTION in text for text in texts):
            return self._reference.encode_batch(texts, allow_special=allow_special)
        ids, offsets = self._tokenizer.encode_batch_flat(
            texts if isinstance(texts, list) else list(texts),
            add_special_tokens=False,
            split_special_tokens=not allow_special,
        )
        return np.frombuffer(ids, dtype=np.uint32), np.frombuffer(offsets, dtype=np.uint64)
