"""Products in 8 bits: scales and errors here, the products themselves on a GPU."""

from __future__ import annotations

import pytest
import torch

from tokenmill.errors import ConfigError
from tokenmill.train.float8 import check_float8, float8_linear, quantize


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
def test_a_scale_keeps_the_numbers_whatever_their_size(dtype: torch.dtype, size: float):
    torch.manual_seed(0)
    x = torch.randn(64, 64) * size
    small, scale = quantize(x, dtype)
    back = small.float() * scale
    steps = {torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3}[dtype]
    assert small.dtype == dtype
    assert ((back - x).abs() <= steps * x.abs() + 1e-3 * size).all()
    assert back.abs().max() == pytest.approx(x.abs().max().item(), rel=1e-4)


def test_zeros_stay_zeros():
    small, scale = quantize(torch.zeros(4), torch.float8_e4m3fn)
    assert not small.float().any()
    assert scale > 0


def test_what_cannot_be_multiplied_in_8_bits_is_said():
    with pytest.raises(ConfigError, match=r"divisible by 16, got a matrix \(32, 20\)"):
        float8_linear(torch.zeros(16, 20), torch.zeros(32, 20))
    with pytest.raises(ConfigError, match="and 3 tokens"):
        float8_linear(torch.zeros(3, 32), torch.zeros(32, 32))
    with pytest.raises(ConfigError, match="float8 needs a CUDA device, got cpu"):
        check_float8("cpu")
