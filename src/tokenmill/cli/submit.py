"""`tokenmill run`: the same command, as a job of Slurm."""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tokenmill.cli.options import group_catalog, json_option, resolve_settings
from tokenmill.errors import ConfigError

if TYPE_CHECKING:
    from tokenmill.cluster import JobSettings

EPILOG = """\b
Examples:
  tokenmill run -c 32 --time 4:00:00 tokenize 'crawl/*.jsonl.zst' -o store
  tokenmill run --array 64 -c 16 --partition long tokenize crawl/ -o store
  tokenmill run -N 8 -c 64 --conf environment.venv=$HOME/venv tokenize crawl/ -o store
  tokenmill run --no-submit --submit-script job.sh tokenizer train crawl/ -o tok
  tokenmill status store
"""
_SECRET_IN_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s]*@")


@click.command(
    "run",
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.option("--conf", multiple=True, metavar="FILE|KEY=VALUE", help="Settings of this cluster.")
@click.option("-N", "--nodes", type=int, help="Nodes; Ray shares the work out.  [default: 1]")
@click.option("-c", "--cpus", "--cpus-per-task", type=int, help="Cores a node.  [default: 40]")
@click.option("--mem", help="Memory a node.  [default: 40G]")
@click.option("-t", "--time", help="Time limit; the job continues after it.  [default: 1-00:00:00]")
@click.option("--gpus-per-node", type=int, help="GPUs a node.")
@click.option("--constraint", help="Features that nodes must have.")
@click.option("-p", "--partition", help="Partition.")
@click.option("-A", "--account", help="Account that is charged.")
@click.option("-q", "--qos", help="Quality of service.")
@click.option("-J", "--job-name", help="Name of the job.  [default: tokenmill-VERB]")
@click.option("-o", "--output", "log", metavar="LOG", help="Log file.  [default: NAME-%j.log]")
@click.option("-e", "--error", "error_log", metavar="ERR", help="Log file of stderr alone.")
@click.option("--array", metavar="N[%M]", help="Share units among N jobs, without Ray.")
@click.option("--max-restarts", type=int, help="How often it requeues itself.  [default: 50]")
@click.option("--submit-script", type=click.Path(path_type=Path), help="Where the script goes.")
@click.option("--no-submit", is_flag=True, help="Write the script and print the sbatch line.")
@json_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="VERB [ARGUMENTS]...")
def command(
    conf: tuple[str, ...],
    arguments: tuple[str, ...],
    *,
    submit_script: Path | None,
    no_submit: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Run VERB, any command of tokenmill, as a job of Slurm.

    The job stops at a safe point before its time is up or its nodes are taken away, goes back into
    the queue, and continues.
    """
    from tokenmill.cli.output import print_json
    from tokenmill.cluster import BatchJob, check_array_size, prepare, read_settings, submit

    places = {name: flags.pop(name) for name in ("partition", "account", "qos")}
    cluster = read_settings(conf, {"slurm": places})
    verb = _parse_verb(arguments)
    job = _job_settings(verb, flags)
    batch = BatchJob(
        cluster=cluster,
        job=job,
        arguments=_job_arguments(verb, arguments, job),
        folder=str(Path.cwd()),
        python=sys.executable,
        ray=_uses_ray(verb, job),
        num_processes=max(job.gpus_per_node, 1) if _verb_name(verb) == "train" else 1,
    )
    script = (submit_script or Path(f"{job.job_name}.sh")).expanduser().absolute()
    if not no_submit and job.num_shares:
        check_array_size(cluster.slurm, job.num_shares)
    prepared = prepare(batch, script)
    jobs = [] if no_submit else submit(prepared)
    if as_json:
        scripts = [str(path) for path in prepared.scripts]
        print_json({"jobs": jobs, "scripts": scripts, "commands": prepared.lines()})
    elif no_submit:
        click.echo("\n".join(prepared.lines()))
    else:
        _print_jobs(jobs, prepared.scripts, output=verb.params.get("output"))


def _parse_verb(arguments: tuple[str, ...]) -> click.Context:
    """Parse the command that the job will run, so that mistakes show here and not in a log."""
    if any(_SECRET_IN_URL.search(argument) for argument in arguments):
        raise ConfigError(  # which argument is not said: it would go into logs
            "an argument is a URL with a user or password in it",
            hint="credentials come from the environment or the usual files",
        )
    if not arguments or arguments[0] == "run":
        raise click.UsageError("name what to run: tokenmill run [OPTIONS] tokenize …")
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    fresh = click.Context(root.command, info_name="tokenmill", obj=root.obj)
    context = _leaf(root.command, arguments, fresh)
    if _verb_name(context) == "tokenize":
        _check_tokenize(context)
    return context


def _leaf(parent: click.Group, arguments: tuple[str, ...], context: click.Context) -> click.Context:
    """Return the parsed context of the innermost command."""
    name = arguments[0] if arguments else ""
    found = parent.get_command(context, name)
    if found is None:
        near = difflib.get_close_matches(name, parent.list_commands(context), n=1)
        more = f" Did you mean {near[0]!r}?" if near else ""
        raise click.UsageError(f"No such command {name!r}.{more}", ctx=context)
    rest = arguments[1:]
    if isinstance(found, click.Group):
        return _leaf(found, rest, click.Context(found, info_name=name, parent=context))
    return found.make_context(name, list(rest), parent=context)


def _check_tokenize(context: click.Context) -> None:
    from tokenmill.pipeline import TokenizeSettings

    names = {field.name for field in dataclasses.fields(TokenizeSettings)}
    flags = {name: value for name, value in context.params.items() if name in names}
    flags["sources"] = flags["sources"] or None
    config, assignments = context.params["config"], context.params["assignments"]
    resolve_settings(TokenizeSettings, flags, config=config, assignments=assignments)


def _job_settings(verb: click.Context, flags: dict[str, Any]) -> JobSettings:
    """Return the flags as settings, with names made from the verb."""
    from tokenmill.cluster import JobSettings
    from tokenmill.config import resolve

    name = flags["job_name"] or f"tokenmill-{_verb_name(verb).replace(' ', '-')}"
    log = f"{name}-%A_%a.log" if flags["array"] else f"{name}-%j.log"
    job = resolve(JobSettings, {"job_name": name, "log": log}, flags)
    if job.array is not None:
        _check_array(verb)
    elif job.nodes > 1 and not _has_ray(verb):
        raise ConfigError(
            f"`tokenmill {_verb_name(verb)}` runs on one node, and {job.nodes} were asked for",
            hint="drop -N",
        )
    return job


def _check_array(verb: click.Context) -> None:
    """Only a store is made of units that can be made apart."""
    from tokenmill.pipeline import is_single_file

    if _verb_name(verb) != "tokenize":
        raise ConfigError(f"--array is for tokenize, not for {_verb_name(verb)}", hint="drop it")
    if verb.params.get("dry_run") or is_single_file(verb.params["output"]):
        raise ConfigError("--array is for a run that writes a store: name a folder with -o")
    if verb.params.get("share") is not None:
        raise ConfigError("--array gives each of its tasks a --share: drop yours")
    if verb.params.get("engine") == "ray":
        raise ConfigError("--array works without Ray, and --engine ray asks for it: drop one")


def _job_arguments(
    verb: click.Context, arguments: tuple[str, ...], job: JobSettings
) -> tuple[str, ...]:
    """Return the verb and its arguments as the job runs them, with what the job knows."""
    catalog = group_catalog()
    before = () if catalog is None else ("--catalog", catalog)
    if _uses_ray(verb, job):
        given = verb.params.get("engine") == "ray"
        return (*before, *_with_flags(verb, arguments, () if given else ("--engine", "ray")))
    assigned = any(a.startswith("workers=") for a in verb.params.get("assignments", ()))
    if "workers" in verb.params and verb.params["workers"] is None and not assigned:
        return (*before, *_with_flags(verb, arguments, ("--workers", str(job.cpus))))
    return (*before, *arguments)


def _with_flags(
    verb: click.Context, arguments: tuple[str, ...], flags: tuple[str, ...]
) -> tuple[str, ...]:
    """Put flags right after the verb's name: what follows `--` is not for flags."""
    num_names = len(_verb_name(verb).split())
    return (*arguments[:num_names], *flags, *arguments[num_names:])


def _has_ray(verb: click.Context) -> bool:
    return any(parameter.name == "engine" for parameter in verb.command.params)


def _uses_ray(verb: click.Context, job: JobSettings) -> bool:
    """Tell whether the job gets a Ray cluster: it has several nodes, or Ray is asked for."""
    engine = verb.params.get("engine")
    if engine not in {None, "ray"} and job.nodes > 1:
        raise ConfigError(f"--engine {engine} works on one node, and {job.nodes} were asked for")
    return _has_ray(verb) and not job.num_shares and (job.nodes > 1 or engine == "ray")


def _verb_name(context: click.Context) -> str:
    """Return the words of the verb, such as `tokenizer train`."""
    return context.command_path.removeprefix("tokenmill ")


def _print_jobs(jobs: list[str], scripts: tuple[Path, ...], *, output: Path | None) -> None:
    from tokenmill.cluster import quote

    roles = ("job", "then") if len(jobs) > 1 else ("job",)
    for role, job, script in zip(roles, jobs, scripts, strict=True):
        click.echo(f"{role} {job}: {script}")
    status = "" if output is None else f"tokenmill status {quote(str(output))} · "
    click.echo(f"next: {status}squeue --job {','.join(jobs)}")
