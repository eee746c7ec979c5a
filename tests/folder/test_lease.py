"""A lock in an object store: held while it is renewed, taken over when its holder is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import pytest

from tokenmill.errors import BusyError
from tokenmill.folder import lease
from tokenmill.folder.lease import Holder, hold_lease, lease_holder
from tokenmill.remote import list_objects, put_object, read_object

if TYPE_CHECKING:
    from rigs.ceph import Ceph

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ceph")]

THERE = Holder(id="a", host="far", machine="far away", pid=7, started="1", time=0.0)


@pytest.fixture
def url(ceph: Ceph, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in ceph.environment.items():
        monkeypatch.setenv(name, value)
    return f"{ceph.url('lease')}/_run/locks"


def leave(url: str, number: int = 1, **changes: object) -> None:
    """Write what another holder would have written."""
    holder = msgspec.structs.replace(THERE, **changes)
    put_object(f"{url}/{number:06d}.json", msgspec.json.encode(holder))


def wait_until_lost(mine: lease.Lease) -> None:
    while True:
        mine.check()
        time.sleep(0.01)


def test_one_that_was_renewed_lately_on_another_machine_is_respected(url: str):
    leave(url, time=time.time() - lease.STALE_SECONDS / 2)
    assert lease_holder(url) == "pid 7 on far"
    with pytest.raises(BusyError, match="pid 7 on far") as caught, hold_lease(url):
        pass
    assert "heard of 45 s ago" in str(caught.value)


def test_one_that_is_stale_is_taken_over(url: str):
    leave(url, number=41, time=time.time() - lease.STALE_SECONDS - 1)
    assert lease_holder(url) is None
    with hold_lease(url):
        assert lease_holder(url) == f"pid {os.getpid()} on {os.uname().nodename}"
    assert [info.path for info in list_objects(url)] == [f"{url}/000042.json"]
    assert msgspec.json.decode(read_object(f"{url}/000042.json"))["is_released"]


def test_one_of_a_dead_process_of_this_machine_does_not_hold_for_a_moment(url: str):
    program = "from tokenmill.folder.lease import Lease; import os, sys; Lease(sys.argv[1]); "
    ended = subprocess.run([sys.executable, "-c", f"{program}os._exit(9)", url], check=False)
    assert ended.returncode == 9
    assert len(list_objects(url)) == 1
    with hold_lease(url):
        assert lease_holder(url) is not None


def test_one_of_a_living_process_of_this_machine_holds_however_old_it_is(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    with hold_lease(url):
        monkeypatch.setattr(lease, "STALE_SECONDS", -1.0)
        assert lease_holder(url) is not None


def test_of_many_that_take_over_at_once_one_gets_it(url: str):
    leave(url)

    def try_once(_: int) -> lease.Lease | None:
        try:
            return lease.Lease(url)
        except BusyError:
            return None

    with ThreadPoolExecutor(8) as pool:
        held = [got for got in pool.map(try_once, range(8)) if got is not None]
    assert len(held) == 1
    held[0].release()
    assert lease_holder(url) is None


def test_it_is_renewed_and_one_that_lost_it_is_told(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.05)
    with hold_lease(url) as mine:
        before = list_objects(url)
        while list_objects(url) == before:
            time.sleep(0.01)
        mine.check()
        leave(url, number=2, time=time.time())
        with pytest.raises(BusyError, match=r"taken over by another run \(pid 7 on far\)"):
            wait_until_lost(mine)
    assert lease_holder(url) == "pid 7 on far"  # it was not ours to release
