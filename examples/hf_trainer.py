"""Train a small GPT-2 of Hugging Face on a store.

tokenmill tokenize corpus.txt -o store && python examples/hf_trainer.py store
Needs `pip install transformers accelerate`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from tokenmill import open_store
from tokenmill.dataset import Batch, get_dataset


def main() -> None:
    """Train ten steps."""
    missing = [name for name in ("transformers", "accelerate") if find_spec(name) is None]
    if missing:
        print(f"this example needs {' and '.join(missing)}: pip install {' '.join(missing)}")
        return
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    store = sys.argv[1]
    dataset = get_dataset(store, context_length=64)
    config = GPT2Config(
        vocab_size=open_store(store).metadata.tokenizer.num_ids,
        n_positions=64, n_embd=64, n_layer=2, n_head=2,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir="hf-run", max_steps=10, per_device_train_batch_size=8,
        remove_unused_columns=False, report_to=[], logging_steps=1,
    )  # fmt: skip

    def collate(items: Sequence[Batch]) -> dict[str, Any]:
        batch = dataset.collate(items)
        # The models of Hugging Face shift labels themselves: they want the inputs as labels.
        return {
            "input_ids": batch.token_ids,
            "labels": batch.token_ids,
            "position_ids": batch.position_ids,
        }

    Trainer(
        model=GPT2LMHeadModel(config), args=arguments, train_dataset=dataset, data_collator=collate
    ).train()


if __name__ == "__main__":
    main()
