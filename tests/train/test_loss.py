"""The loss in chunks equals the loss in one piece, gradients included."""

from __future__ import annotations

import pytest
import torch

from tokenmill.train.loss import chunked_cross_entropy_sum, cross_entropy_sum


@pytest.mark.parametrize("chunk_tokens", [1, 7, 20, 64])
@pytest.mark.parametrize("softcap", [0.0, 3.0])
@pytest.mark.parametrize("vocab_size", [40, 33])
def test_chunks_change_nothing(chunk_tokens: int, softcap: float, vocab_size: int):
    torch.manual_seed(0)
    hidden = torch.randn(20, 8, dtype=torch.float64).float().requires_grad_()
    weight = torch.randn(40, 8).requires_grad_()
    labels = torch.randint(0, vocab_size, (20,))
    labels[3] = labels[19] = -100
    plain = cross_entropy_sum(hidden @ weight.T, labels, softcap=softcap, vocab_size=vocab_size)
    (plain * 0.5).backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    expected = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    chunked = chunked_cross_entropy_sum(
        hidden, weight, labels, softcap=softcap, vocab_size=vocab_size, chunk_tokens=chunk_tokens
    )
    (chunked * 0.5).backward()
    torch.testing.assert_close(chunked, plain)
    torch.testing.assert_close(hidden.grad, expected[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(weight.grad, expected[1], rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        measured = chunked_cross_entropy_sum(
            hidden, weight, labels, softcap=softcap, vocab_size=vocab_size, chunk_tokens=7
        )
    torch.testing.assert_close(measured, plain.detach())


def test_no_label_gives_no_loss_and_no_gradient():
    hidden = torch.randn(4, 8, requires_grad=True)
    weight = torch.randn(10, 8, requires_grad=True)
    labels = torch.full((4,), -100)
    loss = chunked_cross_entropy_sum(hidden, weight, labels, vocab_size=10, chunk_tokens=2)
    loss.backward()
    assert loss.item() == 0.0
    assert hidden.grad is not None
    assert not hidden.grad.any()


def test_bfloat16_logits_are_summed_in_float32():
    torch.manual_seed(0)
    logits = torch.randn(64, 1000).bfloat16()
    labels = torch.randint(0, 1000, (64,))
    found = cross_entropy_sum(logits, labels, vocab_size=1000)
    expected = cross_entropy_sum(logits.double().float(), labels, vocab_size=1000)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
