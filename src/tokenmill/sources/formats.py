"""What the name of a file says of its format."""

from __future__ import annotations

import os

FORMATS_BY_SUFFIX = {
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "csv",
    ".tsv": "csv",
}
NEVER_COMPRESSED = {"parquet", "arrow"}

_COMPRESSIONS = {".gz": "gz", ".zst": "zst", ".bz2": "bz2", ".xz": "xz"}

# Files that describe the data beside them.
_DESCRIPTIONS = {
    "metadata.json",
    "metadata.yaml",
    "metadata.yml",
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
}


def suffixes(name: str) -> tuple[str, str]:
    """Return the suffix that says the format, and the compression.

    >>> suffixes("a.b.JSONL.zst"), suffixes("notes")
    (('.jsonl', 'zst'), ('', ''))
    """
    stem, suffix = os.path.splitext(name.lower())  # noqa: PTH122  (of very many files)
    compression = _COMPRESSIONS.get(suffix, "")
    if compression:
        suffix = os.path.splitext(stem)[1]  # noqa: PTH122
    return suffix, compression


def holds_documents(path: str, format_name: str) -> bool:
    """Tell whether a file that was found in a folder is read, or is there for another purpose."""
    name = os.path.basename(path)  # noqa: PTH119
    if name in _DESCRIPTIONS:
        return False
    return format_name != "auto" or suffixes(name)[0] in FORMATS_BY_SUFFIX
