"""`--output FILE.npy`: the ids of a store in one file, and nothing else left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tokenmill.cli import run
from tokenmill.errors import ConfigError
from tokenmill.pipeline import TokenizeSettings, tokenize, tokenize_file
from tokenmill.pipeline import single_file as module
from tokenmill.tokenizer import byte_level_bpe, export, load_tokenizer


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"Document {i} says hello, wörld.\n" for i in range(300)))
    return path


def settings(text: Path) -> TokenizeSettings:
    return TokenizeSettings(sources=(str(text),), unit_bytes=2000)


def test_the_file_holds_the_ids_of_the_store_and_stands_alone(text: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    output = tmp_path / "out" / "ids.npy"
    assert run(["tokenize", str(text), "-o", str(output), "--progress", "none"]) == 0
    store = tokenize(text, tmp_path / "store")
    assert [path.name for path in output.parent.iterdir()] == ["ids.npy"]
    ids = np.load(output, allow_pickle=False)
    assert ids.dtype == np.uint16
    assert np.array_equal(ids, store.read(0, store.num_tokens))


def test_a_file_that_exists_is_left_alone(text: Path, tmp_path: Path):
    output = tmp_path / "ids.npy"
    output.write_bytes(b"mine")
    with pytest.raises(ConfigError, match="exists already"):
        tokenize_file(settings(text), output)
    assert output.read_bytes() == b"mine"
    assert not module.work_folder(output).exists()


@pytest.mark.parametrize("step", ["publish_new", "sync_folder", "shutil.rmtree"])
def test_an_interrupted_run_continues(
    step: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output, expected = tmp_path / "ids.npy", tmp_path / "expected.npy"
    tokenize_file(settings(text), expected)

    def fail(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"tokenmill.pipeline.single_file.{step}", fail)
        with pytest.raises(KeyboardInterrupt):
            tokenize_file(settings(text), output)
    tokenize_file(settings(text), output)
    assert output.read_bytes() == expected.read_bytes()
    assert not module.work_folder(output).exists()


def test_no_documents_make_an_empty_file(tmp_path: Path):
    (tmp_path / "empty.txt").write_text("\n\n")
    tokenize_file(settings(tmp_path / "empty.txt"), tmp_path / "ids.npy")
    assert np.load(tmp_path / "ids.npy").tolist() == []


def test_one_file_cannot_hold_two_splits(text: Path, tmp_path: Path):
    assert run(["tokenize", str(text), "-o", str(tmp_path / "x.npy"), "--val-ratio", "0.1"]) == 2


def test_a_vocabulary_and_its_merges_are_a_tokenizer(text: Path, tmp_path: Path):
    for name, data in export(byte_level_bpe(load_tokenizer("gpt2")), "gpt2").items():
        (tmp_path / name).write_bytes(data)
    pair = ["--vocab", str(tmp_path / "vocab.json"), "--merges", str(tmp_path / "merges.txt")]
    output = ["-o", str(tmp_path / "a.npy"), "--progress", "none"]
    assert run(["tokenize", str(text), *output, *pair]) == 0
    tokenize_file(settings(text), tmp_path / "b.npy")
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    assert run(["tokenize", str(text), "-o", str(tmp_path / "c"), *pair[:2]]) == 2
