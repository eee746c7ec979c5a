"""Tokenize documents with datatrove's own pipeline: JSON Lines reader, tokenizer, local executor.

Run by `peers.py` in an environment of its own:

    python peer_datatrove.py DOCS_FOLDER OUTPUT_FOLDER WORKERS VOCABULARY_FOLDER
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer

from peer_vocabulary import gpt2_tokenizer_file


def main() -> None:
    """Tokenize every file of a folder, as many tasks as workers, without shuffling."""
    documents, output, workers = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    tokenizer = gpt2_tokenizer_file(Path(sys.argv[4]), output / "gpt2.json")
    start = time.perf_counter()
    executor = LocalPipelineExecutor(
        pipeline=[
            JsonlReader(documents),
            DocumentTokenizer(
                str(output / "tokens"),
                tokenizer_name_or_path=str(tokenizer),
                eos_token="<|endoftext|>",
                shuffle_documents=False,
            ),
        ],
        tasks=workers,
        workers=workers,
        logging_dir=str(output / "logs"),
    )
    executor.run()
    num_tokens = sum(p.stat().st_size for p in (output / "tokens").glob("*.ds")) // 2
    print(num_tokens, time.perf_counter() - start)


if __name__ == "__main__":
    main()
