"""A store that a catalog names opens by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

import tokenmill
from tokenmill.cli import run
from tokenmill.dataset import get_dataset
from tokenmill.errors import ConfigError


def test_a_name_in_the_catalog_opens_the_store(tmp_path: Path):
    (tmp_path / "text.txt").write_text("".join(f"Line {i} of a text.\n" for i in range(200)))
    store = tokenmill.tokenize(tmp_path / "text.txt", tmp_path / "store")
    catalog = tmp_path / "catalog.json"
    assert run(["catalog", "add", "lines", str(tmp_path / "store"), "--file", str(catalog)]) == 0
    named = get_dataset("lines", 16, output="numpy", catalog=catalog)
    assert named.num_tokens() == store.num_tokens
    with pytest.raises(ConfigError, match="no dataset 'line'"):
        get_dataset("line", 16, output="numpy", catalog=catalog)
