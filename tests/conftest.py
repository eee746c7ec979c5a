"""What all tests share: how they are divided between processes, and the rigs."""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from rigs.ceph import Ceph, missing_programs, running_ceph
from rigs.ray_cluster import RayRig, missing, ray_cluster
from rigs.slurm import Slurm, slurm_rig, why_not


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


@pytest.fixture(scope="session")
def ceph() -> Generator[Ceph]:
    """A real S3 server; mark its tests `cluster` and `xdist_group("ceph")`."""
    missing = missing_programs()
    if missing:
        pytest.skip(f"NO OBJECT STORE WAS TESTED: {', '.join(missing)} missing; run `make rigs`")
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
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with slurm_rig() as running:
        yield running


@pytest.fixture(scope="session")
def ray_rig() -> Generator[RayRig]:
    """A real Ray cluster; mark its tests `cluster` and `xdist_group("ray")`."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    with ray_cluster([Path(__file__).parent / "engine"]) as running:
        yield running
