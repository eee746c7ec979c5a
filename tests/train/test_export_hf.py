"""Exported models: transformers loads them, and gives the same logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import small_models
import torch

from tokenmill.errors import ConfigError
from tokenmill.tokenizer import load_tokenizer
from tokenmill.train.export_hf import export_hf
from tokenmill.train.model import GPT


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()


@pytest.mark.parametrize("core", ["modern", "gpt2"])
@pytest.mark.parametrize("softcap", [15.0, 0.0])
def test_logits_are_equal(core: str, softcap: float, tmp_path: Path):
    model = small_models.model(core, softcap=softcap)
    theirs = load(export_hf(model, tmp_path / "hf"))
    assert (
        type(theirs).__name__ == {"modern": "NanoChatForCausalLM", "gpt2": "GPT2LMHeadModel"}[core]
    )
    ids, _ = small_models.batch()
    with torch.no_grad():
        found, expected = theirs(ids).logits, model(ids)
    assert found.shape == expected.shape == (2, 32, 300)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)
    assert expected.std() > 0.1


def test_the_tokenizer_goes_with_it(tmp_path: Path):
    from transformers import AutoTokenizer

    tokenizer = load_tokenizer("gpt2")
    model = small_models.model("gpt2", vocab_size=50257, width=8, num_layers=1)
    folder = export_hf(model, tmp_path / "hf", tokenizer=tokenizer, dtype="bfloat16")
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    text = "Hello wörld, again.\n"
    assert theirs(text)["input_ids"] == tokenizer.encode(text)
    assert theirs.eos_token_id == tokenizer.eos_id == load(folder).config.eos_token_id
    assert load(folder).dtype == torch.bfloat16


def test_nothing_is_overwritten_and_nothing_half_written(tmp_path: Path):
    model = small_models.model()
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        export_hf(model, tmp_path / "there")
    with pytest.raises(ConfigError, match="has 50,257 ids, but the model has 300"):
        export_hf(model, tmp_path / "new", tokenizer=load_tokenizer("gpt2"))
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_every_weight_is_exported(tmp_path: Path):
    from safetensors.torch import load_file

    model: GPT = small_models.model("gpt2")
    folder = export_hf(model, tmp_path / "hf")
    written = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    padding = 84 * model.settings.width
    assert written == model.num_parameters() - padding
