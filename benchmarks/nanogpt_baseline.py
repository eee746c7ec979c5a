"""The baseline of `train_gpu.py`: GPT-2's model and the training loop that most people start from.

A plain loop in the manner of nanoGPT, written for this comparison: a memory-mapped file of ids,
random windows, automatic mixed precision in bf16, `torch.compile`, fused AdamW, cosine schedule.
It prints JSON lines: one for each evaluation, and one with the rate at the end.

    python benchmarks/nanogpt_baseline.py train.bin val.bin --batch-size 64 --steps 800
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, CONTEXT, VOCABULARY = 12, 12, 768, 1024, 50304


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a norm and around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, bias=False)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.attention_out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm2 = nn.LayerNorm(WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after this block."""
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(WIDTH, dim=2)
        shape = (rows, length, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(y.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Baseline(nn.Module):
    """GPT-2 of 124 million parameters, head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = (2 * LAYERS) ** -0.5 if name.endswith(("out.weight", "down.weight")) else 1
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        return functional.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))


def main() -> None:
    """Train for some steps and print what was measured."""
    parser = argparse.ArgumentParser(description="Train GPT-2 with a plain loop.")
    parser.add_argument("train", type=Path)
    parser.add_argument("val", type=Path)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warm-steps", type=int, default=10, help="not counted in the rate")
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--warm-up", type=int, default=100, help="steps of rising learning rate")
    parser.add_argument("--eval-every", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(1337)
    torch.set_float32_matmul_precision("high")
    model = Baseline().cuda()
    optimizer = _optimizer(model, options.lr)
    compiled = torch.compile(model)
    train = np.memmap(options.train, dtype=np.uint16, mode="r")
    val = np.memmap(options.val, dtype=np.uint16, mode="r")
    rng = np.random.default_rng(1337)
    started, spent_on_evaluation = time.perf_counter(), 0.0
    batch = _random_batch(train, rng, options.batch_size)
    for step in range(options.steps):
        if step == options.warm_steps:
            torch.cuda.synchronize()
            started, spent_on_evaluation = time.perf_counter(), 0.0
        for group in optimizer.param_groups:
            group["lr"] = options.lr * _schedule(step, options.steps, options.warm_up)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = compiled(*batch)
        batch = _random_batch(train, rng, options.batch_size)  # while the device computes
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        is_last = step + 1 == options.steps
        if options.eval_every and ((step + 1) % options.eval_every == 0 or is_last):
            torch.cuda.synchronize()
            before = time.perf_counter()
            found = {"kind": "eval", "step": step + 1, "seconds": before - started}
            found["seconds"] -= spent_on_evaluation
            print(
                json.dumps(found | {"loss": evaluate(compiled, val, rows=options.batch_size)}),
                flush=True,
            )
            spent_on_evaluation += time.perf_counter() - before
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started - spent_on_evaluation
    tokens = (options.steps - options.warm_steps) * options.batch_size * CONTEXT
    peak = torch.cuda.max_memory_allocated()
    found = {"kind": "end", "batch_size": options.batch_size, "peak_bytes": peak}
    print(json.dumps(found | {"tokens_per_second": tokens / seconds}))


def _optimizer(model: nn.Module, lr: float) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


def _schedule(step: int, num_steps: int, warm_up: int) -> float:
    """Rise for some steps, then fall along a cosine to a tenth."""
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    done = (step - warm_up) / max(num_steps - warm_up, 1)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * done))


def _random_batch(ids: np.ndarray, rng: np.random.Generator, size: int) -> tuple[Tensor, Tensor]:
    starts = rng.integers(len(ids) - CONTEXT, size=size)
    inputs = np.stack([ids[start : start + CONTEXT].astype(np.int64) for start in starts])
    labels = np.stack([ids[start + 1 : start + 1 + CONTEXT].astype(np.int64) for start in starts])
    return _to_device(inputs), _to_device(labels)


def _to_device(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array).pin_memory().cuda(non_blocking=True)


@torch.no_grad()
def evaluate(model: Any, ids: np.ndarray, *, rows: int) -> float:
    """Return the mean loss over every token of a split, in rows that overlap by one id."""
    model.eval()
    num_rows = (len(ids) - 1) // CONTEXT // rows * rows  # whole batches: one compiled shape
    total = 0.0
    for first in range(0, num_rows, rows):
        start = first * CONTEXT
        piece = torch.from_numpy(ids[start : start + rows * CONTEXT + 1].astype(np.int64)).cuda()
        inputs, labels = piece[:-1].view(rows, CONTEXT), piece[1:].view(rows, CONTEXT)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            total += model(inputs, labels).item()
    model.train()
    return total / (num_rows // rows)


if __name__ == "__main__":
    main()
