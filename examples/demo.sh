#!/usr/bin/env bash
# The main job on text that every machine has: `make demo`. Everything it writes goes to ./demo.
set -euo pipefail

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '\033[1m$ %s\033[0m\n' "$*"; "$@"; }

rm -rf demo

say "1. Text: the sources and documentation strings of Python's own library"
run python examples/stdlib_text.py demo/stdlib.jsonl

say "2. Tokenize it: GPT-2's tokenizer, 5% of the documents for validation, shards of 2 million tokens"
run tokenmill tokenize demo/stdlib.jsonl -o demo/store --val-ratio 0.05 --shard-tokens 2000000 --shuffle 1

say "3. The same command again knows that it is done"
run tokenmill tokenize demo/stdlib.jsonl -o demo/store --val-ratio 0.05 --shard-tokens 2000000 --shuffle 1

say "4. Check every byte of it"
run tokenmill verify demo/store --level full

say "5. Look inside: a document with its tokens, and a picture of the lengths"
run tokenmill info demo/store --split val --document 3 --lengths demo/lengths.svg

say "What next?"
cat <<'EOF'
  open demo/lengths.svg                                      the picture
  .venv/bin/tokenmill tokenize YOUR.txt -o store             your own text, a document a line
  .venv/bin/tokenmill tokenize 'data/*.jsonl.zst' -o store   or JSONL, Parquet, CSV, compressed or not
  .venv/bin/tokenmill tokenize --help                        everything else
  .venv/bin/python -c "import tokenmill; print(tokenmill.open_store('demo/store').read(0, 20))"
EOF
