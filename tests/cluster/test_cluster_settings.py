"""The files that say how a cluster is used, and the flags of one job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokenmill.cluster import ClusterSettings, JobSettings, read_settings
from tokenmill.config import resolve
from tokenmill.errors import ConfigError


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which `system/` and `user/tokenmill/` are the standing places of files."""
    for name in ("system", "user/tokenmill"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("TOKENMILL_SLURM_CONF", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(places: Path, *given: str, **slurm: str | None) -> ClusterSettings:
    return read_settings(given, {"slurm": slurm}, system_folder=places / "system")


def test_files_lie_over_each_other_in_the_promised_order(
    places: Path, monkeypatch: pytest.MonkeyPatch
):
    names = ["system", "user", "variable", "first", "second", "third", "flag"]
    values = {name: str(number) for number, name in enumerate(names)}
    (places / "system" / "slurm.yaml").write_text("slurm: {partition: '0', account: site}\n")
    assert read(places).slurm.partition == values["system"]
    (places / "user" / "tokenmill" / "slurm.toml").write_text('slurm.partition = "1"\n')
    assert read(places).slurm.partition == values["user"]
    (places / "variable.json").write_text('{"slurm": {"partition": "2"}}')
    monkeypatch.setenv("TOKENMILL_SLURM_CONF", str(places / "variable.json"))
    assert read(places).slurm.partition == values["variable"]
    (places / "first.yaml").write_text("slurm: {partition: '3', qos: low}\n")
    (places / "third.yaml").write_text("slurm: {partition: '5'}\n")
    given = ["first.yaml", "slurm.partition=4", "third.yaml"]
    for number in (1, 2, 3):
        found = read(places, *given[:number]).slurm
        assert found.partition == str(number + 2)
    found = read(places, *given, partition="6").slurm
    assert (found.partition, found.account, found.qos) == (values["flag"], "site", "low")


def test_two_files_in_one_place_are_refused(places: Path):
    for suffix in ("yaml", "json"):
        (places / "system" / f"slurm.{suffix}").write_text("{}")
    with pytest.raises(ConfigError, match="both there"):
        read(places)


@pytest.mark.parametrize(
    ("item", "complaint"),
    [
        ("slurm.partitoin=x", "did you mean 'slurm.partition'"),
        ("environment.conda=x", "did you mean 'environment.conda_env'"),
        ("slrum.partition=x", "did you mean 'slurm'"),
        ("nowhere.yaml", "No such file"),
        ("partition=secret", "partition=…: expected a file"),
    ],
)
def test_what_is_not_known_is_named(places: Path, item: str, complaint: str):
    with pytest.raises(ConfigError) as caught:
        read(places, item)
    assert complaint in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["gcc/12 python", "gcc/12,python", '["gcc/12", "python"]'])
def test_modules_can_be_written_as_text(places: Path, text: str):
    found = read(places, f"environment.modules={text}")
    assert found.environment.modules == ("gcc/12", "python")


@pytest.mark.parametrize(
    "names",
    [("conda_env", "venv"), ("singularity_image", "venv"), ("singularity_image", "conda_env")],
)
def test_tokenmill_lives_in_one_environment(places: Path, names: tuple[str, str]):
    given = [f"environment.{name}=x" for name in names]
    with pytest.raises(ConfigError, match="one of them"):
        read(places, *given)
    found = read(places, *given, f"environment.{names[0]}=null")
    assert getattr(found.environment, names[1]) == "x"


def test_a_job_has_the_promised_defaults():
    job = JobSettings()
    assert (job.nodes, job.cpus, job.mem, job.time) == (1, 40, "40G", "1-00:00:00")


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": 0},
        {"cpus": 0},
        {"gpus_per_node": -1},
        {"max_restarts": -1},
        {"mem": "lots"},
        {"mem": "-4G"},
        {"time": "0"},
        {"time": "tomorrow"},
        {"time": "٣"},
        {"array": "0"},
        {"array": "0-7"},
        {"array": "4", "nodes": 2},
    ],
    ids=str,
)
def test_a_job_that_cannot_be_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        resolve(JobSettings, wrong)
