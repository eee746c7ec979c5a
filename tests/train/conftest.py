"""What the tests of training share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_runs import make_store


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Compute on one thread: tests run in two processes already, and sums keep their order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give tests a store of some 30,000 byte tokens, with a validation split."""
    return make_store(tmp_path_factory.mktemp("train-data"))
