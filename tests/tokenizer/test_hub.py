from __future__ import annotations

import base64
import hashlib
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tokenmill.errors import MissingDependencyError, TokenizerError
from tokenmill.tokenizer import ByteLevelBpe, Tokenizer, hub, load_tokenizer
from tokenmill.tokenizer.hub import fetch_from_hub, fetch_ranks, looks_like_hub_id
from tokenmill.tokenizer.patterns import ENCODINGS, GPT2, Encoding


class Server:
    """A web server on this machine that gives out one file and counts how often."""

    def __init__(self, content: bytes) -> None:
        self.content, self.num_requests = content, 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.num_requests += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(server.content)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/small.tiktoken"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture(scope="module")
def ranks(small_bpe: ByteLevelBpe) -> bytes:
    lines = [base64.b64encode(token) + b" %d\n" % i for i, token in small_bpe.tokens.items()]
    return b"".join(lines)


@pytest.fixture
def server(ranks: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Serves the encoding `small`, with all caches in an empty folder."""
    running = Server(ranks)
    encoding = Encoding(
        pattern=GPT2,
        special_tokens={"<|endoftext|>": 2256},
        num_ranks=2256,
        url=running.url,
        sha256=hashlib.sha256(ranks).hexdigest(),
    )
    monkeypatch.setitem(ENCODINGS, "small", encoding)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "tiktoken"))
    for name in ("DATA_GYM_CACHE_DIR", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    yield running
    running.stop()


def test_ranks_are_fetched_once_and_then_found(
    server: Server, tmp_path: Path, small_tokenizer: Tokenizer
):
    first = load_tokenizer("small")
    assert (tmp_path / "cache" / "tokenmill" / "small.tiktoken").exists()
    second = load_tokenizer("small")
    assert server.num_requests == 1
    assert first.fingerprint == second.fingerprint == small_tokenizer.fingerprint
    assert first.eos_id == 2256


@pytest.mark.parametrize("by_address", [True, False])
def test_tiktokens_cache_is_used(by_address: bool, server: Server, tmp_path: Path, ranks: bytes):
    (tmp_path / "tiktoken").mkdir()
    name = hashlib.sha1(server.url.encode()).hexdigest() if by_address else "small.tiktoken"
    (tmp_path / "tiktoken" / name).write_bytes(ranks)
    assert fetch_ranks("small") == ranks
    assert server.num_requests == 0


def test_a_damaged_cache_is_passed_over(server: Server, tmp_path: Path, ranks: bytes):
    (tmp_path / "tiktoken").mkdir()
    (tmp_path / "tiktoken" / "small.tiktoken").write_bytes(ranks[:-1])
    assert fetch_ranks("small") == ranks
    assert server.num_requests == 1


def test_a_changed_download_is_refused_and_not_kept(server: Server, tmp_path: Path):
    server.content = server.content[:-1] + b"\x00"
    with pytest.raises(TokenizerError, match="not the published ranks"):
        load_tokenizer("small")
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_costs_only_time(
    server: Server, tmp_path: Path, ranks: bytes
):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert fetch_ranks("small") == ranks


def test_without_a_network_the_error_says_what_to_do(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(TokenizerError, match="HF_HUB_OFFLINE is set") as caught:
        load_tokenizer("small")
    assert str(tmp_path / "tiktoken") in str(caught.value)
    assert "small.tiktoken" in str(caught.value.hint)
    assert server.num_requests == 0
    monkeypatch.delenv("HF_HUB_OFFLINE")
    server.stop()
    with pytest.raises(TokenizerError, match="could not be fetched"):
        load_tokenizer("small")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai-community/gpt2", True),
        ("Qwen/Qwen2.5-0.5B@main", True),
        ("gpt2", False),
        ("a/b/c", False),
        ("./a/b", False),
        ("/a/b", False),
        ("~/a", False),
        ("a/", False),
        ("a b/c", False),
        ("s3://a/b", False),
    ],
)
def test_a_hub_id_has_one_slash_and_plain_names(name: str, expected: bool):
    assert looks_like_hub_id(name) is expected


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingDependencyError, match="huggingface_hub") as caught:
        fetch_from_hub("org/name")
    assert caught.value.hint == 'pip install "tokenmill[hf]"'


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub library, which is told not to use the network."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.mark.usefixtures("no_network")
def test_a_cached_repository_loads_offline(hub_cache: Path, small_tokenizer: Tokenizer):
    repository = hub_cache / "models--some-org--some-model"
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (snapshot / "tokenizer.json").write_bytes(small_tokenizer.definition)
    (snapshot / "tokenizer_config.json").write_text('{"bos_token": "<|endoftext|>"}')
    for name in (
        "some-org/some-model",
        "hf://some-org/some-model",
        f"some-org/some-model@{commit}",
    ):
        tokenizer = load_tokenizer(name)
        assert tokenizer.fingerprint == small_tokenizer.fingerprint
        assert (tokenizer.bos_id, tokenizer.eos_id) == (2256, 2256)


@pytest.mark.usefixtures("no_network", "hub_cache")
def test_a_repository_that_cannot_be_reached_is_a_clear_error():
    with pytest.raises(TokenizerError, match="other-org/name: not in the hub's cache") as caught:
        load_tokenizer("other-org/name")
    assert "HF_TOKEN" in str(caught.value.hint)


def test_the_hub_sees_the_users_token_and_only_tokenizer_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    huggingface_hub = pytest.importorskip("huggingface_hub")
    calls = []

    def snapshot_download(repository: str, **options: object) -> str:
        calls.append((repository, options))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert fetch_from_hub("org/name@v1") == tmp_path
    ((repository, options),) = calls
    assert (repository, options["revision"]) == ("org/name", "v1")
    assert "token" not in options  # the library's own rule, HF_TOKEN first
    assert not any(pattern.endswith((".py", "*")) for pattern in options["allow_patterns"])


def test_offline_is_understood_as_the_hub_library_does(monkeypatch: pytest.MonkeyPatch):
    for value, expected in [("1", True), ("true", True), ("0", False), ("", False)]:
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
        assert hub.is_offline() is expected
