"""Training: the same tokenizer whatever ran it, continued after a kill, exact about its limits."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

import tokenmill
from tokenmill.errors import BadDocumentError, ConfigError, SettingsChangedError
from tokenmill.pipeline import train_tokenizer, training
from tokenmill.pipeline.count_words import CountReceipt, CountTask, add_up_part, count_unit
from tokenmill.pipeline.train_memory import MIN_MEMORY_MIB, MemoryPlan
from tokenmill.pipeline.word_files import NUM_PARTS
from tokenmill.progress import Event
from tokenmill.store import RUN_FOLDER
from tokenmill.tokenizer import WordCounts, can_compile, train_merges

PLAIN = {"vocab_size": 600, "held_out": 0.0, "workers": 1}


def documents(number: int = 400) -> list[str]:
    rng = random.Random(8)
    words = ["".join(rng.choices("etaoinsü", k=rng.randint(1, 8))) for _ in range(300)]
    return [" ".join(rng.choices(words, k=30)) + f", {i}!" for i in range(number)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{line}\n" for line in documents()))
    return path


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


def test_merges_are_those_of_the_words_of_all_documents(text: Path, tmp_path: Path):
    train_tokenizer(text, tmp_path / "out", **PLAIN)
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    from tokenmill.tokenizer.alphabet import text_to_bytes

    words = Counter(
        text_to_bytes(word) for line in documents() for word, _ in cut.pre_tokenize_str(line)
    )
    expected = train_merges(WordCounts.of(words), 600 - 257)
    lines = (tmp_path / "out" / "bytes_merges.txt").read_text().splitlines()
    assert lines == [f"{merge.left.hex()} {merge.right.hex()}" for merge in expected]


@pytest.fixture(params=[False, True], ids=["numpy", "compiled"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Compile for any input, or for none."""
    monkeypatch.setattr(training, "_WORTH_COMPILING", 0 if request.param else 1 << 60)
    return request.param


@pytest.mark.parametrize(
    "how",
    [
        {"unit_bytes": 9000},
        {"unit_bytes": 7777, "workers": 3},
        {"memory_mib": MIN_MEMORY_MIB, "unit_bytes": 15_000},
    ],
)
@pytest.mark.usefixtures("compiled")
def test_units_workers_and_memory_make_no_difference(
    how: dict[str, Any], text: Path, tmp_path: Path
):
    again = train_tokenizer(text, tmp_path / "b", **{**PLAIN, **how})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_WORTH_COMPILING", 1 << 60)
        once = train_tokenizer(text, tmp_path / "a", **PLAIN)
    assert once.fingerprint == again.fingerprint


