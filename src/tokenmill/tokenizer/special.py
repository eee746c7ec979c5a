"""Which ids open, close and pad a document, and how they are found.

In this order, for each of bos, eos and pad by itself:

1. `tokenizer_config.json` beside the tokenizer; `null` there means "none" and ends the search;
2. `special_tokens_map.json`;
3. `generation_config.json` (the first id, where it lists several);
4. well-known names among the added tokens, in the order of the lists below.

`[CLS]` and `[SEP]` are not in the lists: they frame the input of an encoder, not a document. Nor
are the ends of chat turns such as `<|im_end|>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from tokenmill.errors import TokenizerError

_WELL_KNOWN = {
    "bos": (
        "<|begin_of_text|>",
        "<s>",
        "<bos>",
        "<｜begin▁of▁sentence｜>",  # noqa: RUF001
        "<|startoftext|>",
        "[BOS]",
    ),
    "eos": (
        "<|endoftext|>",
        "<|end_of_text|>",
        "</s>",
        "<eos>",
        "<｜end▁of▁sentence｜>",  # noqa: RUF001
        "[EOS]",
    ),
    "pad": (
        "<|padding|>",
        "<|pad|>",
        "<pad>",
        "<|finetune_right_pad_id|>",
        "<｜▁pad▁｜>",  # noqa: RUF001
        "[PAD]",
    ),
}
_NOT_SAID = "not said"


class SpecialIds(msgspec.Struct, frozen=True, kw_only=True):
    """The ids that open, close and pad a document; None where the tokenizer has no such token."""

    bos: int | None = None
    eos: int | None = None
    pad: int | None = None


def find_special_ids(
    added: Mapping[str, int], vocabulary: Mapping[str, int], folder: Path | None = None
) -> SpecialIds:
    """Find the special ids by the rule of this module.

    Args:
        added: The added tokens, by their text; well-known names are looked for among these alone,
            since "</s>" can be an ordinary token as well.
        vocabulary: All tokens that a configuration file may name.
        folder: Where the tokenizer's other files are, if it came with any.
    """
    named = {**vocabulary, **added}
    found = {role: _find_in_files(role, named, folder) for role in _WELL_KNOWN}
    for role, names in _WELL_KNOWN.items():
        if found[role] is _NOT_SAID:
            found[role] = next((added[name] for name in names if name in added), None)
    return SpecialIds(**found)


def _find_in_files(role: str, named: Mapping[str, int], folder: Path | None) -> Any:
    """Return the id that the files beside the tokenizer give, None, or that they do not say."""
    if folder is None:
        return _NOT_SAID
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        config = read_json_object(folder / name)
        if f"{role}_token" in config:
            token = config[f"{role}_token"]
            text = token.get("content") if isinstance(token, dict) else token
            if text is None:
                return None
            if isinstance(text, str) and text in named:
                return named[text]
    token_id = read_json_object(folder / "generation_config.json").get(f"{role}_token_id")
    if isinstance(token_id, list):
        token_id = token_id[0] if token_id else None
    return token_id if isinstance(token_id, int) else _NOT_SAID


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, empty if there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise TokenizerError(f"{path}: cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: holds {type(content).__name__}, expected an object")
    return content
