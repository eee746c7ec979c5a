from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from process_table import children_of


@pytest.fixture
def children() -> Callable[[], list[int]]:
    """Give the worker processes of this test, not those of other tests."""
    before = set(children_of(os.getpid()))
    return lambda: [pid for pid in children_of(os.getpid()) if pid not in before]
