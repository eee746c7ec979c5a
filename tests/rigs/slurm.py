"""A Slurm of two nodes on this machine, under a temporary folder, with keys and ports of its own.

Jobs of its partition `urgent` take the nodes from those of `debug`, which go back into the queue.

Everything that it starts is a child of this process and stays in the foreground, so stopping it is
ending exactly these processes. It reads and writes nothing under /etc, /var and /run.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol")
START_SECONDS = 60.0
NODES = ("n1", "n2")
CPUS_PER_NODE = 4
MAX_ARRAY_SIZE = 101
REQUEUE_SECONDS = 5
"""How long a requeued job waits: as long as a job credential lives, by default two minutes.
Less than five counts as not given."""

CONFIGURATION = """\
ClusterName=rig
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={socket},cred_expire={requeue}
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=30
KillWait=5
JobRequeue=1
MaxArraySize={max_array}
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=100000
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} \
RealMemory=4000 State=UNKNOWN
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} \
RealMemory=4000 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=debug Nodes={nodes[0]},{nodes[1]} Default=YES MaxTime=INFINITE State=UP \
OverSubscribe=NO PriorityTier=1
PartitionName=urgent Nodes={nodes[0]},{nodes[1]} MaxTime=INFINITE State=UP \
OverSubscribe=NO PriorityTier=10
"""


@dataclass(frozen=True)
class Slurm:
    """A running Slurm: what a program needs in its environment to reach it."""

    folder: Path
    environment: dict[str, str]

    def call(self, *arguments: str) -> str:
        """Run a program of Slurm and return what it prints."""
        done = subprocess.run(
            arguments, env=self.environment, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def queue(self) -> list[str]:
        """Return the ids of the jobs that wait, run or end; a task of an array has its own."""
        return self.call("squeue", "--array", "--noheader", "--format", "%A").split()

    def state(self, job: str) -> str:
        """Return what Slurm says a job is doing, such as RUNNING or COMPLETED."""
        shown = self.call("scontrol", "show", "job", "-o", job)
        return shown.partition("JobState=")[2].split()[0]

    def wait(self, *, seconds: float = 120.0) -> None:
        """Wait until no job is left."""
        wait_until(lambda: not self.queue(), seconds=seconds, what="all jobs to end")

    def cancel_all(self) -> None:
        """End whatever a test has left."""
        if self.queue():
            self.call("scancel", "--user", "root")
            self.wait(seconds=30)


def why_not() -> str | None:
    """Return why this machine cannot run the rig, or None if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"SLURM IS NOT TESTED: {', '.join(missing)} not found (`make rigs` installs it)"
    if os.geteuid() != 0:
        return "SLURM IS NOT TESTED: its daemons need root (run the tests as root)"
    return None


@contextmanager
def slurm_rig() -> Generator[Slurm]:
    """Start munge, a controller and two nodes; stop them at the end, also after a failure."""
    with tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)  # munge refuses a socket in a folder that it cannot trust
        with _daemons(Path(name)) as rig:
            yield rig


@contextmanager
def _daemons(folder: Path) -> Generator[Slurm]:
    configuration = folder / "slurm.conf"
    names = ("state", "logs", *(f"spool.{node}" for node in NODES))
    for name in names:
        (folder / name).mkdir()
    munge_socket = folder / "munge" / "socket"
    text = CONFIGURATION.format(
        host=socket.gethostname().partition(".")[0],
        ports=_free_ports(3),
        socket=munge_socket,
        requeue=REQUEUE_SECONDS,
        folder=folder,
        max_array=MAX_ARRAY_SIZE,
        nodes=NODES,
        cpus=CPUS_PER_NODE,
    )
    configuration.write_text(text)
    # Nothing of a surrounding job may reach ours, nor what a developer has set for sbatch.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SLURM", "SBATCH", "SRUN", "TOKENMILL_", "RAY_"))
    }
    environment["SLURM_CONF"] = str(configuration)
    rig = Slurm(folder, environment)
    with ExitStack() as started:
        _start_munge(rig, munge_socket, started)
        _start(rig, started, "slurmctld", "-D", "-f", str(configuration))
        for node in NODES:
            _start(rig, started, "slurmd", "-D", "-N", node, "-f", str(configuration))
        wait_until(lambda: _num_idle(rig) == len(NODES), what="two idle nodes", log=folder / "logs")
        started.callback(_end_jobs, rig)
        yield rig


def wait_until(
    fact: Callable[[], bool],
    *,
    what: str,
    seconds: float = START_SECONDS,
    log: Path | None = None,
) -> None:
    """Poll until something is so; give up after a while with what the daemons said."""
    deadline = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > deadline:
            logs = sorted(log.iterdir()) if log else []
            said = "\n".join(f"{p.name}:\n{p.read_text(errors='replace')[-2000:]}" for p in logs)
            raise TimeoutError(f"waited {seconds:.0f} s for {what}\n{said}")
        time.sleep(0.1)


def _start_munge(rig: Slurm, munge_socket: Path, started: ExitStack) -> None:
    folder = munge_socket.parent
    folder.mkdir(mode=0o755)
    key = folder / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    _start(
        rig,
        started,
        *("munged", "--foreground", "--force", f"--socket={munge_socket}", f"--key-file={key}"),
        *(f"--pid-file={folder}/pid", f"--seed-file={folder}/seed", f"--log-file={folder}/log"),
    )
    wait_until(munge_socket.exists, what="munge's socket", log=rig.folder / "logs")


def _start(rig: Slurm, started: ExitStack, *arguments: str) -> None:
    number = len(list((rig.folder / "logs").iterdir()))
    log = (rig.folder / "logs" / f"{number}-{arguments[0]}").open("wb")
    started.callback(log.close)
    process = subprocess.Popen(
        arguments,
        env=rig.environment,
        cwd=rig.folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C in pytest must reach the jobs through us
    )
    started.callback(_stop, process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _num_idle(rig: Slurm) -> int:
    try:
        lines = rig.call("sinfo", "--noheader", "--Node", "--format", "%N %T").splitlines()
    except subprocess.CalledProcessError:  # the controller is not there yet
        return 0
    return len({line for line in lines if line.endswith(" idle")})  # one for each partition


def _end_jobs(rig: Slurm) -> None:
    """Leave no step behind: it would outlive its node."""
    try:
        rig.cancel_all()
    except (subprocess.SubprocessError, TimeoutError) as error:
        print(f"the jobs of the rig could not be ended: {error}")


def _free_ports(number: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
