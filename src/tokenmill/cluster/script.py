"""The text of a batch script: pure, reviewable, and with every value in quotes or refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from tokenmill.cluster.job import JobSettings
from tokenmill.cluster.quoting import directive_path, directive_word, quote
from tokenmill.cluster.ray_script import ENDING as RAY_ENDING
from tokenmill.cluster.ray_script import ray_lines
from tokenmill.cluster.settings import ClusterSettings, EnvironmentSettings

MARK = "# Written by `tokenmill run`"
"""A file that has this in it was made by us, and may be made anew."""
RESUMABLE = 75
"""The exit code of a run that stopped at a safe point."""
_TERMINATED = 128 + 15
"""The exit code of a command that was told to stop before it could listen."""
_TORCHRUN_STOPPED = 1
"""The exit code of torchrun when it was told to stop, whatever its processes say."""

_STOPPING = """\
# Slurm warns before the time is up (USR1) and before it takes the nodes away (TERM): then tokenmill
# stops at a safe point, with exit code 75, and the job goes back into the queue to continue.
child='' reason='' num_signals=0
stop() {
    num_signals=$((num_signals + 1))
    if [ -z "$reason" ]; then
        reason=$1
        [ -z "$child" ] || kill -TERM "$child"
    fi
}
trap 'stop USR1' USR1
trap 'stop TERM' TERM
"""
_RUNNING = """\
"${command[@]}" &
child=$!
[ -z "$reason" ] || kill -TERM "$child"
while true; do
    before=$num_signals
    wait "$child"
    code=$?
    [ "$before" -ne "$num_signals" ] || break # otherwise a signal ended the wait, not the child
done
"""
_ENDING = """\
case "$code/$reason" in
    {codes}) ;;
    *) exit "$code" ;;
esac
state=$({scontrol} show job -o "$SLURM_JOB_ID" | sed -n 's/.* JobState=\\([A-Z_]*\\).*/\\1/p')
if [ "$state" != RUNNING ]; then # cancelled, or in the queue again by Slurm's own doing
    echo "tokenmill run: stopped at a safe point; the job is $state" >&2
elif [ "${{SLURM_RESTART_COUNT:-0}}" -ge {max_restarts} ]; then
    echo "tokenmill run: stopped at a safe point after {max_restarts} restarts; submit it again" >&2
else
    echo "tokenmill run: stopped at a safe point; back into the queue" >&2
    {scontrol} requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchJob:
    """One job: what it runs, where, and with how much."""

    cluster: ClusterSettings
    job: JobSettings
    arguments: tuple[str, ...]
    """What follows `tokenmill` on the command line: a verb and its arguments."""
    folder: str
    """Where the command was given, so that its relative paths mean the same."""
    python: str
    """The interpreter that has tokenmill, unless the environment settings bring one."""
    ray: bool = False
    """Whether a Ray cluster over the nodes is started for it."""
    num_processes: int = 1
    """Copies of the command that work together, each with a GPU: training, by torchrun."""


def batch_script(batch: BatchJob) -> str:
    """Return the script of a job."""
    scontrol = quote(batch.cluster.slurm.program("scontrol"))
    ending = _ENDING.format(
        codes=" | ".join(f"{code}/?*" for code in _stop_codes(batch)),
        scontrol=scontrol,
        max_restarts=batch.job.max_restarts,
    )
    sections = [
        "\n".join(["#!/bin/bash", f"{MARK} {version('tokenmill')}.", *_directives(batch)]) + "\n",
        "set -uo pipefail\n" + f"cd -- {quote(batch.folder)} || exit 5\n",
        "\n".join(_environment(batch.cluster.environment, batch)) + "\n",
        _STOPPING,
        *(["\n".join(ray_lines(batch.cluster.slurm, batch.job)) + "\n"] if batch.ray else []),
        "\n".join(_command(batch)) + "\n" + _RUNNING,
        *([RAY_ENDING] if batch.ray else []),
        ending,
    ]
    return "\n".join(sections)


