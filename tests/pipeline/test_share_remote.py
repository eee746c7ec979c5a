"""Shares of a run that writes to an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

import tokenmill
from tokenmill.pipeline import (
    TokenizeSettings,
    parse_share,
    run_status,
    tokenize_corpus,
    tokenize_share,
)

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ceph")]


def test_shares_make_the_parts_of_a_store_at_s3(corpus: Path, tiny_tokenizer: Path, s3_place: str):
    settings = TokenizeSettings(
        sources=(str(corpus),), tokenizer=str(tiny_tokenizer), unit_bytes=50_000, workers=1
    )
    output = f"{s3_place}/store"
    made = [tokenize_share(settings, output, parse_share(f"{k}/2")) for k in (0, 1)]
    status = run_status(output)
    assert status.num_units_done == status.num_units == sum(share.num_units for share in made) > 2
    assert (status.num_shares_done, status.state) == (2, "stopped")
    digest = tokenize_corpus(settings, output).metadata.digest
    here = corpus.parent / "here"
    assert (
        digest
        == tokenmill.tokenize(corpus, here, tokenizer=str(tiny_tokenizer), unit_bytes=50_000).digest
    )
