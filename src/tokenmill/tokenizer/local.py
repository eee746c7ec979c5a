"""Tokenizers in local files: tell the forms apart, find what belongs together. No network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tokenmill.errors import TokenizerError
from tokenmill.tokenizer.bpe import AddedToken, ByteLevelBpe, special_tokens
from tokenmill.tokenizer.formats import (
    looks_like_ranks,
    read_bytes,
    read_ranks,
    read_vocab_and_merges,
)
from tokenmill.tokenizer.patterns import ENCODINGS, GPT2
from tokenmill.tokenizer.special import read_json_object

_PARTNERS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
_STANDARD_NAMES = {"tokenizer.json", "tokenizer.model", "vocab.json", "encoder.json"}
_GPT2_CLASSES = {
    f"{kind}Tokenizer{fast}" for kind in ("GPT2", "Roberta", "Bart") for fast in ("", "Fast")
}
FORMS = (
    "tokenizer.json, vocab.json + merges.txt, encoder.json + vocab.bpe, "
    "NAME_vocab.json + NAME_merges.txt, NAME.tiktoken, tokenizer.model"
)


@dataclass(frozen=True)
class JsonFile:
    """The content of a tokenizer.json."""

    data: bytes


@dataclass(frozen=True)
class ModelFile:
    """The content of a SentencePiece model."""

    data: bytes


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user can say about a file that the file itself does not."""

    pattern: str | None = None
    """How text is cut into words: a regular expression, or the short name of a tokenizer."""
    special_tokens: Mapping[str, int] | None = None
    """Texts of special tokens and their ids."""

    def regex(self) -> str | None:
        """Return the pattern as a regular expression."""
        known = ENCODINGS.get(self.pattern or "")
        return known.pattern if known else self.pattern


Content = JsonFile | ModelFile | ByteLevelBpe


def read_local(path: Path, options: Options) -> tuple[Content, Path | None]:
    """Read a file or a folder, and return the folder where its configuration files may be."""
    if path.is_dir():
        return _read_file(_find_in_folder(path), options), path
    folder = path.parent if path.name in _STANDARD_NAMES else None
    return _read_file(path, options), folder


def read_pair(vocab: Path, merges: Path, options: Options) -> ByteLevelBpe:
    """Read a vocabulary file and its merges file."""
    for path in (vocab, merges):
        if not path.is_file():
            raise TokenizerError(f"{path}: no such file")
    added = special_tokens(options.special_tokens or {})
    pattern = options.regex()
    if vocab.name in _STANDARD_NAMES:
        added += _configured_tokens(vocab.parent)
        pattern = pattern or _configured_pattern(vocab.parent)
    return read_vocab_and_merges(vocab, merges, pattern=pattern or GPT2, added=added)


def byte_list_files(prefix: Path) -> tuple[Path, Path] | None:
    """Return PREFIX_vocab.json and PREFIX_merges.txt if both exist."""
    vocab, merges = (prefix.with_name(f"{prefix.name}_{end}") for end in _PARTNERS[0])
    return (vocab, merges) if vocab.is_file() and merges.is_file() else None


def _find_in_folder(folder: Path) -> Path:
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    vocabularies = [
        name
        for name in names
        for end, other in _PARTNERS
        if name.endswith(end) and name.removesuffix(end) + other in names
    ]
    standard = [name for name in vocabularies if name in _STANDARD_NAMES]
    ranks = [name for name in names if name.endswith(".tiktoken")]
    models = [name for name in names if name.endswith(".model")]
    for found in (
        [name for name in names if name == "tokenizer.json"],
        standard,
        vocabularies,
        ranks,
        [name for name in models if name == "tokenizer.model"],
        models,
    ):
        if len(found) == 1:
            return folder / found[0]
        if found:
            raise TokenizerError(
                f"{folder}: holds several tokenizers: {', '.join(found)}",
                hint="give one of the files",
            )
    raise TokenizerError(f"{folder}: holds no tokenizer", hint=f"looked for {FORMS}")


def _read_file(path: Path, options: Options) -> Content:
    for end, other in (*_PARTNERS, *(pair[::-1] for pair in _PARTNERS)):
        if path.name.endswith(end) and not _is_tokenizer_json(path):
            partner = path.with_name(path.name.removesuffix(end) + other)
            pair = (path, partner) if path.suffix == ".json" else (partner, path)
            return read_pair(*pair, options)
    data = read_bytes(path)
    if path.suffix == ".json":
        if not _is_tokenizer_json(path):
            raise TokenizerError(f"{path}: JSON, but not a tokenizer.json", hint=f"known: {FORMS}")
        return JsonFile(data)
    if path.suffix == ".tiktoken" or looks_like_ranks(data):
        return _read_rank_file(data, path, options)
    if path.suffix == ".model":
        return ModelFile(data)
    raise TokenizerError(f"{path}: not a tokenizer file of a known form", hint=f"known: {FORMS}")


def _is_tokenizer_json(path: Path) -> bool:
    """Tell whether a file is a JSON object with a model; a vocabulary may hold the word "model"."""
    if path.suffix != ".json":
        return False
    try:
        content = msgspec.json.decode(read_bytes(path), type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TokenizerError(f"{path}: not a JSON object: {error}") from error
    return bytes(content.get("model", b"")).startswith(b"{")


def _read_rank_file(data: bytes, path: Path, options: Options) -> ByteLevelBpe:
    pattern = options.regex()
    known = ENCODINGS.get(path.stem) if pattern is None else None
    if known is not None:
        specials = options.special_tokens or known.special_tokens
        return read_ranks(
            data, path, pattern=known.pattern, specials=specials, num_ranks=known.num_ranks
        )
    if pattern is None:
        raise TokenizerError(
            f"{path}: a file of ranks does not say how text is cut into words, "
            f"and {path.stem!r} is not the name of a known encoding",
            hint=f"give a pattern: a regular expression or one of {', '.join(ENCODINGS)}; "
            "and the special tokens",
        )
    return read_ranks(data, path, pattern=pattern, specials=options.special_tokens or {})


def _configured_tokens(folder: Path) -> tuple[AddedToken, ...]:
    """Return the added tokens that the files beside vocab.json list."""
    listed = read_json_object(folder / "tokenizer_config.json").get("added_tokens_decoder", {})
    try:
        by_id = {**listed}
        for content, token_id in read_json_object(folder / "added_tokens.json").items():
            by_id.setdefault(str(token_id), {"content": content})
        return tuple(
            msgspec.convert({**token, "id": int(token_id)}, AddedToken)
            for token_id, token in by_id.items()
        )
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        raise TokenizerError(f"{folder}: the added tokens cannot be read: {error}") from error


def _configured_pattern(folder: Path) -> str:
    """Return GPT-2's pattern unless the files beside vocab.json say that another is meant."""
    config = read_json_object(folder / "tokenizer_config.json")
    kind = config.get("tokenizer_class")
    if (kind is not None and kind not in _GPT2_CLASSES) or config.get("add_prefix_space"):
        raise TokenizerError(
            f"{folder}: vocab.json and merges.txt belong to a {kind}, which does more than GPT-2's "
            "tokenizer does",
            hint="use the tokenizer.json of the same model, or give the pattern yourself",
        )
    return GPT2
