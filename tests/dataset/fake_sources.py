"""Sources that exist in numbers alone: token i of a source has the id i.

The path of a source is the number of its tokens, so that plans over any sizes cost nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tokenmill.dataset.batch import Batch
from tokenmill.dataset.plan import Plan
from tokenmill.dataset.plan_settings import Source, Stage
from tokenmill.dataset.rows import Accounting, DocumentSpan

DOCUMENT_TOKENS = 7


def source(num_tokens: int, name: str, weight: float | None = None, **fields: Any) -> Source:
    return Source(path=str(num_tokens), name=name, weight=weight, **fields)


weights = st.one_of(st.integers(1, 5).map(float), st.floats(0.01, 1))


@st.composite
def plans(draw: st.DrawFn, max_batch: int = 9) -> Plan:
    """Plans over one to three small sources, most with a stage."""
    names = "abc"[: draw(st.integers(1, 3))]
    sources = [source(draw(st.integers(13, 90)), name, draw(weights)) for name in names]
    changed = {name: draw(weights) for name in names}
    stage = st.builds(Stage, from_step=st.integers(1, 12), weights=st.just(changed))
    stages = draw(st.one_of(st.just(()), st.tuples(stage)))
    return fake_plan(
        sources=sources,
        seq_len=draw(st.integers(1, 12)),
        batch_size=draw(st.integers(1, max_batch)),
        seed=draw(st.integers(0, 3)),
        stages=stages,
    )


class FakeRows:
    """Rows cut from the stream; all documents but the last have seven tokens."""

    dtype = np.dtype(np.uint16)

    def __init__(self, num_tokens: int, seq_len: int) -> None:
        self.num_tokens = num_tokens
        self.seq_len = seq_len
        self.num_rows = (num_tokens - 1) // seq_len
        self.num_documents = -(-num_tokens // DOCUMENT_TOKENS)

    def read(self, indices: NDArray[np.int64]) -> Batch:
        assert ((indices >= 0) & (indices < self.num_rows)).all()
        tokens = indices[:, None] * self.seq_len + np.arange(self.seq_len)
        documents = tokens // DOCUMENT_TOKENS
        starts = np.maximum(documents * DOCUMENT_TOKENS, tokens[:, :1])
        return Batch(
            token_ids=tokens,
            labels=tokens + 1,
            document_ids=(documents - documents[:, :1]).astype(np.int32),
            position_ids=(tokens - starts).astype(np.int32),
        )

    def documents(self, index: int) -> list[DocumentSpan]:
        first, stop = index * self.seq_len, (index + 1) * self.seq_len
        spans: list[DocumentSpan] = []
        for document in range(first // DOCUMENT_TOKENS, (stop - 1) // DOCUMENT_TOKENS + 1):
            start = max(first, document * DOCUMENT_TOKENS)
            spans.append(
                DocumentSpan(
                    document=document,
                    start=start,
                    stop=min(stop, (document + 1) * DOCUMENT_TOKENS),
                    offset=start - first,
                )
            )
        return spans

    def rows_of(self, document: int) -> NDArray[np.int64]:
        start = document * DOCUMENT_TOKENS
        last = min(start + DOCUMENT_TOKENS, self.num_tokens) - 1
        rows = np.arange(start // self.seq_len, last // self.seq_len + 1)
        return rows[rows < self.num_rows]

    def accounting(self) -> Accounting:
        num_used = self.num_rows * self.seq_len + 1
        return Accounting(
            num_rows=self.num_rows,
            seq_len=self.seq_len,
            num_tokens=self.num_tokens,
            num_used=num_used,
            num_dropped=self.num_tokens - num_used,
            num_truncated=0,
            num_repeated=0,
            num_padded=0,
            num_masked=0,
        )


class FakeSources:
    """Stands in for `OpenSources`."""

    def rows(self, source: Source, seq_len: int) -> FakeRows:
        return FakeRows(int(source.path), seq_len)

    def tokens(self, source: Source) -> FakeRows:
        return FakeRows(int(source.path), 1)

    def digest(self, source: Source) -> str:
        return f"sha256:{int(source.path):064x}"


def fake_plan(**fields: Any) -> Plan:
    plan = Plan(**fields)
    plan.__dict__["opened"] = FakeSources()
    return plan
