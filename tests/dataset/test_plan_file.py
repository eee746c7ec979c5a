from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tokenmill.dataset.plan import Plan
from tokenmill.dataset.plan_settings import Source, Stage
from tokenmill.errors import ConfigError, DamageError

if TYPE_CHECKING:
    from conftest import BuildStore

YAML = """
num_steps: 100
seq_len: 4
batch_size: 6
seed: 3
sources:
  - {path: web, weight: 0.7}
  - {path: code, weight: 0.3, max_epochs: 90}
stages:
  - {from_step: 8, weights: {web: 1, code: 1}}
amendments:
  - {at_step: 10, batch_size: 8}
"""
TOML = """
num_steps = 100
seq_len = 4
batch_size = 6
seed = 3
[[sources]]
path = "web"
weight = 0.7
[[sources]]
path = "code"
weight = 0.3
max_epochs = 90
[[stages]]
from_step = 8
weights = {web = 1, code = 1}
[[amendments]]
at_step = 10
batch_size = 8
"""


@pytest.fixture
def folder(tmp_path: Path, build_store: BuildStore) -> Path:
    build_store(tmp_path / "web", [[2, 3, 4, 1]] * 300)
    build_store(tmp_path / "code", [[5, 6, 1]] * 300)
    return tmp_path


def expected(folder: Path) -> Plan:
    sources = (
        Source(path=str(folder / "web"), weight=0.7),
        Source(path=str(folder / "code"), weight=0.3, max_epochs=90),
    )
    return Plan(
        sources=sources,
        seq_len=4,
        batch_size=6,
        seed=3,
        num_steps=100,
        stages=(Stage(from_step=8, weights={"web": 1, "code": 1}),),
    ).amend(10, batch_size=8)


@pytest.mark.parametrize(("name", "text"), [("p.yaml", YAML), ("p.yml", YAML), ("p.toml", TOML)])
def test_a_plan_is_read_from_a_file_whose_paths_are_relative_to_it(
    name: str, text: str, folder: Path
):
    path = folder / name
    path.write_text(text)
    assert Plan.load(path) == expected(folder)
    assert Plan.load(path).digest == expected(folder).digest


@pytest.mark.parametrize("name", ["saved.json", "saved.yaml"])
def test_a_saved_plan_is_the_same_plan_with_its_history(name: str, folder: Path):
    plan = expected(folder).skip(20, 30, note="spike").amend(40, seq_len=7)
    plan.save(folder / name)
    loaded = Plan.load(folder / name)
    assert loaded.amendments == plan.amendments
    assert loaded.digest == plan.digest
    assert loaded.batch(60).token_ids.tolist() == plan.batch(60).token_ids.tolist()
    assert str(folder) not in (folder / name).read_text()


def test_a_saved_plan_notices_another_store(folder: Path, build_store: BuildStore):
    expected(folder).save(folder / "plan.json")
    build_store(folder / "web", [[2, 3, 4, 1]] * 301)
    with pytest.raises(DamageError, match=r"web: its content is .* the plan was saved for"):
        Plan.load(folder / "plan.json").check()


def test_a_source_outside_the_folder_keeps_its_whole_path(folder: Path):
    (folder / "plans").mkdir()
    expected(folder).save(folder / "plans" / "plan.json")
    values = json.loads((folder / "plans" / "plan.json").read_text())
    assert values["sources"][0]["path"] == str(folder / "web")


def test_only_known_suffixes_are_written(folder: Path):
    with pytest.raises(ConfigError, match=r"written as \.json, \.yaml or \.yml"):
        expected(folder).save(folder / "plan.txt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seqlen": 4}, "unknown setting 'seqlen'; did you mean 'seq_len'?"),
        ({"sources": "web"}, "sources is 'web', expected a list"),
        ({"sources": ["web"]}, r"sources\[0\] is 'web', expected a mapping"),
        ({"sources": [{"path": "web", "wieght": 1}]}, r"sources\[0\]: .* mean 'weight'"),
        ({"sources": [{"weight": 1}]}, r"sources\[0\]: the setting 'path' is missing"),
        ({"sources": [{"path": "web", "weight": "much"}]}, r"sources\[0\]: weight"),
        ({"sources": [{"path": "web", "weight": -1}]}, r"sources\[0\]: the weight .* -1"),
        ({"stages": [{"weights": {"web": 1}}]}, r"stages\[0\]: a stage needs either"),
        ({"amendments": [{"skip_steps": 1}]}, r"amendments\[0\]: the setting 'at_step' is missing"),
        (
            {"amendments": [{"at_step": 1, "stages": [{"from_step": 2, "weight": {}}]}]},
            r"amendments\[0\].stages\[0\]: unknown setting 'weight'",
        ),
        ({"batch_size": "many"}, "batch_size"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"packing": "tight"}, "packing"),
    ],
)
def test_mistakes_are_named_with_their_place(change: dict[str, Any], message: str, tmp_path: Path):
    values = {"seq_len": 4, "batch_size": 2, "sources": [{"path": "web"}]} | change
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=message) as caught:
        Plan.load(path)
    assert str(path) in str(caught.value)


def test_a_store_that_is_too_short_is_named(tmp_path: Path, build_store: BuildStore):
    build_store(tmp_path / "tiny", [[2, 3, 1]])
    plan = Plan(sources=(Source(path=str(tmp_path / "tiny")),), seq_len=64, batch_size=2)
    with pytest.raises(ConfigError, match=r"tiny: 3 tokens make no row"):
        plan.check()
    with pytest.raises(ConfigError, match="no split 'test'"):
        Plan(
            sources=(Source(path=str(tmp_path / "tiny"), split="test"),), seq_len=2, batch_size=1
        ).check()
