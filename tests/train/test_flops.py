"""Arithmetic for a token, and shares of a peak."""

from __future__ import annotations

import pytest
import small_models
import torch
from torch.utils.flop_counter import FlopCounterMode

from tokenmill.train.flops import flops_per_token, mfu, peak_flops
from tokenmill.train.model_settings import ModelSettings


@pytest.mark.parametrize("core", ["modern", "gpt2"])
def test_the_count_is_what_torch_counts(core: str):
    model = small_models.model(core)
    ids, labels = small_models.batch(2)
    with (
        FlopCounterMode(display=False) as counter,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        model(ids, labels).backward()
    expected = flops_per_token(model.settings) * ids.numel()
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.01)


def test_gpt2_costs_what_others_say_it_costs():
    settings = ModelSettings(core="gpt2", num_heads=12, vocab_size=50257)
    by_hand = 6 * (85e6 - 0.07e6 + 50304 * 768) + 12 * 12 * 768 * 1024
    assert flops_per_token(settings) == pytest.approx(by_hand, rel=0.001)
    attention = flops_per_token(settings) - flops_per_token(settings, 0)
    assert flops_per_token(settings, causal=True) == flops_per_token(settings) - attention // 2


def test_peaks_are_found_by_the_longest_name():
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA A10G") == 70e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("cpu") is None
    assert mfu(1000.0, 10**9, device_name="cpu") is None
    assert mfu(989_000, 10**9, device_name="NVIDIA H200", num_devices=2) == pytest.approx(0.5)
