"""Whole runs on a GPU: the same batches, a batch size found by trying, and a bitwise resume.

pytest -m gpu tests/train/test_train_on_gpu.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_train_resume import assert_same_bits
from tiny_runs import rows, stop_at, tiny

from tokenmill.dataset import Plan, Source
from tokenmill.errors import Interrupted
from tokenmill.train.distributed import Ranks
from tokenmill.train.feed import FeedOptions, ResidentFeed, open_feed
from tokenmill.train.run import train_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # a compiler may speak of itself
]
GPU: dict[str, Any] = {"device": "cuda", "compile": "off"}


def test_tokens_on_the_gpu_give_the_batches_of_the_plan(store: Path):
    plan = Plan(sources=(Source(path=str(store)),), seq_len=16, batch_size=12, seed=4)
    options = FeedOptions(
        device=torch.device("cuda", 0), start_step=3, batch_size=4, documents=True
    )
    feed = open_feed(plan, Ranks(), options)
    assert isinstance(feed, ResidentFeed)
    for step in range(3, 20):
        parts = feed.next_step()
        for name, expected in plan.batch(step).items():
            found = torch.cat([part[name] for part in parts]).cpu().numpy()
            assert np.array_equal(found, expected), name


def test_a_batch_size_that_fits_is_found_and_remembered(store: Path, tmp_path: Path):
    settings = tiny(store, tmp_path / "run", batch_size="auto", max_steps=3, **GPU)
    train_model(settings)
    found = json.loads((tmp_path / "run" / "batch_size.json").read_text())
    assert found["batch_size"] == 8
    assert found["device"] == torch.cuda.get_device_name()


@pytest.mark.parametrize("tokens_on_device", ["on", "off"])
def test_a_run_on_a_gpu_continues_bitwise_where_asked(
    store: Path, tmp_path: Path, tokens_on_device: str
):
    changes = {**GPU, "deterministic": True, "tokens_on_device": tokens_on_device}
    train_model(tiny(store, tmp_path / "straight", **changes))
    settings = tiny(store, tmp_path / "run", **changes)
    with pytest.raises(Interrupted):
        train_model(settings, report=stop_at(6))
    train_model(settings)
    assert_same_bits(tmp_path / "straight", tmp_path / "run")


def test_a_compiled_run_on_a_gpu_learns_as_one_on_the_host(store: Path, tmp_path: Path):
    train_model(tiny(store, tmp_path / "gpu", device="cuda", compile="on", ema=0.5))
    train_model(tiny(store, tmp_path / "host", ema=0.5))
    losses = [[row["loss"] for row in rows(tmp_path / name, "eval")] for name in ("gpu", "host")]
    assert losses[0] == pytest.approx(losses[1], rel=0.03)
    assert rows(tmp_path / "gpu", "train")[-1]["stall"] >= 0
