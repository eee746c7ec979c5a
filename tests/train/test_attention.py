"""Attention: kernels, the boundaries of documents, and the cache."""

from __future__ import annotations

import pytest
import small_models
import torch

from tokenmill.dataset.torch import cu_seqlens
from tokenmill.errors import ConfigError
from tokenmill.train.attention import KeyValueCache, document_kernel, make_documents
from tokenmill.train.model_settings import ComputeSettings

CPU = torch.device("cpu")


def test_boundaries_are_rounded_up_and_end_with_the_end():
    ids = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 2, 3, -1]])
    documents = make_documents(ids, torch.zeros_like(ids), kernel="varlen")
    assert documents.boundaries is not None
    assert len(documents.boundaries) == 64
    starts = cu_seqlens(ids)
    assert documents.boundaries[: len(starts)].equal(starts)
    assert (documents.boundaries[len(starts) :] == ids.numel()).all()
    assert documents.boundaries.dtype == torch.int32
    many = torch.arange(100)[None]
    boundaries = make_documents(many, many, kernel="varlen").boundaries
    assert boundaries is not None
    assert len(boundaries) == 128
    assert make_documents(many, many, kernel="flex").boundaries is None


def test_the_kernel_for_documents_is_the_one_that_the_device_has():
    settings, auto = small_models.settings(), ComputeSettings()
    assert document_kernel(auto, settings, device="cpu") == "dense"
    assert document_kernel(auto, settings, device="cuda") == "flex"
    dropping = small_models.settings("gpt2", dropout=0.1)
    assert document_kernel(auto, dropping, device="cuda") == "dense"
    with pytest.raises(ConfigError, match="varlen needs a CUDA device, got cpu"):
        document_kernel(ComputeSettings(document_attention="varlen"), settings, device="cpu")
    with pytest.raises(ConfigError, match="flex has no dropout"):
        document_kernel(ComputeSettings(document_attention="flex"), dropping, device="cuda")


@pytest.mark.parametrize("core", ["modern", "gpt2"])
@pytest.mark.parametrize("pieces", [[32], [1] * 32, [5, 1, 20, 6]], ids=str)
def test_logits_with_a_cache_are_those_without(core: str, pieces: list[int]):
    model = small_models.model(core)
    ids, _ = small_models.batch()
    cache = KeyValueCache(model.settings, num_rows=2, dtype=torch.float32, device=CPU)
    with torch.no_grad():
        expected = model(ids)
        found = torch.cat([model(part, cache=cache) for part in ids.split(pieces, dim=1)], dim=1)
    assert cache.length == 32
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
