"""A plain torch loop on a store, and how it is stopped and continued: the data resumes exactly.

tokenmill tokenize corpus.txt -o store && python examples/torch_loop.py store
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  (as everybody calls it)

from tokenmill import open_store
from tokenmill.dataset import Loader, Plan, Source


def main() -> None:
    """Train a few steps, save, and go on from the checkpoint as a new run would."""
    store = sys.argv[1]
    checkpoint = Path(sys.argv[2] if len(sys.argv) > 2 else "checkpoint.pt")
    plan = Plan(sources=(Source(path=store),), seq_len=32, batch_size=4, seed=1)
    torch.manual_seed(0)
    num_ids = open_store(store).metadata.tokenizer.num_ids
    model = nn.Sequential(nn.Embedding(num_ids, 16), nn.Linear(16, num_ids))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Loader(plan, output="torch") as loader:
        train(model, optimizer, loader, stop=5)
        states: dict[str, Any] = {"model": model.state_dict(), "data": loader.state_dict()}
        torch.save(states, checkpoint)
    with Loader(plan, output="torch") as loader:  # any number of ranks and threads may go on
        states = torch.load(checkpoint)
        model.load_state_dict(states["model"])
        loader.load_state_dict(states["data"])
        train(model, optimizer, loader, stop=10)


def train(model: nn.Module, optimizer: Any, loader: Loader, *, stop: int) -> None:
    """Train until a step."""
    for step, batch in loader:
        logits = model(batch.token_ids)  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")
        if step + 1 == stop:
            return


if __name__ == "__main__":
    main()
