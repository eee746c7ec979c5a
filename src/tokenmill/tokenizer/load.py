"""Load a tokenizer by short name, hub id, folder or file, or from what a store keeps of it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec

from tokenmill.errors import TokenizerError
from tokenmill.remote import is_remote, list_objects, read_object
from tokenmill.tokenizer.bpe import ByteLevelBpe
from tokenmill.tokenizer.builtin import gpt2
from tokenmill.tokenizer.cuts import cut_rule
from tokenmill.tokenizer.decoder import byte_level_decoder, json_decoder
from tokenmill.tokenizer.encoder import choose_encoder
from tokenmill.tokenizer.fingerprint import (
    fingerprint_byte_level,
    fingerprint_json,
    fingerprint_sentencepiece,
)
from tokenmill.tokenizer.formats import read_ranks
from tokenmill.tokenizer.hub import fetch_from_hub, fetch_ranks, looks_like_hub_id
from tokenmill.tokenizer.local import (
    Content,
    JsonFile,
    ModelFile,
    Options,
    byte_list_files,
    read_local,
    read_pair,
)
from tokenmill.tokenizer.patterns import ENCODINGS
from tokenmill.tokenizer.sentencepiece_encoder import SentencePieceEncoder
from tokenmill.tokenizer.special import SpecialIds, find_special_ids
from tokenmill.tokenizer.tokenizer import Tokenizer
from tokenmill.tokenizer.tokenizer_json import (
    FILE_NAME,
    byte_level_json,
    read_byte_level,
    read_tokenizer_json,
)

MODEL_FILE_NAME = "tokenizer.model"
_BUILT_IN = ("gpt2", "r50k_base")
_HUB_PREFIX = "hf://"
_LARGEST = 256 << 20
_FILE_SUFFIXES = {".json", ".txt", ".bpe", ".tiktoken", ".model"}
_ahead: dict[str, Future[Tokenizer]] = {}
"""Tokenizers that are being loaded, until someone asks for them."""


def load_tokenizer(
    name_or_path: str | Path | None = None,
    *,
    vocab: str | Path | None = None,
    merges: str | Path | None = None,
    pattern: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> Tokenizer:
    """Load a tokenizer.

    `name_or_path` is one of, tried in this order:

    * a short name: gpt2 (built in), cl100k_base, o200k_base, p50k_base, r50k_base (fetched once);
      a folder of that name is reached as ./gpt2;
    * a file or folder on this machine, in any form that `local` knows: this never uses a network;
    * the same in an object store: s3://bucket/key;
    * a prefix: PREFIX_vocab.json and PREFIX_merges.txt exist;
    * a hub id, org/name or org/name@revision, if no folder `org` exists here; hf://org/name always.

    Args:
        vocab: A vocabulary file, together with `merges` and in place of `name_or_path`.
        pattern: How text is cut into words, for files that do not say it: a regular expression, or
            a short name for that tokenizer's pattern.
        special_tokens: Special tokens and their ids, for files that do not hold them.
    """
    options = Options(pattern=pattern, special_tokens=special_tokens)
    if vocab is not None or merges is not None:
        if vocab is None or merges is None or name_or_path is not None:
            raise TokenizerError("give a vocabulary and its merges together, and no other name")
        return _build(read_pair(Path(vocab), Path(merges), options), str(vocab), None)
    name = "" if name_or_path is None else str(name_or_path)
    if not name:
        raise TokenizerError("no tokenizer given", hint="give a name such as gpt2, or a path")
    if is_remote(name):
        with tempfile.TemporaryDirectory() as copies:
            content, folder = read_local(_copy_files(name, Path(copies)), options)
            return _build(content, name, folder)
    begun = _ahead.pop(name, None) if options == Options() else None
    return begun.result() if begun is not None else _load_named(name, options)


def load_ahead(name: str) -> None:
    """Begin to load a tokenizer of this machine: the next `load_tokenizer` of that name takes it.

    Most of the time goes into tables that native code builds, while Python has other things to do.
    """
    if name in _BUILT_IN or Path(name).exists():
        _ahead[name] = ThreadPoolExecutor(1).submit(_load_named, name, Options())


def _load_named(name: str, options: Options) -> Tokenizer:
    content, folder = _find(name, options)
    return _build(content, name, folder)


def load_definition(data: bytes, name: str, *, special_ids: SpecialIds | None = None) -> Tokenizer:
    """Load the definition that a store keeps, `Tokenizer.definition` and `definition_name`.

    The fingerprint is the same as before. The definition is the tokenizer's own file, which does
    not always say which tokens open and close documents: hand over the `special_ids` kept beside
    it, or they are found by well-known names.
    """
    content = ModelFile(data) if name.endswith(".model") else JsonFile(data)
    tokenizer = _build(content, name, None)
    return tokenizer if special_ids is None else tokenizer.with_special_ids(special_ids)


def tokenizer_from_bpe(bpe: ByteLevelBpe, name: str) -> Tokenizer:
    """Return a tokenizer for a byte-level BPE, as it comes out of training or another form."""
    return _build(bpe, name, None)


def _copy_files(url: str, folder: Path) -> Path:
    """Copy a tokenizer from an object store, with the small files beside it; return where it is."""
    root, _, name = url.rpartition("/")
    is_file = Path(name).suffix in _FILE_SUFFIXES
    root = root if is_file else url
    for info in list_objects(root):
        beside = info.path.removeprefix(root).strip("/")
        if Path(beside).suffix in _FILE_SUFFIXES and "/" not in beside and info.size < _LARGEST:
            (folder / beside).write_bytes(read_object(info.path))
    if is_file and not (folder / name).exists():
        raise TokenizerError(f"{url}: no such object, or too large for a tokenizer")
    return folder / name if is_file else folder


def _find(name: str, options: Options) -> tuple[Content, Path | None]:
    if name in _BUILT_IN:
        return gpt2(), None
    if name in ENCODINGS:
        encoding = ENCODINGS[name]
        data = fetch_ranks(name)
        return read_ranks(
            data, name, pattern=encoding.pattern, specials=encoding.special_tokens
        ), None
    if name.startswith(_HUB_PREFIX):
        return read_local(fetch_from_hub(name.removeprefix(_HUB_PREFIX)), options)
    path = Path(name).expanduser()
    if path.exists():
        return read_local(path, options)
    pair = byte_list_files(path)
    if pair is not None:
        return read_pair(*pair, options), None
    if _is_hub_id(name):
        return read_local(fetch_from_hub(name), options)
    raise TokenizerError(
        f"{name}: no such tokenizer; tried a short name ({', '.join(ENCODINGS)}), the path {path}, "
        f"and {path}_vocab.json with {path}_merges.txt"
        + ("" if looks_like_hub_id(name) else "; it does not look like a hub id (org/name) either"),
        hint="check the spelling; hf://org/name asks the hub whatever exists here",
    )


def _is_hub_id(name: str) -> bool:
    """Tell a hub id from a mistyped path: no file suffix, and no folder here of the first name."""
    if Path(name).suffix in _FILE_SUFFIXES or Path(name.partition("/")[0]).exists():
        return False
    return looks_like_hub_id(name)


def _build(content: Content, name: str, folder: Path | None) -> Tokenizer:
    if isinstance(content, ModelFile):
        return _build_sentencepiece(content.data, name)
    if isinstance(content, JsonFile):
        return _build_json(content.data, name, folder)
    spec = byte_level_json(content)
    data = msgspec.json.encode(spec)
    specials = {token.content: token.id for token in content.added if token.special}
    return Tokenizer(
        name=name,
        num_ids=content.num_ids,
        special_ids=find_special_ids(specials, {}, folder),
        fingerprint=fingerprint_byte_level(content),
        definition=data,
        definition_name=FILE_NAME,
        special_tokens=specials,
        encoder_library=choose_encoder(data, spec, path=name),
        decoder=byte_level_decoder(content),
        cuts=cut_rule(content.patterns, content.added),
    )


def _build_json(data: bytes, name: str, folder: Path | None) -> Tokenizer:
    spec = read_tokenizer_json(data, name)
    bpe = read_byte_level(spec)
    specials = {token.content: token.id for token in spec.added_tokens if token.special}
    return Tokenizer(
        name=name,
        num_ids=spec.num_ids,
        special_ids=find_special_ids(specials, spec.model.ids, folder),
        fingerprint=fingerprint_json(data) if bpe is None else fingerprint_byte_level(bpe),
        definition=data,
        definition_name=FILE_NAME,
        special_tokens=specials,
        encoder_library=choose_encoder(data, spec, path=name),
        decoder=json_decoder(spec, data) if bpe is None else byte_level_decoder(bpe),
        cuts=None if bpe is None else cut_rule(bpe.patterns, bpe.added),
    )


def _build_sentencepiece(data: bytes, name: str) -> Tokenizer:
    encoder = SentencePieceEncoder(data, path=name)
    return Tokenizer(
        name=name,
        num_ids=encoder.num_ids,
        special_ids=encoder.special_ids,
        fingerprint=fingerprint_sentencepiece(data),
        definition=data,
        definition_name=MODEL_FILE_NAME,
        special_tokens=encoder.control_ids,
        encoder_library=encoder,
        decoder=encoder,
        cuts=None,
    )
