"""A one-node Ceph with its S3 gateway: the real thing, its data in memory, on free ports.

    with running_ceph() as ceph:
        ...  # ceph.endpoint, ceph.environment, ceph.bucket

Three daemons run as children of this process, in the foreground, and end with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from tokenmill.remote.signing import Credentials, signed_request

PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "monmaptool", "setpriv")
ACCESS_KEY = "rigkey"
SECRET_KEY = "CANARY-rig-4f1d"  # in no output and no file: see test_remote_secrets.py
KEYS = (ACCESS_KEY, SECRET_KEY)
STRANGER_KEYS = ("strangerkey", "CANARY-stranger-77ab")
BUCKET = "rig"
_READY_SECONDS = 90.0
_PAUSE_SECONDS = 0.1
_FIRST_PORT, _BLOCK_PORTS, _NUM_BLOCKS = 12000, 50, 400

_SETTINGS = """\
[global]
fsid = {fsid}
mon host = [v1:127.0.0.1:{mon_port}]
mon initial members = a
public addr = 127.0.0.1
ms bind msgr2 = false
ms bind port min = {first_port}
ms bind port max = {last_port}
auth cluster required = none
auth service required = none
auth client required = none
osd objectstore = memstore
memstore device bytes = 4294967296
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 2
osd pool default pgp num = 2
osd pool default pg autoscale mode = off
mon allow pool size one = true
paxos propose interval = 0.02
paxos min wait = 0
mon max pg per osd = 1000
mon data = {folder}/mon
osd data = {folder}/osd
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
pid file = {folder}/$name.pid
keyring = {folder}/keyring
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw thread pool size = 32
rgw enable usage log = false
rgw dns name =
"""


@dataclass(frozen=True, slots=True)
class Ceph:
    """A running S3 server."""

    endpoint: str
    bucket: str
    environment: dict[str, str]
    """The AWS_* variables that open it."""
    stranger: dict[str, str]
    """Those of a user whom the server knows, and who may not do anything in the bucket."""

    def url(self, name: str = "") -> str:
        """Return a new place in the bucket that no other test uses."""
        return f"s3://{self.bucket}/{name or 'test'}-{uuid4().hex[:8]}"


def why_not() -> str | None:
    """Return why Ceph cannot run here, or None."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return (
        f"NO OBJECT STORE WAS TESTED: {', '.join(missing)} missing; run `make rigs`"
        if missing
        else None
    )


@contextmanager
def running_ceph() -> Generator[Ceph]:
    """Start Ceph, make a user and a bucket, and stop it all after the block."""
    with ExitStack() as stack:
        endpoint, folder = _start_again(stack)
        for name, keys in (("rig", KEYS), ("stranger", STRANGER_KEYS)):
            user = ("user", "create", f"--uid={name}", f"--display-name={name}")
            secrets = (f"--access-key={keys[0]}", f"--secret={keys[1]}")
            _call(folder, "radosgw-admin", *user, *secrets)
        opened, closed = environment(endpoint), environment(endpoint, STRANGER_KEYS)
        ceph = Ceph(endpoint, BUCKET, opened, closed)
        make_bucket(ceph, BUCKET)
        yield ceph


def environment(endpoint: str, keys: tuple[str, str] = KEYS) -> dict[str, str]:
    """Return the variables that open a server at `endpoint`."""
    return {
        "AWS_ACCESS_KEY_ID": keys[0],
        "AWS_SECRET_ACCESS_KEY": keys[1],
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        # The files of whoever runs the tests say nothing here.
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_CONFIG_FILE": os.devnull,
    }


def make_bucket(ceph: Ceph, name: str) -> None:
    """Make a bucket; the library under test never does."""
    address, keys = f"{ceph.endpoint}/{name}", Credentials(*KEYS)
    request = signed_request("PUT", address, credentials=keys, region="us-east-1")
    with urllib.request.urlopen(request, timeout=30):
        pass


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _start_again(stack: ExitStack) -> tuple[str, Path]:
    """Start Ceph, a second time if the first fails; return its endpoint and its folder."""
    for attempt in range(2):
        with ExitStack() as started:
            # Sockets have short names: a folder of the tests would be too deep.
            folder = Path(tempfile.mkdtemp(prefix="tm-ceph-", dir="/tmp"))
            started.callback(shutil.rmtree, folder, ignore_errors=True)
            first_port = started.enter_context(_reserved_ports())
            daemons: list[subprocess.Popen[bytes]] = []
            started.callback(_stop, daemons)
            try:
                endpoint = _start(folder, first_port, daemons)
            except RuntimeError:
                if attempt:
                    raise
            else:
                stack.enter_context(started.pop_all())
                return endpoint, folder
    raise AssertionError


