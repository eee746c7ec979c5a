"""Promises 1 and 2: same bytes whatever ran it; every document once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expected import expected_splits

import tokenmill
from tokenmill.store import verify

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "with bos": {"bos": True, "eos": True},
    "with val": {"val_ratio": 0.3},
    "with val documents": {"val_documents": 7},
    "shuffled": {"shuffle": 11},
    "shuffled with val": {"shuffle": 0, "val_ratio": 0.2},
    "cut": {"max_tokens": 5000},
    "cut with val": {"max_tokens": 7001, "val_ratio": 0.4},
    "cut and shuffled": {"max_tokens": 4003, "shuffle": 5, "val_ratio": 0.25},
    "cut with val documents": {"max_tokens": 6000, "val_documents": 20},
    "nothing around": {"eos": False},
}


@pytest.mark.parametrize("name", CASES)
def test_a_store_holds_exactly_the_expected_tokens(
    name: str, corpus: Path, documents: list, tiny_tokenizer: Path, tmp_path: Path
):
    settings = CASES[name]
    if settings.get("bos"):
        settings = {**settings, "tokenizer": _with_bos(tiny_tokenizer, tmp_path)}
    digests = set()
    for workers, unit_bytes, shard_tokens in (
        (1, 3000, 19_999),
        (3, 20_000, 19_999),
        (7, 1 << 30, 19_999),
    ):
        output = tmp_path / f"store{workers}"
        store = tokenmill.tokenize(
            corpus,
            output,
            **{
                "tokenizer": str(tiny_tokenizer),
                "workers": workers,
                "unit_bytes": unit_bytes,
                "shard_tokens": shard_tokens,
                **settings,
            },
        )
        digests.add(store.digest)
    assert len(digests) == 1
    _compare(store, documents, settings)
    assert verify(output, level="full").problems == ()


def _compare(store: tokenmill.Store, documents: list, settings: dict[str, Any]) -> None:
    tokenizer = store.tokenizer()
    rules = {k: v for k, v in settings.items() if k not in {"eos", "bos", "tokenizer"}}
    expected = expected_splits(
        documents,
        tokenizer.encode,
        eos_id=tokenizer.eos_id if settings.get("eos", True) else None,
        bos_id=tokenizer.bos_id if settings.get("bos") else None,
        **rules,
    )
    assert store.splits.keys() == expected.keys()
    for name, split in expected.items():
        found = store.splits[name]
        assert found.read(0, found.num_tokens).tolist() == split.ids
        docs = [found.document(i) for i in range(found.num_documents)]
        sources = [source.path for source in store.metadata.sources]
        rows = [(d.start + len(d.ids), sources.index(d.source), d.position) for d in docs]
        assert rows == split.docs


def _with_bos(tiny_tokenizer: Path, folder: Path) -> str:
    import json

    from tokenmill.tokenizer import load_tokenizer

    definition = json.loads(load_tokenizer(str(tiny_tokenizer)).definition)
    definition["added_tokens"].append(
        {**definition["added_tokens"][0], "id": 260, "content": "<s>", "special": True}
    )
    definition["model"]["vocab"]["<s>"] = 260
    path = folder / "tok" / "tokenizer.json"
    path.parent.mkdir()
    path.write_text(json.dumps(definition))
    (path.parent / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "<|endoftext|>"})
    )
    return str(path.parent)


def test_the_number_of_workers_and_the_size_of_units_do_not_show(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    digests = {
        tokenmill.tokenize(
            corpus,
            tmp_path / f"{workers}-{unit_bytes}",
            tokenizer=str(tiny_tokenizer),
            workers=workers,
            unit_bytes=unit_bytes,
            shard_tokens=40_000,
        ).digest
        for workers in (1, 2, 3, 7)
        for unit_bytes in (2000, 30_000, 10**9)
    }
    assert len(digests) == 1


def test_equal_documents_never_straddle_the_split(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    for ratio in (0.1, 0.5, 0.9):
        store = tokenmill.tokenize(
            corpus, tmp_path / f"{ratio}", tokenizer=str(tiny_tokenizer), val_ratio=ratio
        )
        texts = {
            name: {tuple(split.document(i).ids.tolist()) for i in range(split.num_documents)}
            for name, split in store.splits.items()
        }
        assert not texts["train"] & texts["val"]


def test_a_split_keeps_its_documents_when_the_corpus_grows(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    files = sorted(str(path) for path in corpus.iterdir())
    settings = {"tokenizer": str(tiny_tokenizer), "val_ratio": 0.3}
    before = tokenmill.tokenize(files[:1], tmp_path / "before", **settings).splits["val"]
    after = tokenmill.tokenize(files, tmp_path / "after", **settings).splits["val"]
    early = [before.document(i).ids.tolist() for i in range(before.num_documents)]
    late = [after.document(i).ids.tolist() for i in range(before.num_documents)]
    assert early == late


def test_dtype_follows_the_id_space(corpus: Path, tiny_tokenizer: Path, tmp_path: Path):
    store = tokenmill.tokenize(
        corpus, tmp_path / "wide", tokenizer=str(tiny_tokenizer), dtype="uint32"
    )
    assert store.dtype == np.uint32
    narrow = tokenmill.tokenize(corpus, tmp_path / "auto", tokenizer=str(tiny_tokenizer))
    assert narrow.dtype == np.uint16
    assert narrow.read(0, 500).tolist() == store.read(0, 500).tolist()
