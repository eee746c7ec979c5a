from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

WORDS = ["the", "cat", "sat on", "a mat", "naïve", "猫", "☃", "😀", "<|endoftext|>", "e=mc²"]


@pytest.fixture(scope="session")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer that loads in no time: the 256 bytes, an EOS and three merges."""
    folder = tmp_path_factory.mktemp("tokenizer")
    vocab = {str(byte): [byte] for byte in range(256)}
    vocab["256"] = list(b"<|endoftext|>")
    vocab["257"], vocab["258"], vocab["259"] = list(b"th"), list(b"at"), list(b"the")
    (folder / "tiny_vocab.json").write_text(json.dumps(vocab))
    (folder / "tiny_merges.txt").write_text("74 68\n61 74\n7468 65\n")
    return folder / "tiny_vocab.json"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of JSONL files with documents of very different lengths, some of them equal."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(5)
    texts = [" ".join(rng.choices(WORDS, k=rng.choice([1, 3, 20, 300]))) for _ in range(300)]
    texts[17] = texts[250] = "the same twice"
    texts[40] = ""
    for number in range(3):
        lines = [json.dumps({"text": text}) for text in texts[number::3]]
        (folder / f"part{number}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def documents(corpus: Path) -> list[tuple[int, int, str]]:
    """The documents of `corpus` as (source, position, text), read in the simplest way."""
    found: list[tuple[int, int, str]] = []
    for number, path in enumerate(sorted(corpus.iterdir())):
        position = 0
        for line in path.read_bytes().splitlines(keepends=True):
            found.append((number, position, json.loads(line)["text"]))
            position += len(line)
    return found
