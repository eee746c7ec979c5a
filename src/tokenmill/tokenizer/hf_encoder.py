"""The adapter to HF `tokenizers`, the reference implementation of tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenmill.tokenizer.bpe import AddedToken
from tokenmill.tokenizer.tokenizer_json import merges_without


class HfEncoder:
    """Encodes and decodes with HF `tokenizers`."""

    name = "tokenizers"

    def __init__(
        self,
        data: bytes,
        *,
        added: Sequence[AddedToken] = (),
        special_words: Mapping[str, int] | None = None,
    ) -> None:
        """Load the content of a tokenizer.json; `ValueError` if the library does not accept it.

        Args:
            added: The added tokens, to check that the library gave them their ids.
            special_words: Special tokens that the model itself would find in a text, to be hidden.
        """
        self._data = data
        names = {text: f" \U0010fffe{i} " for text, i in (special_words or {}).items()}
        self._special_as_text = _load(_renamed(data, names), special_as_text=True)
        for token in added:
            name = names.get(token.content, token.content)
            if self._special_as_text.token_to_id(name) != token.id:
                raise ValueError(f"the added token {token.content!r} gets an id of its own")

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
        return self._special_as_ids.decode(ids, skip_special_tokens=False)


def _renamed(data: bytes, names: Mapping[str, str]) -> bytes:
    """Give tokens other names, under the same ids. Names with spaces are no words of any text."""
    if not names:
        return data
    content = msgspec.json.decode(data)
    content["post_processor"] = None  # it refers to special tokens by name, and is not used
    for token in content["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = content["model"]
    if "merges" in model:
        model["merges"] = merges_without(model["merges"], names)
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(token, token): i for token, i in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in model["vocab"]]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    return msgspec.json.encode(content)


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
