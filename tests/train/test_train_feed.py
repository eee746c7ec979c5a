"""Batches gathered on the device are those of the loader, and those of the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import tiny

from tokenmill.dataset import Plan, Source
from tokenmill.errors import ConfigError
from tokenmill.train.distributed import Ranks
from tokenmill.train.feed import FeedOptions, LoaderFeed, ResidentFeed, open_feed
from tokenmill.train.run import train_model

NAMES = ("token_ids", "labels", "document_ids", "position_ids")


@pytest.fixture(scope="module")
def plan(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A mixture of a store and of a file with ids that signed 16-bit numbers do not hold."""
    path = tmp_path_factory.mktemp("ids") / "ids.npy"
    ids = np.random.default_rng(0).integers(0, 65_536, 5000).astype(np.uint16)
    ids[::37] = 7
    np.save(path, ids)
    sources = (
        Source(path=str(store), weight=0.5, hold_out=3),
        Source(path=str(path), weight=0.5, eos_id=7),
    )
    return Plan(sources=sources, seq_len=16, batch_size=12, seed=4, num_steps=400)


def options(start_step: int, batch_size: int, *, documents: bool = True) -> FeedOptions:
    return FeedOptions(
        device=torch.device("cpu"),
        start_step=start_step,
        batch_size=batch_size,
        documents=documents,
    )


@pytest.mark.parametrize(("rank", "world_size", "batch_size"), [(0, 1, 12), (1, 2, 3), (2, 3, 4)])
def test_both_feeds_give_the_batches_of_the_plan(
    plan: Plan, rank: int, world_size: int, batch_size: int
):
    ranks = Ranks(rank=rank, world_size=world_size, parallel="ddp")
    loader = LoaderFeed(plan, ranks, options(5, batch_size))
    resident = ResidentFeed(plan, ranks, options(5, batch_size))
    highest = 0
    for step in range(5, 25):
        expected = plan.batch(step, rank=rank, world_size=world_size)
        for feed in (loader, resident):
            parts = feed.next_step()
            assert [len(part.token_ids) for part in parts] == [batch_size] * (
                12 // world_size // batch_size
            )
            for name in NAMES:
                found = torch.cat([part[name] for part in parts])
                assert np.array_equal(found.numpy(), expected[name]), (name, step)
                assert found.dtype == torch.from_numpy(expected[name]).dtype
        highest = max(highest, int(expected.token_ids.max()))
    assert highest > 32_767
    assert loader.stall.seconds > 0
    assert resident.stall.seconds > 0
    loader.close()
    resident.close()


def test_documents_are_left_out_unless_they_are_wanted(plan: Plan):
    for kind in (LoaderFeed, ResidentFeed):
        feed = kind(plan, Ranks(), options(0, 12, documents=False))
        assert set(feed.next_step()[0]) == {"token_ids", "labels"}
        feed.close()


def test_training_from_either_feed_is_the_same(store: Path, tmp_path: Path):
    from test_train_resume import assert_weights

    for name in ("on", "off"):
        changes: dict[str, Any] = {"tokens_on_device": name, "document_masking": True}
        train_model(tiny(store, tmp_path / name, max_steps=3, **changes))
    assert_weights(tmp_path / "on", tmp_path / "off")


@pytest.mark.parametrize("changes", [{"packing": "best-fit"}, {"mask_boundaries": True}])
def test_rows_that_cannot_be_gathered_come_from_the_loader(store: Path, changes: dict[str, Any]):
    plan = Plan(sources=(Source(path=str(store)),), seq_len=16, batch_size=4, **changes)
    assert isinstance(open_feed(plan, Ranks(), options(0, 4)), LoaderFeed)
    with pytest.raises(ConfigError, match="tokens_on_device is on, but"):
        open_feed(plan, Ranks(), options(0, 4), tokens_on_device="on")
