"""Measure training a tokenizer: seconds and peak memory, for tokenmill and for other trainers.

All train a byte-level BPE with GPT-2's pattern (SentencePiece: its own BPE,
without lines of more than 60,000 bytes, which it cannot take) on the same documents,
one a line, as whole processes. Other trainers run in `benchmarks/.venv-trainers`, made here.
tokenmill compiles its code when it is first used on a machine; that is done before, and reported.

    python benchmarks/train_speed.py --mb 300 --vocab-size 10000 --vocab-size 32000
    python benchmarks/train_speed.py --mb 600 --growth       tokenmill alone: how the cost grows
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import DATA, ROOT, TOKENMILL, print_table, report, run, warm

ENVIRONMENT = ROOT / "benchmarks" / ".venv-trainers"
REQUIREMENTS = ["gigatoken==0.10.0", "rustbpe==0.1.0", "tokenizers", "sentencepiece"]
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PROGRAMS = {
    "gigatoken": """
import gigatoken
source = gigatoken.TextFileSource([path], separator="\\n")
gigatoken.train_bpe(source, vocab_size, ["<|endoftext|>"])
""",
    "rustbpe": """
import rustbpe
lines = open(path, encoding="utf-8", newline="\\n")
rustbpe.Tokenizer().train_from_iterator((line[:-1] for line in lines), vocab_size, pattern=pattern)
""",
    "tokenizers": """
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
trainer = trainers.BpeTrainer(
    vocab_size=vocab_size, special_tokens=["<|endoftext|>"], show_progress=False,
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
lines = open(path, encoding="utf-8", newline="\\n")
tokenizer.train_from_iterator((line[:-1] for line in lines), trainer)
""",
    "sentencepiece": """
import sentencepiece
sentencepiece.SentencePieceTrainer.train(
    input=path, model_prefix=path + ".model", vocab_size=vocab_size, model_type="bpe",
    byte_fallback=True, max_sentence_length=60_000, num_threads=2, minloglevel=2)
""",
}
HEAD = "import sys; path, vocab_size, pattern = sys.argv[1], int(sys.argv[2]), sys.argv[3]\n"


def main() -> None:
    """Measure every trainer at every size and print a table."""
    parser = argparse.ArgumentParser(description="Measure training of tokenizers.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder made by corpus.py")
    parser.add_argument("--mb", type=float, default=300, help="MB of text to train on")
    parser.add_argument("--vocab-size", type=int, action="append")
    parser.add_argument("--trainer", action="append", choices=["tokenmill", *PROGRAMS])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1, help="runs of each; the best counts")
    parser.add_argument("--pattern", default="gpt2", help="of tokenmill; others know GPT-2's")
    parser.add_argument("--growth", action="store_true", help="vary text and vocabulary instead")
    arguments = parser.parse_args()
    trainers = arguments.trainer or ["tokenmill", *PROGRAMS]
    with tempfile.TemporaryDirectory() as folder:
        corpus, sizes = arguments.data / "docs.txt", [arguments.mb]
        vocab_sizes = arguments.vocab_size or [10_000, 32_000]
        cases = [(trainer, arguments.mb, ids) for ids in vocab_sizes for trainer in trainers]
        if arguments.growth:
            sizes = [arguments.mb / 4, arguments.mb / 2, arguments.mb]
            cases = [("tokenmill", size, 32_000) for size in sizes]
            cases += [("tokenmill", sizes[1], ids) for ids in (8_000, 16_000, 64_000)]
        samples = {mb: _sample(corpus, Path(folder), num_bytes=int(mb * 1e6)) for mb in sizes}
        if any(trainer in PROGRAMS for trainer, _, _ in cases):
            _make_environment()
        _compile(corpus, Path(folder), arguments)
        rows = []
        for trainer, mb, vocab_size in cases:
            warm(samples[mb])
            rows.append(_measure(trainer, samples[mb], vocab_size=vocab_size, arguments=arguments))
    head = ("trainer", "MB", "ids", "seconds", "CPU s", "MB/s", "peak MB")
    print_table([head, *rows])


def _compile(corpus: Path, folder: Path, arguments: argparse.Namespace) -> None:
    """Let tokenmill compile what it has not yet, on a small sample; report what that took."""
    sample = _sample(corpus, folder, num_bytes=40_000_000)
    seconds = []
    for _ in range(2):
        shutil.rmtree(folder / "tokenizer", ignore_errors=True)
        command = _tokenmill(sample, folder / "tokenizer", vocab_size=1000, arguments=arguments)
        seconds.append(run(command).cpu_seconds)
    report("train_speed", compile_cpu_seconds=max(seconds[0] - seconds[1], 0.0))


def _tokenmill(
    sample: Path, output: Path, *, vocab_size: int, arguments: argparse.Namespace
) -> list[str]:
    command = [TOKENMILL, "tokenizer", "train", sample, "-o", output, "--progress", "none"]
    command += ["--vocab-size", vocab_size, "--workers", arguments.workers, "--held-out", 0]
    return [str(word) for word in [*command, "--pattern", arguments.pattern]]


def _measure(
    trainer: str, sample: Path, *, vocab_size: int, arguments: argparse.Namespace
) -> tuple[object, ...]:
    output = sample.parent / "tokenizer"
    if trainer == "tokenmill":
        command = _tokenmill(sample, output, vocab_size=vocab_size, arguments=arguments)
    else:
        python, program = ENVIRONMENT / "bin" / "python", HEAD + PROGRAMS[trainer]
        command = [python, "-c", program, sample, vocab_size, GPT2]
    finished = []
    for _ in range(arguments.repeats):
        shutil.rmtree(output, ignore_errors=True)
        finished.append(run([str(word) for word in command], sample_memory=True))
    best = min(finished, key=lambda one: one.seconds)
    megabytes = sample.stat().st_size / 1e6
    report(
        "train_speed",
        trainer=trainer,
        vocab_size=vocab_size,
        megabytes=megabytes,
        workers=arguments.workers,
        seconds=best.seconds,
        cpu_seconds=best.cpu_seconds,
        peak_mb=best.peak_bytes / 1e6,
    )
    rate = round(megabytes / best.seconds, 1)
    numbers = (round(best.seconds, 1), round(best.cpu_seconds, 1), rate)
    return (trainer, round(megabytes), vocab_size, *numbers, round(best.peak_bytes / 1e6))


def _sample(corpus: Path, folder: Path, *, num_bytes: int) -> Path:
    """Copy the first whole lines of the corpus."""
    if not corpus.exists():
        sys.exit(f"{corpus} is missing: run `python benchmarks/corpus.py`")
    path = folder / f"sample-{num_bytes}.txt"
    with corpus.open("rb") as source, path.open("wb") as target:
        while (left := num_bytes - target.tell()) > 0:
            block = source.read(min(left, 1 << 24)) + source.readline()
            if not block:
                break
            target.write(block)
    return path


def _make_environment() -> None:
    if not ENVIRONMENT.exists():
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
    pip = ENVIRONMENT / "bin" / "pip"
    subprocess.run([pip, "install", "--quiet", *REQUIREMENTS], check=True)


if __name__ == "__main__":
    main()
