"""GPT-2's vocabulary for the peers, from the two original files: nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import tiktoken
from tiktoken.load import data_gym_to_mergeable_bpe_ranks
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT = "<|endoftext|>"
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"


def gpt2_encoding(folder: Path) -> tiktoken.Encoding:
    """Return tiktoken's GPT-2, made from `vocab.bpe` and `encoder.json` in `folder`."""
    ranks = data_gym_to_mergeable_bpe_ranks(
        vocab_bpe_file=str(folder / "vocab.bpe"), encoder_json_file=str(folder / "encoder.json")
    )
    special = {END_OF_TEXT: len(ranks)}
    return tiktoken.Encoding(
        "gpt2-local", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special
    )


def gpt2_tokenizer_file(folder: Path, path: Path) -> Path:
    """Write GPT-2 as a `tokenizer.json` at `path` and return it."""
    model = models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
    tokenizer.save(str(path))
    return path
