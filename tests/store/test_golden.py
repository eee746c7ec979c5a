"""Pins format 1. A failure here means a new format version, never a new golden value.

The hashes were also made once without this package: with np.save, xxhash and json.dumps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from tokenmill.store import Metadata, hash_file, verify

DIGEST = "sha256:dc21ad561bc3734911870570cf193d26a13ada8920aaa06fbff667f6347ccaa6"
FILES = {
    "blocks/train_000000.npy": "c8d044c8eb718fa250a3af2be95c5764c27c97bcd4dfb63be297faf5556ec980",
    "blocks/train_000001.npy": "78ea608d1f9db071391f169e16f7a02d12afe06194e98978c7db71d2c7075819",
    "blocks/val_000000.npy": "db3cd62eacffc07448e0e5fc73b92b58814f2eef7865b93204945371b3c6bb41",
    "docs/train_000000.npy": "433d5eae6147fa705fe931d13aa61336c18b894e8449c3d9703917e2d2084652",
    "docs/train_000001.npy": "4710531085c0b5500a2a228af9745b59facf533d028ed8f5869c9017a7990986",
    "docs/val_000000.npy": "a103761d0aa123a467d9423b99ce4a9405b3dc5795eef7934595c9347a9f9fef",
    "metadata.json": "b67a3a909bc698c88d6554e50b7d4026ba12849141cb236fa1ce297fc984cbc1",
    "rejects.jsonl": "d540ca61e8c53c099e113ec7f6dc9627e6a17663fa1e59f7b28f9ddd04b133b8",
    "tokenizer.json": "e1d9a166cb6afe9778b78d1c77625f068a50805b1f6c495deb5e2cbb06a97cef",
    "train_000000.npy": "6a57c0e8a667d7b9a58a128bb476ad84843fda9ab84c2540aa609fbf9c79871b",
    "train_000001.npy": "29ec454b6a1682c209016354bdb861d93c731721582f2953052d0b2d7903b078",
    "val_000000.npy": "125b3110451b22ab92dae457c835a3074f1fa0c7e158bc6d48e1c4cd98da9d0d",
}


def test_the_bytes_of_a_small_store_are_pinned(
    tmp_path: Path, build_store: Callable[..., Metadata]
):
    documents = {"train": [[1, 2, 3], [4] * 9, [], [5, 6]], "val": [[7, 8]]}
    rejects = b'{"reason": "bad-json"}\n'
    metadata = build_store(tmp_path, documents, shard_tokens=10, rejects=rejects)
    written = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    names = [path.relative_to(tmp_path).as_posix() for path in written]
    assert {name: hash_file(tmp_path / name).sha256 for name in names} == FILES
    assert metadata.digest == DIGEST
    assert verify(tmp_path, "full").ok


def test_the_digest_can_be_computed_from_the_metadata_alone(
    tmp_path: Path, build_store: Callable[..., Metadata]
):
    build_store(tmp_path, {"train": [[1, 2, 3]]})
    record = json.loads((tmp_path / "metadata.json").read_text())
    content = {
        "format": 1,
        "dtype": record["dtype"],
        "tokenizer": record["tokenizer"]["fingerprint"],
        "bos_id": record["bos_id"],
        "eos_id": record["eos_id"],
        "num_rejected": sum(record["counts"]["rejected"].values()),
        "splits": {
            name: [
                [s["num_tokens"], s["num_documents"], s["shard"]["sha256"], s["docs"]["sha256"]]
                for s in split["shards"]
            ]
            for name, split in record["splits"].items()
        },
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    assert record["digest"] == f"sha256:{hashlib.sha256(canonical).hexdigest()}"
