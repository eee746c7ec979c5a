"""Evaluation is over all tokens, however they are cut into batches and shared by ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_runs import make_store, rows, tiny

from tokenmill.dataset import IGNORED, Batch
from tokenmill.progress import silent
from tokenmill.store import open_store
from tokenmill.train.data import TrainData, open_data, token_lengths
from tokenmill.train.distributed import Ranks
from tokenmill.train.evaluate import Evaluation, evaluate
from tokenmill.train.model import GPT
from tokenmill.train.model_settings import ModelSettings
from tokenmill.train.run import train_model

SMALL = ModelSettings(num_layers=1, num_heads=2, width=16, context_length=32, vocab_size=257)


@cache
def opened(store: Path, out_dir: Path) -> TrainData:
    return open_data(tiny(store, out_dir), out_dir, report=silent)


@cache
def trained_model() -> GPT:
    """A model whose loss differs from token to token."""
    model = GPT(SMALL)
    with torch.no_grad():
        assert model.head is not None
        model.head.weight.normal_(generator=torch.Generator().manual_seed(1))
    return model.eval()


def loss_of(model: GPT) -> Any:
    return lambda batch: model(batch["token_ids"], batch["labels"])


@dataclass(frozen=True)
class Collecting(Ranks):
    """A rank that is alone in its process: it keeps what it would add to that of the others."""

    kept: list[torch.Tensor] = field(default_factory=list)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        self.kept.append(values.clone())
        return values


def measure(data: TrainData, *, batch_size: int, num_ranks: int) -> tuple[float, float]:
    """Return all nats and labels that the ranks find together."""
    assert data.validation is not None
    totals = torch.zeros(2, dtype=torch.float64)
    for rank in range(num_ranks):
        ranks = Collecting(rank=rank, world_size=num_ranks)
        evaluate(
            loss_of(trained_model()),
            data.validation,
            ranks=ranks,
            device=torch.device("cpu"),
            batch_size=batch_size,
        )
        totals += ranks.kept[0]
    nats, labels = totals.tolist()
    return nats, labels


def reference(store: Path) -> tuple[float, int]:
    """Return nats and labels of the validation split from its tokens alone, row by row."""
    split = open_store(store).split("val")
    ids = torch.from_numpy(split.read(0, split.num_tokens).astype(np.int64))
    nats, labels = 0.0, 0
    for start in range(0, len(ids) - 1, 32):
        row = ids[start : start + 33]
        with torch.no_grad():
            logits = trained_model()(row[None, :-1])[0]
        nats += float(torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum"))
        labels += len(row) - 1
    return nats, labels


@settings(max_examples=25, deadline=None)
@given(batch_size=st.integers(1, 300), num_ranks=st.integers(1, 5))
def test_the_loss_does_not_depend_on_batches_and_ranks(
    store: Path, tmp_path_factory: pytest.TempPathFactory, batch_size: int, num_ranks: int
):
    data = opened(store, tmp_path_factory.getbasetemp() / "evaluate")
    nats, labels = measure(data, batch_size=batch_size, num_ranks=num_ranks)
    expected_nats, expected_labels = reference_of(store)
    assert labels == expected_labels == val_tokens(store) - 1  # every token but the first
    assert nats == pytest.approx(expected_nats, rel=1e-6)


def val_tokens(store: Path) -> int:
    return open_store(store).split("val").num_tokens


@cache
def reference_of(store: Path) -> tuple[float, int]:
    return reference(store)


def test_bits_per_byte_are_nats_over_the_bytes_of_the_text(store: Path, tmp_path: Path):
    data = opened(store, tmp_path)
    assert data.validation is not None
    num_bytes = open_store(store).split("val").num_bytes
    assert data.validation.num_bytes == num_bytes
    fresh = GPT(SMALL).eval()  # its head is zero, so all ids are as likely as each other
    found = evaluate(
        loss_of(fresh),
        data.validation,
        ranks=Ranks(),
        device=torch.device("cpu"),
        batch_size=8,
    )
    assert found.loss == pytest.approx(math.log(257), rel=1e-6)
    assert found.perplexity == pytest.approx(257, rel=1e-4)
    assert found.bits_per_byte == pytest.approx(
        (val_tokens(store) - 1) * math.log2(257) / num_bytes, rel=1e-6
    )


def test_a_split_that_is_shorter_than_a_row_is_measured_whole(store: Path, tmp_path: Path):
    settings = tiny(store, tmp_path, model={"context_length": 8192}, batch_tokens=8192)
    validation = open_data(settings, tmp_path, report=silent).validation
    assert validation is not None
    labels = validation.read(0, validation.num_rows).labels
    assert labels.shape == (1, 8192)
    assert np.count_nonzero(labels != IGNORED) == val_tokens(store) - 1


def test_without_bytes_there_are_no_bits_per_byte():
    assert Evaluation(loss=1.0, bits_per_byte=None).bits_per_byte is None


def test_rows_that_are_held_out_have_the_bytes_of_their_labels(tmp_path: Path):
    store = make_store(tmp_path, val_ratio=0.0)
    data = opened(store, tmp_path / "run")
    validation = data.validation
    assert validation is not None
    assert data.plan.sources[0].hold_out == validation.num_rows > 0
    assert "held out" in data.notes[0]
    assert data.tokenizer is not None
    batch: Batch = validation.read(0, validation.num_rows)
    labels = batch.labels[batch.labels != IGNORED].tolist()
    text = data.tokenizer.decode_bytes([i for i in labels if i != data.tokenizer.eos_id])
    assert validation.num_bytes == len(text)
    assert token_lengths(data.tokenizer)[data.tokenizer.eos_id] == 0


def test_the_best_checkpoint_is_kept_and_found(store: Path, tmp_path: Path):
    from tokenmill.train.checkpoint import Checkpoints

    # So high a learning rate at the end that the last weights are not the best ones.
    wild = {"optimizer": {"lr": 0.02, "head_lr": 0.2}, "schedule": {"shape": "constant"}}
    train_model(tiny(store, tmp_path / "run", max_steps=20, eval_interval=2, keep_last=1, **wild))
    told = {row["step"]: row["loss"] for row in rows(tmp_path / "run", "eval")}
    best = min(told, key=lambda step: told[step])
    checkpoints = Checkpoints(tmp_path / "run", keep_last=1)
    assert checkpoints.find("best").step == best
    assert set(checkpoints.steps()) == {best, 20}
