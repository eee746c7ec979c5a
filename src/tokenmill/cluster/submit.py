"""Write batch scripts and hand them to sbatch."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenmill.cluster.quoting import quote
from tokenmill.cluster.script import MARK, BatchJob, batch_script, finishing_job
from tokenmill.cluster.settings import SlurmSettings
from tokenmill.errors import ConfigError
from tokenmill.files import atomic_write, storage_error

_AFTER = "--kill-on-invalid-dep=yes"
_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Prepared:
    """Scripts that are written and can be submitted: the job, and one that follows an array."""

    scripts: tuple[Path, ...]
    slurm: SlurmSettings

    def lines(self) -> list[str]:
        """Return what to type to submit them."""
        sbatch = [*_without_defaults(), self.slurm.program("sbatch")]
        if len(self.scripts) == 1:
            return [_line([*sbatch, str(self.scripts[0])])]
        array, finish = (str(script) for script in self.scripts)
        dependency = f'--dependency=afterany:"$array" {_AFTER}'
        return [
            f"array=$({_line([*sbatch, '--parsable', array])})",
            f"{_line(sbatch)} {dependency} {quote(finish)}",
        ]


def prepare(batch: BatchJob, path: Path) -> Prepared:
    """Write the script of a job at `path`, and that of the job that follows an array beside it."""
    jobs = {path: batch}
    if batch.job.array is not None:
        jobs[path.with_name(f"{path.stem}-finish{path.suffix}")] = finishing_job(batch)
    for place, job in jobs.items():
        _check_free(place)
        _make_log_folder(job)
    for place, job in jobs.items():
        try:
            with atomic_write(place) as file:
                file.write(batch_script(job).encode())
        except OSError as error:
            raise storage_error(error, place) from error
    return Prepared(tuple(jobs), batch.cluster.slurm)


def submit(prepared: Prepared) -> list[str]:
    """Submit the scripts and return the ids of the jobs; the second waits for the first to end."""
    slurm = prepared.slurm
    first, *rest = prepared.scripts
    jobs = [_sbatch(slurm, [str(first)])]
    try:
        for script in rest:
            after = [f"--dependency=afterany:{jobs[0]}", _AFTER]
            jobs.append(_sbatch(slurm, [*after, str(script)]))
    except ConfigError:
        _call(slurm, "scancel", [jobs[0]])  # nothing would put the parts together
        raise
    return jobs


def check_array_size(slurm: SlurmSettings, num_shares: int) -> None:
    """Refuse an array that is larger than this Slurm takes."""
    shown = _call(slurm, "scontrol", ["show", "config"])
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", shown, re.MULTILINE)
    if match is not None and num_shares > int(match[1]):
        raise ConfigError(
            f"array is {num_shares}, this Slurm takes {match[1]} (MaxArraySize)",
            hint=f"--array {match[1]}: each task then makes more units",
        )


def _sbatch(slurm: SlurmSettings, arguments: Sequence[str]) -> str:
    """Submit one script; the answer is its number, then a cluster's name if there are several."""
    answer = _call(slurm, "sbatch", ["--parsable", *arguments]).strip()
    job = answer.partition(";")[0]
    if not job.isdecimal():
        raise ConfigError(f"sbatch answered {answer!r}, expected the number of a job")
    return job


def _call(slurm: SlurmSettings, name: str, arguments: Sequence[str]) -> str:
    program = slurm.program(name)
    environment = {n: v for n, v in os.environ.items() if n not in _defaults()}
    try:
        done = subprocess.run(
            [program, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_SECONDS,
        )
    except OSError as error:
        raise ConfigError(
            f"{program}: {error.strerror}",
            hint="submit from a login node, name the folder with --conf slurm.slurm_bin_dir=DIR, "
            "or use --no-submit",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{program} did not answer in {_SECONDS} s") from error
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
        raise ConfigError(f"{name} refused: {said}", hint="`sinfo` shows the partitions and nodes")
    return done.stdout


def _defaults() -> list[str]:
    """Return the variables that sbatch puts above what a script says; ours is explicit."""
    return sorted(name for name in os.environ if name.startswith("SBATCH_"))


def _without_defaults() -> list[str]:
    names = [word for name in _defaults() for word in ("-u", name)]
    return ["env", *names] if names else []


def _line(words: Sequence[str]) -> str:
    return " ".join(quote(word) for word in words)


def _check_free(path: Path) -> None:
    """Refuse to write over a file that is not a script of ours."""
    try:
        head = path.read_bytes()[:200] if path.exists() else MARK.encode()
    except OSError as error:
        raise storage_error(error, path) from error
    if MARK.encode() not in head:
        raise ConfigError(
            f"{path}: is there, and not a script of `tokenmill run`",
            hint="name another file with --submit-script",
        )


def _make_log_folder(batch: BatchJob) -> None:
    """Make the folder of the log: without it Slurm ends a job without a word."""
    for log in (batch.job.log, batch.job.error_log):
        folder = None if log is None else (Path(batch.folder) / Path(log).expanduser()).parent
        if folder is not None and "%" not in str(folder):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise storage_error(error, folder) from error
