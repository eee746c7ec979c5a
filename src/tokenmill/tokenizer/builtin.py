"""GPT-2's byte-level BPE, from the data file of this package: no network, no other file."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from tokenmill.tokenizer.alphabet import GPT2_BYTE_ORDER
from tokenmill.tokenizer.bpe import ByteLevelBpe, special_tokens
from tokenmill.tokenizer.patterns import ENCODINGS

_MERGES_FILE = Path(__file__).parent / "data" / "gpt2_merges.zlib"


def gpt2() -> ByteLevelBpe:
    """Build GPT-2's BPE; `data/README.md` says where it comes from."""
    pairs = np.frombuffer(zlib.decompress(_MERGES_FILE.read_bytes()), dtype="<u2").reshape(-1, 2)
    tokens = [bytes([byte]) for byte in GPT2_BYTE_ORDER]
    for left, right in pairs.tolist():
        tokens.append(tokens[left] + tokens[right])
    encoding = ENCODINGS["gpt2"]
    return ByteLevelBpe(
        tokens=dict(enumerate(tokens)),
        merges=pairs.astype(np.uint32),
        patterns=(encoding.pattern,),
        added=special_tokens(encoding.special_tokens),
    )
