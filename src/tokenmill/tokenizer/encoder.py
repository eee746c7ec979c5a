"""The seam between tokenmill and the libraries that encode, and the choice among them.

fastokens is the fastest and serves wherever it loads a file and is known to agree with the
reference, HF `tokenizers`, which serves for the rest. SentencePiece models go to their own library.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import TokenizerError
from tokenmill.tokenizer.alphabet import ALPHABET
from tokenmill.tokenizer.fastokens_encoder import FastokensEncoder
from tokenmill.tokenizer.hf_encoder import HfEncoder
from tokenmill.tokenizer.tokenizer_json import TokenizerJson, merges_without

logger = logging.getLogger(__name__)


class Encoder(Protocol):
    """Encodes texts to ids. Safe to use from several threads at once; adds no BOS or EOS."""

    name: str

    def encode_batch(
        self, texts: Sequence[str], *, allow_special: bool
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        """Return the ids of all texts in one array, and len(texts) + 1 offsets into it."""
        ...


def choose_encoder(data: bytes, spec: TokenizerJson, *, path: str) -> FastokensEncoder | HfEncoder:
    """Return the fastest encoder that is exact for a tokenizer.json.

    Args:
        data: The content of the file, which `spec` was read from.
        path: Where it comes from, for messages.
    """

    def load_reference() -> HfEncoder:
        return HfEncoder(data, special_words=special_words(spec), added=spec.added_tokens)

    reason = why_not_fastokens(spec)
    if reason is None:
        try:
            return FastokensEncoder(
                _fit_for_fastokens(data, spec),
                added=spec.added_tokens,
                load_reference=load_reference,
            )
        except ValueError as error:
            reason = str(error)
    logger.info("%s: encoding with `tokenizers`, since fastokens does not serve: %s", path, reason)
    try:
        return load_reference()
    except ValueError as error:
        raise TokenizerError(f"{path}: no encoder can load it: {error}") from error


def special_words(spec: TokenizerJson) -> dict[str, int]:
    """Return the special tokens that the model would find in a text as if they were words.

    A Unigram model takes any piece of its vocabulary, a WordPiece model any word, and so does BPE
    with `ignore_merges`; merges can lead to a special token if it was trained on texts that hold
    it. Then "</s>" in a document would become the control id, whatever the library is told.
    Encoders hide these tokens from the model.
    """
    vocab = spec.model.ids
    found = {t.content: t.id for t in spec.added_tokens if t.special and t.content in vocab}
    if spec.model.is_bpe and not spec.model.ignore_merges:
        halves = {(text[:i], text[i:]): text for text in found for i in range(1, len(text))}
        ways = {" ".join(pair): text for pair, text in halves.items()} | halves
        reached = {ways[merge] for merge in set(ways).intersection(spec.model.merges)}
        found = {text: token_id for text, token_id in found.items() if text in reached}
    return found


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
        reasons["special tokens must be hidden from its model"] = bool(special_words(spec))
    if not is_byte_level and not model.ignore_merges:
        reasons |= {
            "some characters have no ids": not model.byte_fallback and model.unk_token is None,
            "a token holds a character that is not one": any(
                letter not in vocab for letter in set("".join(vocab))
            ),
        }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _fit_for_fastokens(data: bytes, spec: TokenizerJson) -> bytes:
    """Put a token that no text can hold in place of unused ids and of special words.

    fastokens refuses a vocabulary with holes (cl100k has 16 unused ids), and takes the ids of added
    tokens from their list. This is for the encoder alone; the definition stays as it is.
    """
    ids = spec.model.ids
    used = set(ids.values())
    hidden = special_words(spec)
    if max(used) + 1 == len(used) and not hidden:
        return data
    if max(used) > 2 * len(used) + 1000:
        raise ValueError("most ids are unused")
    content = msgspec.json.decode(data)
    vocab = {token: i for token, i in ids.items() if token not in hidden}
    unused = set(range(max(used) + 1)).difference(vocab.values())
    # The character is not in the alphabet of bytes: no word of a byte-level text is such a token.
    vocab |= {f"\ue000{token_id}": token_id for token_id in sorted(unused)}
    content["model"]["vocab"] = vocab
    content["model"]["merges"] = merges_without(content["model"]["merges"], hidden)
    return msgspec.json.encode(content)
