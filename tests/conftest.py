"""What all tests share: how they are divided between processes, and the rigs."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from rigs.ceph import Ceph, missing_programs, running_ceph
from rigs.slurm import Slurm, slurm_rig, why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file in one process, or those of a rig: what they set up serves all."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.location[0]))


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