@contextmanager
def _reserved_ports() -> Generator[int]:
    """Give a block of ports that no other rig uses, below those that the system gives out itself.

    Its last port is bound for as long as the block is used, which tells others to go elsewhere.
    """
    for number in range(_NUM_BLOCKS):
        first = _FIRST_PORT + (os.getpid() + number) % _NUM_BLOCKS * _BLOCK_PORTS
        with ExitStack() as stack:
            try:
                for port in (first, first + 1, first + 2):
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", port))
                guard = stack.enter_context(socket.socket())
                guard.bind(("127.0.0.1", first + _BLOCK_PORTS - 1))
            except OSError:
                continue
            yield first
            return
    raise RuntimeError("no free ports for Ceph")


def _stop(daemons: list[subprocess.Popen[bytes]]) -> None:
    for daemon in reversed(daemons):
        daemon.send_signal(signal.SIGKILL)  # what it holds is thrown away
        daemon.wait()


def _start(folder: Path, first_port: int, daemons: list[subprocess.Popen[bytes]]) -> str:
    fsid, mon_port, port = str(uuid4()), first_port, first_port + 1
    settings = _SETTINGS.format(
        fsid=fsid,
        mon_port=mon_port,
        first_port=first_port + 2,
        last_port=first_port + _BLOCK_PORTS - 2,
        folder=folder,
        port=port,
    )
    (folder / "ceph.conf").write_text(settings)
    (folder / "keyring").touch()
    for name in ("mon", "osd"):
        (folder / name).mkdir()
    monmap = str(folder / "monmap")
    address = f"[v1:127.0.0.1:{mon_port}]"
    _call(folder, "monmaptool", "--create", "--addv", "a", address, "--fsid", fsid, monmap)
    _call(folder, "ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap)
    daemons.append(_daemon(folder, "ceph-mon", "-i", "a"))
    osd = str(uuid4())
    _call(folder, "ceph", "osd", "new", osd)  # waits for the monitor by itself
    _call(folder, "ceph", "osd", "crush", "add", "osd.0", "1.0", "root=default", "host=rig")
    _call(folder, "ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
    daemons.append(_daemon(folder, "ceph-osd", "-i", "0"))
    daemons.append(_daemon(folder, "radosgw", "-n", "client.rgw"))
    endpoint = f"http://127.0.0.1:{port}"
    _wait(lambda: _answers(endpoint), daemons, folder=folder)
    return endpoint


def _daemon(folder: Path, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a daemon in the foreground; it ends when this process does, however that ends."""
    log = (folder / f"{program}.out").open("wb")
    with log:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", program, "-f", *_settings(folder), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _call(folder: Path, program: str, *arguments: str) -> None:
    settings = () if program == "monmaptool" else _settings(folder)
    done = subprocess.run(
        [program, *settings, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_READY_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(f"{program} {' '.join(arguments[:2])} failed: {done.stderr[-2000:]}")


def _settings(folder: Path) -> tuple[str, str]:
    return "-c", str(folder / "ceph.conf")


def _answers(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(endpoint, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        with error:
            return error.code < 500
    except OSError:
        return False


def _wait(
    is_ready: Callable[[], bool], daemons: list[subprocess.Popen[bytes]], *, folder: Path
) -> None:
    stop = time.monotonic() + _READY_SECONDS
    while not is_ready():
        ended = [daemon for daemon in daemons if daemon.poll() is not None]
        if ended or time.monotonic() > stop:
            logs = "\n".join(p.read_text(errors="replace")[-1500:] for p in folder.glob("*.out"))
            what = f"{ended[0].args} ended" if ended else f"no answer in {_READY_SECONDS} s"
            raise RuntimeError(f"Ceph did not start: {what}\n{logs}")
        time.sleep(_PAUSE_SECONDS)
