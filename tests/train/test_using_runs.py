"""`tokenmill generate` and `tokenmill export` on the folder of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tokenmill.cli import run
from tokenmill.train import export_run, open_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps on a small text: it knows nothing, but all its files are there."""
    folder = tmp_path_factory.mktemp("run")
    text = folder / "text.txt"
    text.write_text("".join(f"Line {i} says hällo to line {i + 1}.\n" for i in range(400)))
    out_dir = folder / "out"
    small = ("num_layers=1", "num_heads=2", "width=16", "context_length=32")
    flags = [f"--set=model.{value}" for value in small]
    flags += ["--tokenizer=bytes", "--batch-tokens=64", "--max-steps=2", "--device=cpu"]
    arguments = ["train", str(text), "--out-dir", str(out_dir), "--progress", "none"]
    torch.set_num_threads(1)
    assert run([*arguments, *flags]) == 0
    return out_dir


def generate(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert run(["generate", *arguments]) == 0
    return capsys.readouterr().out


def test_generate_prints_the_prompt_and_what_follows(
    trained: Path, capsys: pytest.CaptureFixture[str]
):
    common = [str(trained), "--prompt", "Line", "--max-tokens", "40"]
    text = generate(common, capsys)
    assert text.startswith("Line")
    assert len(text) > 10
    assert generate(common, capsys) == text
    assert generate([*common, "--seed", "1"], capsys) != text
    facts = json.loads(generate([*common, "--json"], capsys))
    assert facts["prompt"] + facts["text"] + "\n" == text


def test_generate_without_a_prompt_begins_a_document(
    trained: Path, capsys: pytest.CaptureFixture[str]
):
    greedy = [str(trained), "--temperature", "0", "--max-tokens", "5", "--checkpoint", "last"]
    assert generate([*greedy, "--no-stop-at-eos"], capsys)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--top-p", "2"], "top_p must be above 0 and at most 1"),
        (["--checkpoint", "99"], "no checkpoint of step 99"),
        (["--checkpoint", "first"], "neither best, last nor a step"),
        (["--device", "cuda"], "cuda"),
    ],
)
def test_generate_says_what_is_wrong(
    trained: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
):
    if arguments == ["--device", "cuda"] and torch.cuda.is_available():
        pytest.skip("there is one")
    assert run(["generate", str(trained), *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["generate", "export"])
def test_a_folder_without_a_run_is_an_error(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run([verb, str(tmp_path / "nothing")]) == 2
    assert "no checkpoint" in capsys.readouterr().err


def test_export_gives_the_logits_of_the_run(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = tmp_path / "hf"
    assert run(["export", str(trained), "--to", "hf", "-o", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert set(facts["files"]) >= {"config.json", "model.safetensors", "tokenizer.json"}
    ours = open_run(trained)
    assert ours.tokenizer is not None
    ids = AutoTokenizer.from_pretrained(folder)("Line 5 says hällo", return_tensors="pt").input_ids
    assert ids[0].tolist() == ours.tokenizer.encode("Line 5 says hällo")
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(folder).eval()(ids).logits
        torch.testing.assert_close(found, ours.model(ids), rtol=1e-4, atol=2e-5)
    assert export_run(trained, tmp_path / "low", dtype="bfloat16").is_dir()
    assert run(["export", str(trained), "-o", str(folder)]) == 2
