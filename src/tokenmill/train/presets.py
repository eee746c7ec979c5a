"""Settings to begin with, as plain values: what `--preset` names.

Anything here is overruled by a file, the environment, a flag or --set.
"""

from __future__ import annotations

from typing import Any, Final

DEFAULT_PRESET: Final = "laptop"

PRESETS: Final[dict[str, dict[str, Any]]] = {
    # A text of about a megabyte on two cores, in under three minutes.
    "laptop": {
        "model": {"num_layers": 4, "num_heads": 4, "width": 128, "context_length": 128},
        "tokenizer": "bpe",
        "bpe_vocab_size": 1024,
        "batch_tokens": 2048,
        "max_steps": 600,
        "eval_interval": 150,
        "checkpoint_interval": 150,
        "schedule": {"shape": "trapezoid", "warmup_steps": 20, "cooldown_share": 0.6},
        "optimizer": {"momentum_warmup_steps": 50},
    },
    # TinyStories, some 500 million tokens: half an hour on one GPU.
    "tinystories": {
        "model": {"num_layers": 8, "num_heads": 4, "width": 512, "context_length": 512},
        "tokenizer": "bpe",
        "bpe_vocab_size": 8192,
        "batch_tokens": 131_072,
        "max_tokens": 500_000_000,
        "eval_interval": 500,
        "checkpoint_interval": 500,
        "val_ratio": 0.005,
        "document_masking": True,
        "schedule": {"shape": "trapezoid", "warmup_steps": 50, "cooldown_share": 0.4},
    },
    # GPT-2 (124M) as published, trained as its reproductions are: 10 thousand million tokens.
    "gpt2": {
        "model": {
            "core": "gpt2",
            "num_layers": 12,
            "num_heads": 12,
            "width": 768,
            "context_length": 1024,
            "vocab_size": 50_304,
        },
        "tokenizer": "gpt2",
        "batch_tokens": 524_288,
        "max_tokens": 10_000_000_000,
        "eval_interval": 500,
        "checkpoint_interval": 1000,
        "val_ratio": 0.0005,
        "optimizer": {"optimizer": "adamw", "lr": 6e-4, "epsilon": 1e-8},
        "schedule": {"shape": "cosine", "warmup_steps": 700, "final_factor": 0.1},
    },
    # OpenWebText with a BPE of 32 thousand ids: the model for an hour and a half on one GPU.
    "owt-90m": {
        "model": {"num_layers": 12, "num_heads": 6, "width": 768, "context_length": 512},
        "tokenizer": "bpe",
        "bpe_vocab_size": 32_000,
        "batch_tokens": 262_144,
        "max_tokens": 3_000_000_000,
        "eval_interval": 1000,
        "checkpoint_interval": 2000,
        "val_ratio": 0.0005,
        "schedule": {"shape": "trapezoid", "warmup_steps": 100, "cooldown_share": 0.45},
    },
}
