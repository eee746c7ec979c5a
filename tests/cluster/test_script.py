"""Batch scripts without Slurm: bash itself says what it reads in them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.cluster import BatchJob, ClusterSettings, JobSettings, batch_script, quote
from tokenmill.config import resolve
from tokenmill.errors import ConfigError

# Everything that can be an argument of a program: any bytes but zero, as Python holds them.
ARGUMENTS = st.lists(
    st.one_of(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30),
        st.text("'\"$`\\!#&;|<>(){}[]*?~-= \n\r\t", max_size=12),
        st.binary(max_size=8).map(lambda data: os.fsdecode(data.replace(b"\0", b""))),
    ),
    max_size=12,
)
HOSTILE = [
    "$(touch canary)",
    "`touch canary`",
    "; touch canary",
    "' ; touch canary ; '",
    '" ; touch canary ; "',
    "x\ntouch canary",
    "x\n#SBATCH --output=canary",
    "x\r\ntouch canary",
    "-x",
    "--wrap=touch canary",
    "${IFS}x",
    "a b",
    "",
    "\x00",
    "é\x1b[0m",
]


def make(
    arguments: list[str] | None = None,
    *,
    ray: bool = False,
    num_processes: int = 1,
    **changes: Any,
) -> str:
    """Return the script of a small job."""
    batch = BatchJob(
        cluster=resolve(ClusterSettings, changes.pop("cluster", {})),
        job=resolve(JobSettings, {"cpus": 2, **changes}),
        arguments=("tokenize", *(arguments or [])),
        folder=str(Path.cwd()),
        python=sys.executable,
        ray=ray,
        num_processes=num_processes,
    )
    return batch_script(batch)


def bash(text: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", *arguments], input=os.fsencode(text), capture_output=True, check=False, **options
    )


@settings(max_examples=150, deadline=None)
@given(ARGUMENTS)
def test_bash_reads_every_quoted_value_as_it_was(values: list[str]):
    line = " ".join(quote(value) for value in values)
    assert line.isprintable()
    done = bash(f"for word in {line}; do printf '%s\\0' \"$word\"; done")
    assert (done.stdout, done.stderr) == (b"".join(os.fsencode(v) + b"\0" for v in values), b"")


@settings(max_examples=40, deadline=None)
@given(ARGUMENTS, st.booleans())
def test_a_script_is_good_bash_and_its_command_has_the_arguments(values: list[str], ray: bool):
    text = make(values, ray=ray)
    assert bash(text, "-n").stderr == b""
    line = next(line for line in text.splitlines() if line.startswith("command=("))
    done = bash(f"python=(p)\n{line}\nprintf '%s\\0' \"${{command[@]:3}}\"")
    assert done.stdout == b"".join(os.fsencode(v) + b"\0" for v in ("tokenize", *values))


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=40))
def test_no_value_can_begin_a_line_of_its_own(value: str):
    known = [line.partition("=")[0] for line in make().splitlines()]
    for field in ("job_name", "log", "error_log", "mem", "time", "constraint", "array"):
        try:
            text = make(**dict[str, Any]({field: value}))
        except ConfigError:
            continue
        lines = [line.partition("=")[0] for line in text.splitlines()]
        allowed = {"#SBATCH --error", "#SBATCH --constraint", "#SBATCH --array", "command+"}
        assert set(lines) - allowed <= set(known)


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
@pytest.mark.parametrize("field", ["job_name", "mem", "time", "constraint", "array"])
def test_what_sbatch_reads_as_a_word_is_refused_unless_it_is_one(field: str, value: str):
    with pytest.raises(ConfigError):
        make(**dict[str, Any]({field: value}))


@pytest.mark.parametrize("value", HOSTILE, ids=ascii)
@pytest.mark.parametrize("field", ["partition", "account", "qos"])
def test_so_are_the_values_of_files(field: str, value: str):
    with pytest.raises(ConfigError):
        make(cluster={"slurm": {field: value}})


@pytest.mark.parametrize("value", [v for v in HOSTILE if "\n" in v or "\0" in v or "\x1b" in v])
@pytest.mark.parametrize(
    "field", ["slurm.slurm_bin_dir", "environment.venv", "environment.conda_env",
              "environment.singularity_image"]
)  # fmt: skip
def test_a_path_in_the_settings_has_no_control_characters(field: str, value: str):
    group, name = field.split(".")
    with pytest.raises(ConfigError, match=re.escape(field)):
        make(cluster={group: {name: value}})


@pytest.mark.parametrize("module", HOSTILE, ids=ascii)
def test_a_module_has_the_name_of_one(module: str):
    with pytest.raises(ConfigError, match="modules"):
        make(cluster={"environment": {"modules": [module]}})


def test_the_lines_for_sbatch_are_what_was_asked_for():
    text = make(
        cluster={"slurm": {"partition": "long", "account": "lab", "qos": "high"}},
        nodes=1,
        mem="7G",
        time="2:00:00",
        gpus_per_node=2,
        constraint="a100&ib",
        job_name="my-job",
        log="logs/%j.log",
        error_log="/tmp/e r'r",
        array="8%2",
    )
    lines = dict(re.findall(r"^#SBATCH --([a-z-]+)=(.*)$", text, re.MULTILINE))
    assert lines == {
        "job-name": "my-job",
        "nodes": "1",
        "ntasks-per-node": "1",
        "cpus-per-task": "2",
        "mem": "7G",
        "time": "2:00:00",
        "gres": "gpu:2",
        "constraint": "a100&ib",
        "partition": "long",
        "account": "lab",
        "qos": "high",
        "array": "0-7%2",
        "output": f'"{Path.cwd()}/logs/%j.log"',
        "error": '"/tmp/e r\'r"',
        "open-mode": "append",
        "export": "ALL",
        "signal": "B:USR1@120",
    }


def test_a_short_job_is_warned_late_enough_to_have_worked():
    assert "--signal=B:USR1@15\n" in make(time="1")


def run_script(text: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a script as a node would, with stand-ins of `folder` first on the PATH."""
    env = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", **environment}
    return bash(text, env=env, timeout=60)


