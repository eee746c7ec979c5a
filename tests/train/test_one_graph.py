"""The model as one compiled graph: no part of it falls back to Python."""

from __future__ import annotations

import dataclasses

import pytest
import small_models
import torch

from tokenmill.train.model import GPT
from tokenmill.train.model_settings import ComputeSettings

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize("core", ["modern", "gpt2"])
@pytest.mark.parametrize("with_documents", [False, True])
@pytest.mark.parametrize(
    "changes",
    [{}, {"loss_chunk_tokens": 20}, {"checkpoint_blocks": True}],
    ids=str,
)
def test_forward_and_backward_are_one_graph(
    core: str, with_documents: bool, changes: dict[str, object]
):
    torch._dynamo.reset()  # pyright: ignore[reportAttributeAccessIssue]
    compute = dataclasses.replace(ComputeSettings(), **changes)  # pyright: ignore[reportArgumentType]
    model = GPT(small_models.settings(core), compute)
    model.load_state_dict(small_models.model(core).state_dict())
    ids, labels = small_models.batch()
    documents = None
    if with_documents:
        document_ids = (torch.arange(32) // 10).expand(2, -1).int()
        documents = model.make_documents(document_ids, torch.arange(32).expand(2, -1).int() % 10)
    expected = model(ids, labels, documents=documents)
    expected.backward()
    gradients = small_models.gradients(model)
    compiled = torch.compile(model, fullgraph=True, dynamic=False, backend="aot_eager")
    loss = compiled(ids, labels, documents=documents)
    loss.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-4)
    for name, gradient in small_models.gradients(model).items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-4, atol=1e-5, msg=name)
