from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tokenmill.errors import StorageError, TokenizerError
from tokenmill.tokenizer import (
    ByteLevelBpe,
    Tokenizer,
    load,
    load_ahead,
    load_definition,
    load_tokenizer,
)
from tokenmill.tokenizer.alphabet import bytes_to_text

pytestmark = pytest.mark.usefixtures("no_network")


@pytest.fixture
def files(tmp_path: Path, small_bpe: ByteLevelBpe, small_tokenizer: Tokenizer) -> Path:
    """A folder with the small tokenizer as vocab.json and merges.txt."""
    texts = {token_id: bytes_to_text(token) for token_id, token in small_bpe.tokens.items()}
    ids = {text: token_id for token_id, text in texts.items()} | {"<|endoftext|>": 2256}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    lines = [f"{texts[a]} {texts[b]}\n" for a, b in small_bpe.merges.tolist()]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(lines), encoding="utf-8")
    return tmp_path


def test_two_files_may_be_named_themselves(files: Path, small_tokenizer: Tokenizer):
    (files / "vocab.json").rename(files / "v1.json")
    (files / "merges.txt").rename(files / "m1")
    loaded = load_tokenizer(vocab=files / "v1.json", merges=str(files / "m1"))
    assert loaded.fingerprint == small_tokenizer.fingerprint
    with pytest.raises(TokenizerError, match="together"):
        load_tokenizer(vocab=files / "v1.json")
    with pytest.raises(TokenizerError, match="together"):
        load_tokenizer("gpt2", vocab=files / "v1.json", merges=files / "m1")
    with pytest.raises(TokenizerError, match="missing: no such file"):
        load_tokenizer(vocab=files / "v1.json", merges=files / "missing")


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt"])
def test_one_of_two_files_is_enough(name: str, files: Path, small_tokenizer: Tokenizer):
    assert load_tokenizer(files / name).fingerprint == small_tokenizer.fingerprint


def test_a_missing_partner_is_named(files: Path):
    (files / "merges.txt").unlink()
    with pytest.raises(TokenizerError, match=r"merges\.txt: no such file"):
        load_tokenizer(files / "vocab.json")


def test_in_a_folder_tokenizer_json_comes_first(files: Path, small_tokenizer: Tokenizer):
    content = small_tokenizer.definition.replace(b'"ignore_merges":false', b'"ignore_merges":true')
    (files / "tokenizer.json").write_bytes(content)
    assert load_tokenizer(files).definition == content


def test_a_vocabulary_with_the_word_model_is_still_a_vocabulary(files: Path):
    vocab = json.loads((files / "vocab.json").read_text())
    vocab["model"] = 2257
    (files / "vocab.json").write_text(json.dumps(vocab))
    assert load_tokenizer(files).special_tokens == {"<|endoftext|>": 2256, "model": 2257}


