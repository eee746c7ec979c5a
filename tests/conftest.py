"""What all tests share: how they are divided between processes, and the rigs."""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rigs import ceph as ceph_rig
from rigs import ray_cluster as ray_rigs
from rigs import slurm as slurm_rigs
from rigs.ceph import Ceph, running_ceph
from rigs.ray_cluster import RayRig, ray_cluster
from rigs.slurm import Slurm, slurm_rig

WHY_NOT = {
    "ceph": ceph_rig.why_not,
    "slurm": slurm_rigs.why_not,
    "ray_rig": ray_rigs.missing,
}
"""Of each fixture that starts something real: what to ask for the reason why it cannot."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file in one process, or those of a rig: what they set up serves all.

    `--dist loadgroup` should do that by itself, but its groups do nothing with pytest 9.2: xdist
    3.8 adds them to names of tests that pytest no longer reads.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByRig(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _rig_of(nodeid.partition("::")[0])

    return ByRig(config, log)


@cache
def _rig_of(file: str) -> str:
    """Return the name of the rig that the tests of a file say they need, else that of the file."""
    path = Path(__file__).parent.parent / file
    found = re.search(r'xdist_group\("(\w+)"\)', path.read_text()) if path.is_file() else None
    return found[1] if found else file


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the rigs, the longest groups of all, so that none is left over at the end."""
    items.sort(key=lambda item: item.get_closest_marker("cluster") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the tests of a rig that cannot run here: all from one line, so that one line says so."""
    for name in getattr(item, "fixturenames", ()):
        reason = WHY_NOT[name]() if name in WHY_NOT else None
        if reason:
            pytest.skip(reason)


@pytest.fixture(scope="session")
def ceph() -> Generator[Ceph]:
    """A real S3 server; mark its tests `cluster` and `xdist_group("ceph")`."""
    with running_ceph() as running:
        yield running


@pytest.fixture
def s3_place(ceph: Ceph, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new, empty place in the object store, which the environment opens."""
    for name, value in ceph.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return ceph.url()


@pytest.fixture(scope="session")
def slurm() -> Generator[Slurm]:
    """A real Slurm of two nodes; mark its tests `cluster` and `xdist_group("slurm")`."""
    with slurm_rig() as running:
        yield running


@pytest.fixture(scope="session")
def ray_rig() -> Generator[RayRig]:
    """A real Ray cluster; mark its tests `cluster` and `xdist_group("ray")`."""
    with ray_cluster([Path(__file__).parent / "engine"]) as running:
        yield running
