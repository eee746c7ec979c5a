"""What a store is like in numbers: lengths of documents, tokens in use, sources."""

from __future__ import annotations

import msgspec
import numpy as np

from tokenmill.store import Store

_WINDOW_TOKENS = 1 << 22
_QUANTILES = (0.1, 0.5, 0.9)


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers about all splits of a store together."""

    num_documents: int
    num_tokens: int
    num_bytes: int
    """UTF-8 bytes of text."""
    bytes_per_token: float
    mean_length: float
    """Tokens in a document, what is added around it included."""
    shortest: int
    length_10: int
    """A tenth of the documents is no longer than this."""
    median_length: int
    length_90: int
    longest: int
    num_ids_used: int
    num_ids: int
    num_sources_used: int
    num_sources: int

    def text(self) -> str:
        """Return the numbers as a few aligned lines."""
        lengths = f"{self.shortest:,} / {self.length_10:,} / {self.median_length:,} / "
        lengths += f"{self.length_90:,} / {self.longest:,}"
        share = 100 * self.num_ids_used / max(self.num_ids, 1)
        rows = {
            "documents": f"{self.num_documents:,} from {self.num_sources_used:,} "
            f"of {self.num_sources:,} files",
            "tokens": f"{self.num_tokens:,}, {self.bytes_per_token:.2f} bytes of text each",
            "lengths": f"{lengths} tokens (shortest / 10% / median / 90% / longest)",
            "mean length": f"{self.mean_length:,.1f} tokens",
            "ids in use": f"{self.num_ids_used:,} of {self.num_ids:,} ({share:.1f}%)",
        }
        return "\n".join(f"{name:<13}{value}" for name, value in rows.items())


def store_statistics(store: Store) -> Statistics:
    """Count everything in a store; reads it once, in bounded memory but for 8 bytes a document."""
    metadata = store.metadata
    lengths: list[np.ndarray] = [np.empty(0, dtype=np.int64)]
    counts = np.zeros(metadata.tokenizer.num_ids, dtype=np.int64)
    for split in store.splits.values():
        previous = 0
        for start in range(0, split.num_tokens, _WINDOW_TOKENS):
            stop = min(start + _WINDOW_TOKENS, split.num_tokens)
            counts += np.bincount(split.read(start, stop), minlength=len(counts))
            ends = split.document_ends(start, stop).astype(np.int64)
            lengths.append(np.diff(ends, prepend=previous))
            previous = int(ends[-1]) if len(ends) else previous
    every = np.concatenate(lengths)
    low, middle, high = (
        np.quantile(every, _QUANTILES, method="lower").tolist() if len(every) else (0, 0, 0)
    )
    num_bytes = sum(split.num_bytes for split in metadata.splits.values())
    return Statistics(
        num_documents=metadata.num_documents,
        num_tokens=metadata.num_tokens,
        num_bytes=num_bytes,
        bytes_per_token=round(num_bytes / max(metadata.num_tokens, 1), 3),
        mean_length=round(metadata.num_tokens / max(metadata.num_documents, 1), 1),
        shortest=int(every.min()) if len(every) else 0,
        length_10=low,
        median_length=middle,
        length_90=high,
        longest=int(every.max(initial=0)),
        num_ids_used=int(np.count_nonzero(counts)),
        num_ids=metadata.tokenizer.num_ids,
        num_sources_used=sum(1 for source in metadata.sources if source.num_documents),
        num_sources=len(metadata.sources),
    )