def test_without_numba_training_is_the_same_and_says_what_is_missing(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(training, "_WORTH_COMPILING", 0)
    once = train_tokenizer(text, tmp_path / "a", **PLAIN)
    monkeypatch.setitem(sys.modules, "tokenmill.tokenizer.fast_words", None)  # as if it failed
    can_compile.cache_clear()
    events: list[Event] = []
    try:
        again = train_tokenizer(text, tmp_path / "b", report=events.append, **PLAIN)
    finally:
        can_compile.cache_clear()
    assert once.fingerprint == again.fingerprint
    assert any("tokenmill[fast]" in event.message for event in events)


@pytest.mark.usefixtures("compiled")
def test_tables_that_are_written_out_early_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{line[:20]}\n" for line in documents(25_000)))  # four batches
    once = train_tokenizer(text, tmp_path / "a", **PLAIN)
    receipts: list[CountReceipt] = []

    def count(task: CountTask) -> CountReceipt:
        receipts.append(count_unit(task))
        return receipts[-1]

    monkeypatch.setattr(training, "count_unit", count)
    monkeypatch.setattr(MemoryPlan, "table_bytes", 1000)  # every batch is written out
    monkeypatch.setattr(MemoryPlan, "sum_bytes", 10_000)  # parts are added up in rounds
    again = train_tokenizer(text, tmp_path / "b", **PLAIN)
    assert once.fingerprint == again.fingerprint
    assert len(receipts) == 1
    of_first_part = [segment for segment in receipts[0].segments if segment.part == 0]
    assert len(of_first_part) >= 4
    assert len(receipts[0].segments) >= 4 * NUM_PARTS


def test_other_formats_give_the_same_tokenizer(text: Path, tmp_path: Path):
    (tmp_path / "in").mkdir()
    with gzip.open(tmp_path / "in" / "a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"body": line}) + "\n" for line in documents())
    once = train_tokenizer(text, tmp_path / "a", **PLAIN)
    again = train_tokenizer(tmp_path / "in", tmp_path / "b", text_field="body", **PLAIN)
    assert once.fingerprint == again.fingerprint


def test_rare_words_go_when_memory_is_short_and_the_report_says_so(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(MemoryPlan, "word_bytes", 2500)
    first = train_tokenizer(text, tmp_path / "a", **PLAIN)
    other = train_tokenizer(text, tmp_path / "b", **PLAIN, unit_bytes=900)
    found = report(tmp_path / "a")
    assert found["lowest_word_count"] > 1
    assert found["num_words_left_out"] > 300
    assert first.fingerprint == other.fingerprint


@pytest.mark.parametrize("stage", [count_unit, add_up_part])
def test_interrupted_training_continues(
    stage: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    expected = train_tokenizer(text, tmp_path / "a", **PLAIN, unit_bytes=4000)
    calls: list[object] = []

    def fail_at_the_third(task: Any) -> Any:
        calls.append(task)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return stage(task)

    name = f"tokenmill.pipeline.training.{stage.__name__}"
    with monkeypatch.context() as patch:
        patch.setattr(name, fail_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            train_tokenizer(text, tmp_path / "b", **PLAIN, unit_bytes=4000)
    assert not (tmp_path / "b" / "tokenizer.json").exists()
    with monkeypatch.context() as patch:
        calls[:] = [None] * 3
        patch.setattr(name, fail_at_the_third)
        found = train_tokenizer(text, tmp_path / "b", **PLAIN, unit_bytes=4000)
    assert found.fingerprint == expected.fingerprint
    num_all = report(tmp_path / "b")["num_documents"] and len(calls) - 3
    assert 0 < num_all < (16 if stage is add_up_part else 30)


@pytest.mark.parametrize("stage", ["add_up_part", "train_merges"])
def test_counts_that_a_power_loss_cut_are_made_again(
    stage: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Counts are not synced to the disk: names may survive without their bytes."""
    settings = {**PLAIN, "unit_bytes": 4000, "held_out": 0.2}
    train_tokenizer(text, tmp_path / "a", **settings)

    def fail(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, stage, fail)
        with pytest.raises(KeyboardInterrupt):
            train_tokenizer(text, tmp_path / "b", **settings)
    run = tmp_path / "b" / RUN_FOLDER
    folder = run / ("units" if stage == "add_up_part" else "sums")
    counts = sorted(folder.glob("*.words"))
    assert len(counts) >= 5
    counts[0].write_bytes(counts[0].read_bytes()[:-10])
    counts[1].write_bytes(bytes(counts[1].stat().st_size))
    counts[2].with_suffix(".json").write_bytes(b"")
    held = max((run / "units").glob("*.held"), key=lambda path: path.stat().st_size)
    held.write_bytes(bytes(held.stat().st_size))
    train_tokenizer(text, tmp_path / "b", **settings)
    left, right = report(tmp_path / "a"), report(tmp_path / "b")
    for name in ("fingerprint", "held_out", "num_words", "num_word_occurrences"):
        assert left[name] == right[name]


def test_a_finished_run_is_not_repeated_and_other_settings_are_refused(text: Path, tmp_path: Path):
    train_tokenizer(text, tmp_path / "a", **PLAIN)
    before = (tmp_path / "a" / "report.json").read_bytes()
    train_tokenizer(text, tmp_path / "a", **PLAIN)
    assert (tmp_path / "a" / "report.json").read_bytes() == before
    with pytest.raises(SettingsChangedError, match="vocab_size: 600 then, 601 now"):
        train_tokenizer(text, tmp_path / "a", **{**PLAIN, "vocab_size": 601})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="not empty"):
        train_tokenizer(text, tmp_path / "other", **PLAIN)


def test_special_tokens_inside_documents_are_cut_out(tmp_path: Path):
    with_special, without = tmp_path / "a.txt", tmp_path / "b.txt"
    with_special.write_text("one two<|endoftext|>three four<|endoftext|>\n" * 9)
    without.write_text("one two\nthree four\n" * 9)
    first = train_tokenizer(with_special, tmp_path / "a", vocab_size=300, held_out=0.0)
    second = train_tokenizer(without, tmp_path / "b", vocab_size=300, held_out=0.0)
    assert first.fingerprint == second.fingerprint
    assert first.eos_id == 256


def test_text_that_gives_out_stops_early_and_says_so(tmp_path: Path):
    (tmp_path / "t.txt").write_text("ab ab ac\n")
    tokenizer = train_tokenizer(tmp_path / "t.txt", tmp_path / "a", vocab_size=5000, held_out=0.0)
    found = report(tmp_path / "a")
    assert found["stopped_early"] is True
    assert tokenizer.num_ids == found["vocab_size"] < 270


def test_documents_that_are_kept_back_measure_compression(text: Path, tmp_path: Path):
    train_tokenizer(text, tmp_path / "a", **{**PLAIN, "held_out": 0.2, "unit_bytes": 3000})
    found = report(tmp_path / "a")["held_out"]
    assert 40 < found["num_documents"] < 130
    assert found["bytes_per_token"] == pytest.approx(found["num_bytes"] / found["num_tokens"], 1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 256}, "need 257"),
        ({"special": ["<a>", "<a>"]}, "different"),
        ({"special": ["a"]}, "single byte"),
        ({"tie_break": "random"}, "tie_break"),
        ({"min_count": 0}, "min_count"),
        ({"held_out": 1.0}, "held_out"),
        ({"memory_mib": 100}, "memory_mib must be at least"),
    ],
)
def test_mistakes_are_named(settings: dict[str, Any], message: str, text: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=message):
        train_tokenizer(text, tmp_path / "a", **settings)


def test_an_empty_corpus_is_an_error(tmp_path: Path):
    (tmp_path / "t.txt").write_text("\n\n")
    with pytest.raises(ConfigError, match="no text"):
        train_tokenizer(tmp_path / "t.txt", tmp_path / "a")


def test_a_broken_document_stops_training_or_is_counted(tmp_path: Path):
    (tmp_path / "t.jsonl").write_text('{"text": "good one"}\n{"no": 1}\n')
    with pytest.raises(BadDocumentError, match="missing-text"):
        train_tokenizer(tmp_path / "t.jsonl", tmp_path / "a", vocab_size=300)
    train_tokenizer(tmp_path / "t.jsonl", tmp_path / "a", vocab_size=300, on_error="skip")
    assert report(tmp_path / "a")["num_rejected"] == 1


def test_the_name_is_exported():
    assert tokenmill.train_tokenizer is train_tokenizer
