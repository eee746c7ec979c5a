"""The seam between tokenmill and the libraries that encode, and the choice among them.

fastokens is the fastest and serves wherever it loads a file and is known to agree with the
reference, HF `tokenizers`, which serves for the rest. SentencePiece models go to their own library.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import TokenizerError
from tokenmill.tokenizer.alphabet import ALPHABET
from tokenmill.tokenizer.bpe import AddedToken
from tokenmill.tokenizer.fastokens_encoder import FastokensEncoder
from tokenmill.tokenizer.hf_encoder import HfEncoder
from tokenmill.tokenizer.tokenizer_json import TokenizerJson

logger = logging.getLogger(__name__)


class Encoder(Protocol):
    """Encodes texts to ids. Safe to use from several threads at once; adds no BOS or EOS."""

    name: str

    def encode_batch(
        self, texts: Sequence[str], *, allow_special: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """Return the ids of all texts in one array, and len(texts) + 1 offsets into it."""
        ...


def choose_encoder(
    data: bytes, added: Sequence[AddedToken], *, path: str, reason: str | None, ids: Iterable[int]
) -> FastokensEncoder | HfEncoder:
    """Return the fastest encoder that is exact for a tokenizer.json.

    Args:
        data: The content of the file.
        added: The added tokens in it.
        path: Where it comes from, for messages.
        reason: Why fastokens must not serve (see `why_not_fastokens`), or None.
        ids: All ids of the model's vocabulary.
    """
    contents = {token.content: token.id for token in added}
    if reason is None:
        try:
            return FastokensEncoder(_without_holes(data, set(ids)), added=contents)
        except ValueError as error:
            reason = str(error)
    logger.info("%s: encoding with `tokenizers`, since fastokens does not serve: %s", path, reason)
    try:
        return HfEncoder(data, added=contents)
    except ValueError as error:
        raise TokenizerError(f"{path}: no encoder can load it: {error}") from error


def why_not_fastokens(spec: TokenizerJson) -> str | None:
    """Return why fastokens must not serve although it might load the file, or None.

    Compared with HF `tokenizers` on random vocabularies, fastokens 0.3.5 agrees on all byte-level
    BPE. On other BPE it differs where a token holds a character that is not a token by itself (it
    finds such a token although no merges lead there), and where characters without any id are
    dropped between two others.
    """
    model, vocab = spec.model, spec.model.ids
    pre_tokenizer = spec.pre_tokenizer or {}
    steps = pre_tokenizer.get("pretokenizers") or [pre_tokenizer]
    is_byte_level = any(step.get("type") == "ByteLevel" for step in steps)
    reasons = {
        f"its model is {model.type}": not model.is_bpe,
        "its tokens are marked as parts of words": bool(
            model.continuing_subword_prefix or model.end_of_word_suffix
        ),
    }
    if is_byte_level:
        reasons["a byte has no token"] = any(letter not in vocab for letter in ALPHABET)
    else:
        reasons["some ids are unused"] = len(set(vocab.values())) <= max(vocab.values())
    if not is_byte_level and not model.ignore_merges:
        reasons |= {
            "some characters have no ids": not model.byte_fallback and model.unk_token is None,
            "a token holds a character that is not one": any(
                letter not in vocab for letter in set("".join(vocab))
            ),
        }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _without_holes(data: bytes, used: set[int]) -> bytes:
    """Give every unused id a token that no text can hold, since fastokens refuses holes.

    This is for the encoder alone; the definition stays as it is. (cl100k has 16 unused ids.)
    """
    if max(used) + 1 == len(used):
        return data
    if max(used) > 2 * len(used) + 1000:
        raise ValueError("most ids are unused")
    content = msgspec.json.decode(data)
    # The character is not in the alphabet of bytes: no word of a byte-level text is such a token.
    unused = (token_id for token_id in range(max(used)) if token_id not in used)
    content["model"]["vocab"] |= {f"\ue000{token_id}": token_id for token_id in unused}
    return msgspec.json.encode(content)
