from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokenmill.engine import available_cores, cores, resolve_workers

V1 = {"cpu.cfs_quota_us": "{quota}\n", "cpu.cfs_period_us": "100000\n"}
V2 = {"cpu.max": "{quota} 100000\n"}


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)


def machine(folder: Path, groups: str, limits: dict[str, tuple[dict[str, str], str]]) -> int:
    """Return the cores of a machine with these control groups: folder -> files and quota."""
    (folder / "membership").write_text(groups)
    for name, (files, quota) in limits.items():
        group = folder / "cgroup" / name
        group.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (group / file).write_text(text.format(quota=quota))
    return available_cores(cgroups=folder / "cgroup", membership=folder / "membership")


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"": (V2, "max")}, 8),
        ("0::/\n", {"": (V2, "200000")}, 2),
        ("0::/\n", {"": (V2, "1600000")}, 8),
        ("0::/\n", {"": (V2, "150000")}, 2),
        ("0::/\n", {"": (V2, "50000")}, 1),
        ("0::/slurm/job_7/step_0\n", {"slurm/job_7": (V2, "300000")}, 3),
        ("0::/a/b\n", {"a": (V2, "500000"), "a/b": (V2, "300000")}, 3),
        ("0::/a/b\n", {"a": (V2, "300000"), "a/b": (V2, "500000")}, 3),
        ("0::/host/path/of/container\n", {"": (V2, "400000")}, 4),
        ("0::/a\n", {"b": (V2, "100000")}, 8),
        ("4:memory:/\n3:cpu,cpuacct:/\n", {"cpu,cpuacct": (V1, "200000")}, 2),
        ("1:cpu:/\n0::/\n", {"cpu": (V1, "250000")}, 3),
        ("1:cpu:/\n", {"cpu": (V1, "-1")}, 8),
        ("5:cpuacct,cpu:/docker/x\n", {"cpu": (V1, "100000")}, 1),
        ("5:cpu:/job\n", {"cpu/job": (V1, "100000")}, 1),
        ("5:memory:/job\n", {"cpu/job": (V1, "100000")}, 8),
        ("1:cpu:/\n0::/x\n", {"unified/x": (V2, "300000")}, 3),
        ("0::/\n", {"": ({"cpu.max": "nonsense"}, "")}, 8),
        ("0::/\n", {"": ({"cpu.max": "100000 0"}, "")}, 8),
    ],
)
def test_the_limits_of_containers_and_jobs_count(
    tmp_path: Path, groups: str, limits: dict[str, tuple[dict[str, str], str]], expected: int
):
    assert machine(tmp_path, groups, limits) == expected


def test_a_machine_without_control_groups_has_the_cores_it_has(tmp_path: Path):
    assert available_cores(cgroups=tmp_path / "none", membership=tmp_path / "none") == 8


def test_a_system_without_affinity_has_the_cores_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delattr(os, "sched_getaffinity")
    for counted, expected in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda counted=counted: counted)
        assert available_cores(cgroups=tmp_path, membership=tmp_path / "none") == expected


@pytest.mark.parametrize(("workers", "expected"), [(None, 8), (3, 3), (100, 100), (0, 6), (-1, 6)])
def test_workers_default_to_all_cores_and_zero_is_three_quarters(
    monkeypatch: pytest.MonkeyPatch, workers: int | None, expected: int
):
    monkeypatch.setattr(cores, "available_cores", lambda: 8)
    assert resolve_workers(workers) == expected


def test_three_quarters_of_one_core_is_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cores, "available_cores", lambda: 1)
    assert resolve_workers(0) == 1


def test_this_machine_has_a_core():
    assert available_cores() >= 1
