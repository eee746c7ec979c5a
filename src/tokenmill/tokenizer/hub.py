"""Tokenizers that are not on this machine yet: OpenAI's ranks by name, the Hugging Face hub by id.

Nothing else in this package touches a network. What was fetched once is found again without one.
`HF_HUB_OFFLINE=1` forbids both.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from tokenmill.errors import MissingDependencyError, TokenizerError
from tokenmill.files import atomic_write
from tokenmill.tokenizer.patterns import ENCODINGS

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 30
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:@[\w./-]+)?")
_HUB_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "*.tiktoken",
)


def looks_like_hub_id(name: str) -> bool:
    """Tell whether a name has the form org/name or org/name@revision."""
    return _HUB_ID.fullmatch(name) is not None


def fetch_from_hub(hub_id: str) -> Path:
    """Return a folder with the tokenizer files of a hub repository, from the cache or the network.

    Access tokens, the cache and the endpoint are those of huggingface_hub (HF_TOKEN, HF_HOME, …).
    No code from the repository is ever run.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingDependencyError(
            "huggingface_hub", extra="hf", purpose=f"{hub_id}: a tokenizer from the hub"
        ) from error
    repository, _, revision = hub_id.partition("@")
    try:
        folder = huggingface_hub.snapshot_download(
            repository, revision=revision or None, allow_patterns=list(_HUB_FILES)
        )
    except (OSError, ValueError, huggingface_hub.errors.EntryNotFoundError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TokenizerError(
            f"{hub_id}: not in the hub's cache on this machine, and could not be fetched: {reason}",
            hint="check the name and the network; gated models need HF_TOKEN; "
            "or give the path of a tokenizer.json",
        ) from error
    return Path(folder)


def fetch_ranks(name: str) -> bytes:
    """Return the ranks of one of OpenAI's encodings, from a cache or the network.

    Looked for in this order, and checked by SHA-256 wherever they are: tiktoken's cache
    (TIKTOKEN_CACHE_DIR, DATA_GYM_CACHE_DIR, its default), our own cache, the network.
    """
    own = _cache_folder() / f"{name}.tiktoken"
    tried = [*_tiktoken_cache_files(name), own]
    for path in tried:
        if path.is_file():
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() == ENCODINGS[name].sha256:
                return data
            logger.warning("%s: not the published ranks of %s; passed over", path, name)
    data = _download(name, tried)
    try:
        own.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(own) as file:
            file.write(data)
    except OSError as error:  # a cache that cannot be written costs only time
        logger.warning("%s: not kept for the next time: %s", own, error)
    return data


def _download(name: str, tried: list[Path]) -> bytes:
    encoding = ENCODINGS[name]
    try:
        if is_offline():
            raise OSError("HF_HUB_OFFLINE is set")
        with urllib.request.urlopen(encoding.url, timeout=_TIMEOUT_SECONDS) as response:
            data = response.read()
    except OSError as error:  # URLError and time-outs among them
        places = ", ".join(str(path) for path in tried)
        raise TokenizerError(
            f"{name}: not on this machine (looked at {places}), "
            f"and {encoding.url} could not be fetched: {error}",
            hint=f"on a machine with a network fetch that address, then give the path of the file "
            f"({name}.tiktoken), or set TIKTOKEN_CACHE_DIR to its folder",
        ) from error
    if hashlib.sha256(data).hexdigest() != encoding.sha256:
        raise TokenizerError(
            f"{encoding.url}: {len(data)} bytes arrived, and they are not the published ranks",
            hint="try again; if it stays so, something on the way changes the file",
        )
    return data


def _tiktoken_cache_files(name: str) -> list[Path]:
    """Return where tiktoken keeps the file, under the SHA-1 of its address, or its plain name."""
    folders = [os.environ.get("TIKTOKEN_CACHE_DIR"), os.environ.get("DATA_GYM_CACHE_DIR")]
    if not any(folders):
        folders = [str(Path(tempfile.gettempdir()) / "data-gym-cache")]
    key = hashlib.sha1(ENCODINGS[name].url.encode()).hexdigest()
    names = (key, f"{name}.tiktoken")
    return [Path(folder) / file for folder in folders if folder for file in names]


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home) / "tokenmill"


def is_offline() -> bool:
    """Tell whether the user forbids the network, as huggingface_hub understands it."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