def _stop_codes(batch: BatchJob) -> list[int]:
    """Return the exit codes that, after a signal, mean that the command can be continued."""
    also = [_TORCHRUN_STOPPED] if batch.num_processes > 1 else []
    return [RESUMABLE, _TERMINATED, *also]


def finishing_job(batch: BatchJob) -> BatchJob:
    """Return the job that follows an array: the plain command, which does what is missing."""
    name = f"{batch.job.job_name}-finish"
    job = replace(batch.job, array=None, job_name=name, log=f"{name}-%j.log", error_log=None)
    return replace(batch, job=job)


def _directives(batch: BatchJob) -> Iterator[str]:
    """Yield the lines that sbatch reads; the shell takes them for comments."""
    job, slurm = batch.job, batch.cluster.slurm
    values = {
        "job-name": directive_word(job.job_name, what="job_name"),
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": job.cpus,
        "mem": job.mem,
        "time": job.time,
        "gres": f"gpu:{job.gpus_per_node}" if job.gpus_per_node else None,
        "constraint": job.constraint,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "array": _array(job),
        "output": _log(job.log, batch.folder),
        "error": None if job.error_log is None else _log(job.error_log, batch.folder),
        "open-mode": "append",  # a requeued job continues its log
        "export": "ALL",  # the shell's variables travel with the job; none is written down
        "signal": f"B:USR1@{job.warning_seconds}",
    }
    yield from (f"#SBATCH --{name}={value}" for name, value in values.items() if value is not None)
    yield "#SBATCH --requeue"
    if batch.ray:
        yield "#SBATCH --no-kill"  # Ray goes on without a node that is lost


def _array(job: JobSettings) -> str | None:
    if job.array is None:
        return None
    _, percent, limit = job.array.partition("%")
    return f"0-{job.num_shares - 1}{percent}{limit}"


def _log(path: str, folder: str) -> str:
    return directive_path(str(Path(folder) / Path(path).expanduser()), what="log")


def _environment(environment: EnvironmentSettings, batch: BatchJob) -> Iterator[str]:
    """Yield lines that set up modules and the like, and say how Python is called there."""
    if environment.modules:
        yield "if ! type module >/dev/null 2>&1; then"
        yield "    for file in /etc/profile.d/{modules,lmod,z00_lmod}.sh; do"
        yield '        [ ! -r "$file" ] || source "$file"'
        yield "    done"
        yield "fi"
        yield from (f"module load {quote(name)} || exit 2" for name in environment.modules)
    if environment.conda_env is not None:
        yield "set +u # conda's own scripts use variables that are not set"
        yield 'hook=$("${CONDA_EXE:-conda}" shell.bash hook) && eval "$hook" || exit 2'
        yield f"conda activate {quote(_conda(environment.conda_env))} || exit 2"
        yield "set -u"
        yield "python=(python3)"
    elif environment.venv is not None:
        activate = Path(environment.venv).expanduser().absolute() / "bin" / "activate"
        yield f"source {quote(str(activate))} || exit 2"
        yield "python=(python3)"
    elif environment.singularity_image is not None:
        image = environment.singularity_image
        if "://" not in image:
            image = str(Path(image).expanduser().absolute())
        gpus = " --nv" if batch.job.gpus_per_node else ""
        yield "container=$(command -v apptainer || command -v singularity) || exit 2"
        yield f'python=("$container" exec{gpus} {quote(image)} python3)'
    else:
        yield f"python=({quote(batch.python)})"


def _conda(name: str) -> str:
    """Return the name of a conda environment, or the whole path of its folder."""
    return str(Path(name).expanduser().absolute()) if "/" in name else name


def _command(batch: BatchJob) -> Iterator[str]:
    words = " ".join(quote(argument) for argument in batch.arguments)
    several = batch.num_processes
    torchrun = f"-m torch.distributed.run --standalone --nproc-per-node={several} "
    yield f'command=("${{python[@]}}" {torchrun if several > 1 else ""}-m tokenmill {words})'
    if batch.job.array is not None:
        yield f'command+=(--share "$SLURM_ARRAY_TASK_ID/{batch.job.num_shares}")'
