"""Settings of a run: layers, presets, limits, and what may not be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenmill.errors import ConfigError
from tokenmill.train.presets import PRESETS
from tokenmill.train.settings import TrainSettings, is_plan, resolve_train_settings


def resolve(**flags: Any) -> TrainSettings:
    return resolve_train_settings({"data": "store", **flags})


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_complete(preset: str):
    settings = resolve(preset=preset)
    assert settings.preset == preset
    assert settings.max_steps or settings.max_tokens
    assert settings.batch_rows * settings.model.context_length == settings.batch_tokens
    assert settings.folder == Path(f"runs/store-{preset}")


def test_layers_overrule_each_other_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = tmp_path / "config.yaml"
    config.write_text("seed: 1\nema: 0.1\nkeep_last: 3\ngrad_clip: 2\nmodel: {num_layers: 3}\n")
    monkeypatch.setenv("TOKENMILL_SEED", "2")
    monkeypatch.setenv("TOKENMILL_EMA", "0.2")
    monkeypatch.setenv("TOKENMILL_KEEP_LAST", "4")
    settings = resolve_train_settings(
        {"data": "store", "seed": 3, "ema": 0.3},
        config=config,
        assignments=("seed=4", "model.width=64"),
    )
    assert (settings.seed, settings.ema, settings.keep_last, settings.grad_clip) == (4, 0.3, 4, 2)
    assert (settings.model.num_layers, settings.model.width) == (3, 64)
    assert settings.model.num_heads == PRESETS["laptop"]["model"]["num_heads"]


def test_a_limit_overrules_the_other_limit_of_lower_layers(tmp_path: Path):
    assert resolve(max_tokens=10**6).max_steps is None
    assert resolve(max_tokens=10**6).max_tokens == 10**6
    assert resolve(preset="gpt2", max_steps=5).max_tokens is None
    config = tmp_path / "config.json"
    config.write_text('{"max-steps": 7}')
    settings = resolve_train_settings({"data": "s", "max_tokens": 9999}, config=config)
    assert (settings.max_steps, settings.max_tokens) == (None, 9999)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"preset": "huge"}, "no preset 'huge'"),
        ({"data": ""}, "no data given"),
        ({"batch_tokens": 100}, "no whole number of rows"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": "some"}, "batch_size"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"max_hours": 0.0}, "max_hours must be above 0"),
        ({"ema": 1.0}, "ema"),
        ({"val_ratio": 0.0}, "val_ratio"),
        ({"max_steps": 4, "max_tokens": 4000}, "give one"),
        ({"model": {"num_heads": 3}}, "not divisible by num_heads"),
        ({"model": {"layers": 3}}, "unknown setting 'model.layers'"),
        ({"learning_rate": 3}, "unknown setting 'learning_rate'"),
        ({"optimizer": {"lr": "fast"}}, "optimizer.lr"),
        ({"device": "tpu"}, "device"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said) as caught:
        resolve(**wrong)
    assert caught.value.exit_code == 2


def test_an_odd_number_of_tokens_gets_the_nearest_one_as_a_hint():
    with pytest.raises(ConfigError) as caught:
        resolve(batch_tokens=1000, model={"context_length": 128})
    assert caught.value.hint == "--batch-tokens 1024"


def test_what_a_plan_says_goes_before_the_preset(tmp_path: Path):
    path = tmp_path / "plan.json"
    plan = {"sources": [{"path": "s"}], "seq_len": 48, "batch_size": 6, "num_steps": 77, "seed": 9}
    path.write_text(json.dumps(plan))
    settings = resolve(data=str(path))
    assert settings.model.context_length == 48
    assert (settings.batch_tokens, settings.max_steps, settings.seed) == (288, 77, 9)
    assert resolve(data=str(path), max_steps=5).max_steps == 5


def test_documents_in_json_are_not_taken_for_a_plan(tmp_path: Path):
    path = tmp_path / "documents.json"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    assert not is_plan(str(path))
    assert not is_plan(str(tmp_path))
    assert not is_plan(str(tmp_path / "none.yaml"))


def test_only_settings_that_decide_what_is_learned_are_content():
    content = resolve().content()
    assert {"seed", "model.width", "optimizer.lr", "compute.dtype", "batch_tokens"} <= set(content)
    assert not {"device", "max_steps", "batch_size", "data", "eval_interval"} & set(content)
    free = resolve(device="cpu", max_steps=3, batch_size=1, keep_last=9, compile="on")
    assert free.content() == content
    assert resolve(schedule={"shape": "cosine"}).content() != content
