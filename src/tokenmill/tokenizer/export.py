"""Writers for every file form of byte-level BPE; `formats` reads them, `load` finds them.

All forms hold the same ids. What a form cannot say (GPT-2's says nothing about the pattern, ranks
nothing about special tokens either) is said when it is loaded. A tokenizer that a form cannot hold
exactly is refused.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from tokenmill.errors import TokenizerError
from tokenmill.tokenizer.bpe import ByteLevelBpe, merges_from_ranks
from tokenmill.tokenizer.patterns import GPT2
from tokenmill.tokenizer.special import find_special_ids
from tokenmill.tokenizer.tokenizer import Tokenizer
from tokenmill.tokenizer.tokenizer_json import (
    byte_level_json,
    read_byte_level,
    read_tokenizer_json,
    write_tokenizer_json,
)

Files = dict[str, bytes]
"""The contents of files by their names."""


def export(bpe: ByteLevelBpe, form: str) -> Files:
    """Return the files of one form, or of all that can hold the tokenizer with form `all`."""
    if form != "all":
        return _writer(form)(bpe)
    files: Files = {}
    for write in FORMS.values():
        try:
            files |= write(bpe)
        except TokenizerError:
            continue  # this form cannot hold it; others do
    return files


def byte_level_bpe(tokenizer: Tokenizer) -> ByteLevelBpe:
    """Return a loaded tokenizer as a value; `TokenizerError` if it is not byte-level BPE."""
    bpe = None
    if tokenizer.definition_name.endswith(".json"):
        bpe = read_byte_level(read_tokenizer_json(tokenizer.definition, tokenizer.name))
    if bpe is None:
        raise TokenizerError(
            f"{tokenizer.name}: not plain byte-level BPE, so no other file form can hold it",
            hint="it loads as it is: tokenmill reads tokenizer.json and tokenizer.model",
        )
    return bpe


def _tokenizer_json(bpe: ByteLevelBpe) -> Files:
    specials = {token.content: token.id for token in bpe.added if token.special}
    texts = {token_id: text for text, token_id in specials.items()}
    roles = find_special_ids(specials, {})
    config: dict[str, Any] = {
        f"{role}_token": texts[token_id]
        for role in ("bos", "eos", "pad")
        if (token_id := getattr(roles, role)) is not None
    }
    config["add_prefix_space"] = False
    config["tokenizer_class"] = (
        "GPT2Tokenizer" if bpe.patterns == (GPT2,) else "PreTrainedTokenizerFast"
    )
    return {
        "tokenizer.json": write_tokenizer_json(bpe),
        "tokenizer_config.json": msgspec.json.format(msgspec.json.encode(config)) + b"\n",
    }


def _gpt2_files(bpe: ByteLevelBpe) -> Files:
    if bpe.ignore_merges:
        raise _cannot_hold("vocab.json and merges.txt", "words that no merges lead to")
    spec = byte_level_json(bpe)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in spec.model.merges]
    in_order = dict(sorted(spec.model.ids.items(), key=lambda item: item[1]))
    text = "#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges)
    return {"vocab.json": msgspec.json.encode(in_order), "merges.txt": text.encode()}


def _rank_file(bpe: ByteLevelBpe) -> Files:
    ranks = {token: token_id for token_id, token in bpe.tokens.items()}
    if not bpe.ignore_merges:
        found = merges_from_ranks(ranks)
        if found is None or not np.array_equal(found, bpe.merges):
            raise _cannot_hold("ranks", "merges in another order than that of the ids")
    lines = [
        base64.b64encode(token) + b" " + str(token_id).encode() + b"\n"
        for token_id, token in bpe.tokens.items()
    ]
    return {"tokenizer.tiktoken": b"".join(lines)}


def _byte_list_files(bpe: ByteLevelBpe) -> Files:
    if bpe.ignore_merges:
        raise _cannot_hold("byte lists and hex merges", "words that no merges lead to")
    tokens = {token.id: token.content.encode() for token in bpe.added} | bpe.tokens
    vocab = {str(token_id): list(tokens[token_id]) for token_id in sorted(tokens)}
    merges = [f"{bpe.tokens[a].hex()} {bpe.tokens[b].hex()}\n" for a, b in bpe.merges.tolist()]
    return {
        "bytes_vocab.json": msgspec.json.encode(vocab),
        "bytes_merges.txt": "".join(merges).encode(),
    }


def _cannot_hold(form: str, what: str) -> TokenizerError:
    return TokenizerError(
        f"{form} cannot hold this tokenizer: it has {what}", hint="use the form tokenizer.json"
    )


FORMS: Mapping[str, Callable[[ByteLevelBpe], Files]] = {
    "tokenizer.json": _tokenizer_json,
    "gpt2": _gpt2_files,
    "tiktoken": _rank_file,
    "bytes": _byte_list_files,
}
"""The forms by name."""


def _writer(form: str) -> Callable[[ByteLevelBpe], Files]:
    if form not in FORMS:
        raise TokenizerError(f"unknown form {form!r}; known are {', '.join(FORMS)} and all")
    return FORMS[form]