def stand_in(folder: Path, name: str, body: str) -> None:
    """Put a program on the PATH in place of one that this machine does not have."""
    path = folder / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


SAY = "printf '%s|' \"$@\"; echo"


def test_modules_are_loaded_then_the_virtual_environment_entered(tmp_path: Path):
    venv = tmp_path / "my 'venv' $(touch canary)"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "activate").write_text('PATH="$MODULES_WERE/bin:$PATH"\n')
    (tmp_path / "early" / "bin").mkdir(parents=True)
    stand_in(tmp_path / "early" / "bin", "python3", SAY)
    (tmp_path / "module.sh").write_text(
        'module() { echo "module $*"; export MODULES_WERE=' + quote(str(tmp_path / "early")) + "; }"
    )
    text = make(
        ["a b"], cluster={"environment": {"modules": ["gcc/12.2", "python"], "venv": str(venv)}}
    )
    done = run_script(text, tmp_path, BASH_ENV=str(tmp_path / "module.sh"))
    assert done.stdout.decode().splitlines() == [
        "module load gcc/12.2",
        "module load python",
        "-m|tokenmill|tokenize|a b|",
    ]
    assert not (Path.cwd() / "canary").exists()


def test_a_conda_environment_is_activated(tmp_path: Path):
    hook = 'conda() { echo "conda $*"; unset NOT_SET; : $NOT_SET; }'
    stand_in(tmp_path, "conda", f"[ \"$*\" = 'shell.bash hook' ] && echo {quote(hook)}")
    stand_in(tmp_path, "python3", SAY)
    text = make(["x"], cluster={"environment": {"conda_env": "tok"}})
    done = run_script(text, tmp_path, CONDA_EXE="conda")
    assert done.stdout.decode().splitlines() == ["conda activate tok", "-m|tokenmill|tokenize|x|"]


@pytest.mark.parametrize("program", ["singularity", "apptainer"])
def test_a_container_runs_the_command(tmp_path: Path, program: str):
    stand_in(tmp_path, program, SAY)
    image = tmp_path / "my image.sif"
    cluster = {"environment": {"singularity_image": str(image)}}
    done = run_script(make(["x"], cluster=cluster, gpus_per_node=1), tmp_path)
    assert done.stdout.decode() == f"exec|--nv|{image}|python3|-m|tokenmill|tokenize|x|\n"


def test_what_cannot_be_set_up_ends_the_job_before_it_begins(tmp_path: Path):
    text = make(cluster={"environment": {"venv": str(tmp_path / "nowhere")}})
    done = run_script(text, tmp_path)
    assert done.returncode == 2
    assert done.stdout == b""


SCONTROL = """
case "$1" in
    show) echo "JobId=7 JobName=x JobState=$STATE Reason=None" ;;
    requeue) echo "requeued $2" ;;
esac"""


@pytest.mark.parametrize(
    ("number", "state", "restarts", "requeued"),
    [
        ("USR1", "RUNNING", "0", True),
        ("TERM", "RUNNING", "1", True),
        ("TERM", "CANCELLED", "0", False),
        ("USR1", "RUNNING", "2", False),
    ],
)
def test_a_signal_stops_the_command_and_requeues_the_job_within_its_limit(
    tmp_path: Path, number: str, state: str, restarts: str, requeued: bool
):
    stand_in(tmp_path, "scontrol", SCONTROL)
    stand_in(
        tmp_path,
        "python3",
        f"trap 'sleep 0.3; exit 75' TERM; kill -{number} $PPID; kill -{number} $PPID\n"
        "while true; do sleep 0.05; done",
    )
    text = make(cluster={"environment": {"venv": str(tmp_path)}}, max_restarts=2)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activate").touch()
    done = run_script(text, tmp_path, STATE=state, SLURM_JOB_ID="7", SLURM_RESTART_COUNT=restarts)
    assert done.returncode == 75
    assert (b"requeued 7" in done.stdout) == requeued


def test_training_on_several_gpus_has_a_process_for_each(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activate").touch()
    stand_in(tmp_path, "scontrol", SCONTROL)
    body = f"{SAY}; trap 'exit 1' TERM; kill -USR1 $PPID; while true; do sleep 0.05; done"
    stand_in(tmp_path, "python3", body)  # torchrun leaves with 1 when it is told to stop
    text = make(["x"], cluster={"environment": {"venv": str(tmp_path)}}, num_processes=8)
    done = run_script(text, tmp_path, STATE="RUNNING", SLURM_JOB_ID="7")
    torchrun = "-m|torch.distributed.run|--standalone|--nproc-per-node=8|-m|tokenmill|tokenize|x|"
    assert done.stdout.decode().splitlines() == [torchrun, "requeued 7"]


@pytest.mark.parametrize("code", [0, 4, 75])
def test_without_a_signal_the_job_ends_as_the_command_does(tmp_path: Path, code: int):
    stand_in(tmp_path, "scontrol", SCONTROL)
    stand_in(tmp_path, "singularity", f"exit {code}")
    text = make(cluster={"environment": {"singularity_image": "docker://org/image:1"}})
    done = run_script(text, tmp_path, STATE="RUNNING", SLURM_JOB_ID="7")
    assert (done.returncode, done.stdout) == (code, b"")
