"""`--sample`: a small store whose documents come from all over the input, always the same ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from expected import expected_splits
from hypothesis import given
from hypothesis import strategies as st

import tokenmill
from tokenmill.cli import run
from tokenmill.errors import ConfigError
from tokenmill.inspector import store_statistics
from tokenmill.pipeline import sample
from tokenmill.sources import (
    SourceFile,
    SourceSettings,
    Unit,
    cut_units,
    find_files,
    read_unit,
)
from tokenmill.tokenizer import load_tokenizer

NUM_DOCUMENTS = 2000


@pytest.fixture(scope="module")
def long_text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files in which every document says where it stands."""
    folder = tmp_path_factory.mktemp("long")
    for number in range(4):
        lines = [
            f"file {number} line {i} {'word ' * (i % 13)}\n" for i in range(NUM_DOCUMENTS // 4)
        ]
        (folder / f"part{number}.txt").write_text("".join(lines))
    return folder


def expected_ids(long_text: Path, tiny_tokenizer: Path) -> list[int]:
    """Put the documents of evenly spread pieces in the shuffled order, in the plainest way."""
    tokenizer = load_tokenizer(str(tiny_tokenizer))
    settings = SourceSettings(places=(str(long_text),))
    files = find_files(settings)
    units = cut_units(files, unit_bytes=1000)
    probed = [(2 * i + 1) * len(units) // 32 for i in range(16)]
    texts = [[text for _, _, text in read(files, units[i], settings)] for i in probed]
    tokens = sum(len(tokenizer.encode(str(text))) for some in texts for text in some) / 16
    count = -(-4 * 4000 // int(tokens))
    assert 8 < count < len(units)
    places = [(2 * i + 1) * len(units) // (2 * count) for i in range(count)]
    documents = [document for i in places for document in read(files, units[i], settings)]
    (split,) = expected_splits(
        documents, tokenizer.encode, eos_id=tokenizer.eos_id, shuffle=0, max_tokens=4000
    ).values()
    return split.ids


def read(
    files: list[SourceFile], unit: Unit, settings: SourceSettings
) -> list[tuple[int, int, str]]:
    return [
        (batch.file, position, str(text))
        for batch in read_unit(files, unit, settings)
        for position, text in zip(batch.positions.tolist(), batch.texts, strict=True)
    ]


def few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a text of some kilobytes count as a large one."""
    monkeypatch.setattr(sample, "MIN_PIECES", 8)
    monkeypatch.setattr(sample, "FEWEST_PIECES", 4)


@given(total=st.integers(1, 500), count=st.integers(1, 600))
def test_pieces_are_spread_evenly(total: int, count: int):
    units = [Unit(index, ()) for index in range(total)]
    chosen = sample.spread(units, count)
    assert len(chosen) == min(count, total)
    assert [unit.index for unit in chosen] == list(range(len(chosen)))
    places = [(2 * i + 1) * total // (2 * count) for i in range(count)]
    if count < total:
        assert len(set(places)) == count
        gaps = np.diff([-1, *places, total])
        assert gaps.max() <= total / count + 1


def test_a_sample_of_a_small_input_is_its_shuffled_beginning(
    long_text: Path, tiny_tokenizer: Path, tmp_path: Path
):
    options = {"tokenizer": str(tiny_tokenizer), "max_tokens": 5000, "eos": True}
    drawn = tokenmill.tokenize(long_text, tmp_path / "a", sample=True, **options)  # pyright: ignore[reportArgumentType]
    whole = tokenmill.tokenize(long_text, tmp_path / "b", shuffle=0, **options)  # pyright: ignore[reportArgumentType]
    assert drawn.digest == whole.digest
    assert drawn.num_tokens == 5000
    other = tokenmill.tokenize(long_text, tmp_path / "c", sample=True, shuffle=1, **options)  # pyright: ignore[reportArgumentType]
    assert other.digest != drawn.digest


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sample_of_a_large_input_reads_little_of_it_from_everywhere(
    long_text: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
):
    few_pieces(monkeypatch)
    store = tokenmill.tokenize(
        long_text,
        tmp_path / "s",
        tokenizer=str(tiny_tokenizer),
        max_tokens=4000,
        sample=True,
        unit_bytes=1000,
        shard_tokens=100,
        workers=workers,
    )
    assert store.num_tokens == 4000
    assert store.splits["train"].num_shards == 1
    counts = store.metadata.counts
    num_read = store.num_documents + counts.num_dropped_documents
    assert store.num_documents < num_read < NUM_DOCUMENTS / 2
    documents = [store.document(i) for i in range(store.num_documents)]
    assert {document.source for document in documents} == {str(p) for p in long_text.iterdir()}
    quarters = {document.position * 4 // 20_000 for document in documents}
    assert {0, 1, 2} <= quarters
    assert store.read(0, 4000).tolist() == expected_ids(long_text, tiny_tokenizer)
    again = tokenmill.tokenize(
        long_text,
        tmp_path / "again",
        tokenizer=str(tiny_tokenizer),
        max_tokens=4000,
        sample=True,
        unit_bytes=1000,
        workers=3 - workers,
    )
    assert again.digest == store.digest


def test_enough_is_read_even_where_pieces_hold_little_text(
    tiny_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Records of a kilobyte with three characters of text."""
    few_pieces(monkeypatch)
    path = tmp_path / "thin.jsonl"
    record = {"noise": "x" * 1000}
    path.write_text("".join(json.dumps({**record, "text": f"{i:03}"}) + "\n" for i in range(900)))
    store = tokenmill.tokenize(
        path,
        tmp_path / "s",
        tokenizer=str(tiny_tokenizer),
        max_tokens=500,
        sample=True,
        unit_bytes=4000,
    )
    assert store.num_tokens == 500


def test_compressed_files_are_drawn_from(
    tiny_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    few_pieces(monkeypatch)
    monkeypatch.setattr(sample, "MOST_TEXT_BYTES", 20_000)
    for number in range(40):
        lines = "".join(f"file {number} line {i}\n" for i in range(100))
        (tmp_path / f"{number:02}.txt.gz").write_bytes(gzip.compress(lines.encode()))
    options = {"tokenizer": str(tiny_tokenizer), "unit_bytes": 1}
    store = tokenmill.tokenize(tmp_path, tmp_path / "s", max_tokens=900, sample=True, **options)  # pyright: ignore[reportArgumentType]
    assert store.num_tokens == 900
    used = [source for source in store.metadata.sources if source.num_documents]
    assert 4 <= len(used) < 40


def test_an_input_with_fewer_tokens_gives_all_of_them(
    long_text: Path, tiny_tokenizer: Path, tmp_path: Path
):
    store = tokenmill.tokenize(
        long_text,
        tmp_path / "s",
        tokenizer=str(tiny_tokenizer),
        max_tokens=10**9,
        sample=True,
    )
    assert store.num_documents == NUM_DOCUMENTS
    assert store.metadata.shard_tokens == 10**9


def test_a_sample_needs_a_number_of_tokens(long_text: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="sample needs max_tokens"):
        tokenmill.tokenize(long_text, tmp_path / "s", sample=True)
    assert not (tmp_path / "s").exists()


def test_the_statistics_are_printed_and_right(
    long_text: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    arguments = ["tokenize", str(long_text), "-o", str(tmp_path / "s"), "--sample"]
    arguments += ["--max-tokens", "3000", "--tokenizer", str(tiny_tokenizer), "--progress", "none"]
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert "ids in use" in shown
    assert run([*arguments, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["statistics"]
    store = tokenmill.open_store(tmp_path / "s")
    ids = store.read(0, store.num_tokens)
    lengths = sorted(len(store.document(i).ids) for i in range(store.num_documents))
    assert told["num_tokens"] == 3000 == len(ids)
    assert told["num_ids_used"] == len(set(ids.tolist()))
    assert told["shortest"] == lengths[0]
    assert told["longest"] == lengths[-1]
    assert told["median_length"] == lengths[(len(lengths) - 1) // 2]
    assert told["num_sources_used"] == told["num_sources"] == 4
    assert told["mean_length"] == round(3000 / len(lengths), 1)


def test_an_empty_store_has_statistics(tiny_tokenizer: Path, tmp_path: Path):
    (tmp_path / "empty.txt").write_text("\n")
    store = tokenmill.tokenize(
        tmp_path / "empty.txt", tmp_path / "s", tokenizer=str(tiny_tokenizer)
    )
    assert store_statistics(store).num_documents == 0
    assert "0 from 0 of 1 files" in store_statistics(store).text()
