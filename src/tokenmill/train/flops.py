"""How much arithmetic a token costs, and which share of a card's peak a run makes of it (MFU).

Counted are multiplications and additions of the products of matrices, three times the forward
pass: once forward, twice backward. What is computed a second time to save memory is not counted,
nor are norms, losses and optimizers: a share of the peak is about useful work.

Attention is counted as if each token saw the whole row, as PaLM and those after it do, so that
shares can be compared; `causal=True` counts what a causal model really needs, half of that.
"""

from __future__ import annotations

from tokenmill.train.model_settings import ModelSettings

PEAK_BFLOAT16 = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "GH200": 989e12,
    "A100": 312e12,
    "A800": 312e12,
    "H800": 989e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A10G": 70e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
"""Dense bfloat16 products with float32 sums, per second, by a part of the card's name."""


def flops_per_token(
    settings: ModelSettings, seq_len: int | None = None, *, causal: bool = False
) -> int:
    """Return the operations of training on one token in rows of `seq_len` (default: the longest).

    >>> flops_per_token(ModelSettings(vocab_size=50257)) // 10**6
    854
    """
    length = settings.context_length if seq_len is None else seq_len
    width = settings.width
    matrices = settings.num_layers * 12 * width**2  # 3 of queries, keys, values, 1 out, 8 between
    head = settings.padded_vocab_size * width
    seen = length / 2 if causal else length
    attention = settings.num_layers * 2 * width * seen  # with keys, then with values
    return 3 * round(2 * (matrices + head) + 2 * attention)


def peak_flops(device_name: str) -> float | None:
    """Return the bfloat16 peak of a card by its name, or None for one we do not know.

    >>> peak_flops("NVIDIA H100 80GB HBM3")
    989000000000000.0
    """
    found = [name for name in PEAK_BFLOAT16 if name in device_name]
    return PEAK_BFLOAT16[max(found, key=len)] if found else None


def mfu(
    tokens_per_second: float, flops: int, *, device_name: str, num_devices: int = 1
) -> float | None:
    """Return the share of the peak that `flops` for each token come to; None without a peak."""
    peak = peak_flops(device_name)
    return None if peak is None else tokens_per_second * flops / (peak * num_devices)
