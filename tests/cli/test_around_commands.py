"""fetch, split, consolidate and catalog as people type them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tokenmill.cli import run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "wiki"
    for name in ("en", "de"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a.jsonl").write_text(f'{{"body": "text in {name}"}}\n')
    flags = ["--corpus", "en", "--corpus", "de", "--separation", "data_dirs"]
    arguments = ["describe", str(folder), "--no-ask", "--content-field", "body", *flags]
    assert run(arguments) == 0
    return folder


def tokenize(*arguments: str) -> int:
    return run([*arguments, "--progress", "none", "--json"])


def test_a_catalog_names_raw_data_and_stores(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    catalog, store = str(tmp_path / "shared" / "catalog.json"), str(tmp_path / "store")
    assert run(["catalog", "add", "wiki", str(data), "--file", catalog]) == 0
    capsys.readouterr()
    assert tokenize("--catalog", catalog, "tokenize", "wiki:en", "-o", store) == 0
    assert json.loads(capsys.readouterr().out)["num_documents"] == 1
    assert run(["--catalog", catalog, "catalog", "add", "wiki-gpt2", store]) == 0
    assert run(["--catalog", catalog, "catalog", "list"]) == 0
    shown = capsys.readouterr().out
    assert f"wiki       text  {data} [en, de]" in shown
    assert store in shown
    assert run(["catalog", "show", "wiki-gpt2", "--file", catalog, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tokenized_info"]["tokenizer"] == "gpt2"
    assert told["dataset_path"] == store
    assert run(["catalog", "show", "wikki", "--file", catalog]) == 2
    assert "did you mean 'wiki'" in capsys.readouterr().err


def test_a_catalog_comes_from_a_config_file_or_the_environment(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    catalog = str(tmp_path / "catalog.json")
    assert run(["catalog", "add", "wiki", str(data), "--file", catalog]) == 0
    (tmp_path / "run.yaml").write_text(f"catalog: {catalog}\n")
    config = str(tmp_path / "run.yaml")
    assert tokenize("tokenize", "wiki", "-o", str(tmp_path / "a"), "--config", config) == 0
    assert tokenize("tokenize", "wiki", "-o", str(tmp_path / "b")) == 2
    monkeypatch.setenv("TOKENMILL_CATALOG", catalog)
    assert tokenize("tokenize", "wiki", "-o", str(tmp_path / "c")) == 0
    assert run(["catalog", "list"]) == 0
    capsys.readouterr()


def test_the_place_of_the_catalog_is_no_part_of_the_content(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name in ("one.json", "two.json"):
        assert run(["catalog", "add", "wiki", str(data), "--file", str(tmp_path / name)]) == 0
    store = str(tmp_path / "store")
    one, two = str(tmp_path / "one.json"), str(tmp_path / "two.json")
    assert tokenize("--catalog", one, "tokenize", "wiki", "-o", store) == 0
    capsys.readouterr()
    assert tokenize("--catalog", two, "tokenize", "wiki", "-o", store) == 0
    assert json.loads(capsys.readouterr().out)["was_complete"] is True


def test_a_catalog_must_be_named(capsys: pytest.CaptureFixture[str]):
    assert run(["catalog", "list"]) == 2
    assert "TOKENMILL_CATALOG" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--skip-validation", "--skip_validation", None])
def test_both_spellings_of_the_flag_are_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str | None
):
    np.save(tmp_path / "train_000000.npy", np.arange(16, dtype=np.uint16))
    arguments = ["consolidate", str(tmp_path), "--seq-len", "4", "--json", "--progress", "none"]
    assert run([*arguments, *([flag] if flag else [])]) == 0
    (split,) = json.loads(capsys.readouterr().out)["splits"]
    golden = "64a240d34d0c29ec867f653721a1532de6e665e602e7c03e0b853c9ef3094126"
    assert split["tokens_sha256"] == golden
    assert split["num_samples"] == 4


def test_consolidate_says_what_it_made_and_what_is_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    np.save(tmp_path / "train_000000.npy", np.arange(18, dtype=np.uint16))
    arguments = ["consolidate", str(tmp_path), "--seq-len", "4", "--progress", "none"]
    assert run([*arguments, "--delete-shards"]) == 0
    shown = capsys.readouterr().out
    assert "4 samples of 4 tokens" in shown
    assert "the last 2 tokens make no whole sample" in shown
    assert "1 shards were deleted" in shown
    assert run(arguments) == 0
    assert "complete: nothing was left to write" in capsys.readouterr().out
    assert run(["verify", str(tmp_path), "--level", "full"]) == 0
    assert run([*arguments[:3], "8"]) == 2
    assert "seq_len: 4 then, 8 now" in capsys.readouterr().err
    data = bytearray((tmp_path / "tokens.bin").read_bytes())
    data[3] ^= 1
    (tmp_path / "tokens.bin").write_bytes(data)
    assert run(["verify", str(tmp_path), "--level", "full"]) == 3


def test_split_and_fetch_speak_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "input.txt"
    path.write_text("naïve 猫")
    assert run(["split", str(path), "--ratio", "0.5", "-o", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["num_train"], told["num_val"]) == (3, 4)
    assert run(["fetch", "http://host/x", "-o", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["was_present"] is True
    assert run(["fetch", "--list"]) == 0
    assert "tinyshakespeare" in capsys.readouterr().out
    assert run(["fetch"]) == 2
    assert run(["fetch", "no-such-text"]) == 2
    assert run(["split", str(path), "--by", "documents", "--ratio", "2", "-o", "x"]) == 2


def test_a_split_of_a_folder_is_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("train.txt", "val.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    store = str(tmp_path / "store")
    assert tokenize("tokenize", str(tmp_path), "-o", store, "--split", "val") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["num_documents"] == 1
    assert told["settings"]["split"] == "val"