def test_tokens_that_the_configuration_adds_are_added(files: Path):
    decoder = {"2257": {"content": "    ", "special": False}, "2256": {"content": "<|endoftext|>"}}
    config = {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": decoder}
    (files / "tokenizer_config.json").write_text(json.dumps(config))
    (files / "added_tokens.json").write_text(json.dumps({"<|user|>": 2258, "    ": 2257}))
    tokenizer = load_tokenizer(files)
    assert tokenizer.special_tokens == {"<|endoftext|>": 2256, "<|user|>": 2258}
    assert 2257 in tokenizer.encode("x    y")


def test_files_of_another_kind_of_tokenizer_are_refused(files: Path):
    (files / "tokenizer_config.json").write_text('{"tokenizer_class": "Qwen2Tokenizer"}')
    with pytest.raises(TokenizerError, match="belong to a Qwen2Tokenizer"):
        load_tokenizer(files)
    assert load_tokenizer(files, pattern="cl100k_base").encode("x")


@pytest.mark.parametrize(
    ("names", "complaint"),
    [
        ([], "holds no tokenizer"),
        (["notes.txt", "vocab.json"], "holds no tokenizer"),
        (["a.tiktoken", "b.tiktoken"], "several tokenizers: a.tiktoken, b.tiktoken"),
        (["a_vocab.json", "a_merges.txt", "b_vocab.json", "b_merges.txt"], "several"),
    ],
)
def test_a_folder_without_one_clear_tokenizer_says_so(
    names: list[str], complaint: str, tmp_path: Path
):
    for name in names:
        (tmp_path / name).write_text("{}")
    with pytest.raises(TokenizerError, match=complaint):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "nothing",
        "no/such/path",
        "./org/name",
        "../x",
        "data/tokenizer.json",
        "data/vocab.bpe",
        "here/name",
        "/nowhere/tokenizer.json",
    ],
)
def test_a_name_that_is_nothing_lists_what_was_tried(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(name)
    assert "gpt2" in str(caught.value)
    assert f"{name.removeprefix('./')}_merges.txt" in str(caught.value)


def test_a_short_name_is_not_hidden_by_a_folder(
    files: Path, monkeypatch: pytest.MonkeyPatch, small_tokenizer: Tokenizer
):
    files.rename(files.parent / "gpt2")
    monkeypatch.chdir(files.parent)
    assert load_tokenizer("gpt2").num_ids == 50257
    assert load_tokenizer("./gpt2").fingerprint == small_tokenizer.fingerprint


def test_something_of_that_name_here_is_never_looked_for_on_the_hub(
    files: Path, monkeypatch: pytest.MonkeyPatch, small_tokenizer: Tokenizer
):
    (files.parent / "org").mkdir()
    files.rename(files.parent / "org" / "name")
    monkeypatch.chdir(files.parent)
    asked = []
    monkeypatch.setattr(load, "fetch_from_hub", asked.append)
    assert load_tokenizer("org/name").fingerprint == small_tokenizer.fingerprint
    assert asked == []


@pytest.mark.parametrize("name", ["org/name", "org/name@main", "hf://here/name"])
def test_a_hub_id_is_looked_for_on_the_hub(
    name: str, files: Path, monkeypatch: pytest.MonkeyPatch, small_tokenizer: Tokenizer
):
    (files / "special_tokens_map.json").write_text('{"pad_token": "<|endoftext|>"}')
    (files / "here").mkdir()
    monkeypatch.chdir(files)
    asked = []
    monkeypatch.setattr(load, "fetch_from_hub", lambda hub_id: asked.append(hub_id) or files)
    tokenizer = load_tokenizer(name)
    assert asked == [name.removeprefix("hf://")]
    assert tokenizer.name == name
    assert tokenizer.fingerprint == small_tokenizer.fingerprint
    assert tokenizer.pad_id == 2256


def test_an_unreadable_file_is_a_storage_error(tmp_path: Path):
    (tmp_path / "x.tiktoken").symlink_to(tmp_path / "x.tiktoken")
    with pytest.raises((StorageError, TokenizerError)):
        load_tokenizer(tmp_path / "x.tiktoken")


def test_a_file_of_no_known_form_is_refused(tmp_path: Path):
    (tmp_path / "x.bin").write_bytes(b"\x00\x01")
    with pytest.raises(TokenizerError, match="not a tokenizer file of a known form"):
        load_tokenizer(tmp_path / "x.bin")
    (tmp_path / "x.json").write_text('{"a": {}}')
    with pytest.raises(TokenizerError, match=r"not a tokenizer\.json"):
        load_tokenizer(tmp_path / "x.json")


def test_ranks_in_a_model_file_are_told_from_sentencepiece(tmp_path: Path, small_bpe: ByteLevelBpe):
    lines = [base64.b64encode(token) + b" %d\n" % i for i, token in small_bpe.tokens.items()]
    (tmp_path / "tokenizer.model").write_bytes(b"".join(lines))
    tokenizer = load_tokenizer(tmp_path, pattern="cl100k_base")
    assert tokenizer.encoder == "fastokens"
    with pytest.raises(TokenizerError, match="does not say how text is cut"):
        load_tokenizer(tmp_path)


def test_no_name_at_all_is_refused():
    with pytest.raises(TokenizerError, match="no tokenizer given"):
        load_tokenizer()
    with pytest.raises(TokenizerError, match="no tokenizer given"):
        load_tokenizer("")


@pytest.mark.parametrize("make", ["gpt2_tokenizer", "small_tokenizer"])
def test_a_definition_loads_back_as_the_same_tokenizer(make: str, request: pytest.FixtureRequest):
    tokenizer: Tokenizer = request.getfixturevalue(make)
    again = load_definition(tokenizer.definition, tokenizer.definition_name)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.special_ids == tokenizer.special_ids
    assert again.num_ids == tokenizer.num_ids
    assert again.definition == tokenizer.definition
    assert again.encode("It's <|endoftext|> é") == tokenizer.encode("It's <|endoftext|> é")


def test_a_tokenizer_that_is_loaded_ahead_is_taken_once():
    load_ahead("gpt2")
    first = load_tokenizer("gpt2")
    assert first.encode("hello") == load_tokenizer("gpt2").encode("hello")
    assert load_tokenizer("gpt2") is not first


def test_what_goes_wrong_ahead_is_raised_where_the_tokenizer_is_asked_for(tmp_path: Path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{")
    load_ahead(str(path))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_tokenizer(str(path))
