"""The same command on a real Slurm: the same bytes, whatever happens to its jobs."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm_jobs import SMALL, LoginNode, wait_for_file, write_corpus

import tokenmill
from tokenmill.cluster import quote

if TYPE_CHECKING:
    from rigs.slurm import Slurm

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("slurm")]

UNITS = ("--unit-bytes", "4000", "--shard-tokens", "200000", "--workers", "1")
"""Some hundred units, so that there are many moments at which a job can end."""
SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "canary-secret-4711",
    "AWS_SESSION_TOKEN": "canary-session-4712",
    "HF_TOKEN": "canary-hub-4713",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "it's a $(touch canary) corpus.jsonl"
    write_corpus(path, num_documents=12_000)
    return path


@pytest.fixture(scope="module")
def digest(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    output = tmp_path_factory.mktemp("local") / "store"
    return tokenmill.tokenize(corpus, output, unit_bytes=4000, shard_tokens=200_000).digest


@pytest.fixture
def login(slurm: Slurm, tmp_path: Path) -> LoginNode:
    slurm.cancel_all()
    return LoginNode(slurm, tmp_path, {"XDG_CONFIG_HOME": str(tmp_path / "none")})


def test_a_job_array_gives_the_bytes_of_one_machine_and_tells_no_secret(
    slurm: Slurm, tmp_path: Path, corpus: Path, digest: str
):
    venv = tmp_path / "my 'venv'"
    (venv / "bin").mkdir(parents=True)
    seen = quote(str(tmp_path / "seen"))
    (venv / "bin" / "activate").write_text(
        f'PYTHON={quote(sys.executable)}; python3() {{ "$PYTHON" "$@"; }}\n'
        f'[ "$AWS_SECRET_ACCESS_KEY" != {SECRETS["AWS_SECRET_ACCESS_KEY"]} ] || touch {seen}\n'
    )
    login = LoginNode(slurm, tmp_path, {"XDG_CONFIG_HOME": str(tmp_path), **SECRETS})
    (tmp_path / "tokenmill").mkdir()
    (tmp_path / "tokenmill" / "slurm.json").write_text(
        json.dumps({"environment": {"venv": str(venv)}, "slurm": {"partition": "debug"}})
    )
    jobs = login.submit(*SMALL, "--array", "3", "tokenize", str(corpus), "-o", "store", *UNITS)
    assert len(jobs) == 2
    assert login.digest("store") == digest, login.logs()
    shares = [json.loads(p.read_text()) for p in sorted(tmp_path.glob("store/_run/shares/*"))]
    assert [share["where"]["job"] for share in shares] == [f"{jobs[0]}_{k}" for k in range(3)]
    assert sum(share["num_units_made"] for share in shares) == sum(s["num_units"] for s in shares)
    assert (tmp_path / "seen").exists()  # the job had the secret
    venv.joinpath("bin", "activate").unlink()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert b"canary-" not in path.read_bytes(), path


def test_tasks_that_are_killed_and_cancelled_lose_nothing(
    login: LoginNode, corpus: Path, digest: str
):
    jobs = login.submit(*SMALL, "--array", "3", "tokenize", str(corpus), "-o", "store", *UNITS)
    shares = login.folder / "store" / "_run" / "shares"
    first = json.loads(wait_for_file(shares / "000000.json", '"running"'))
    os.kill(first["where"]["pid"], signal.SIGKILL)
    wait_for_file(shares / "000001.json", '"running"')
    login.slurm.call("scancel", f"{jobs[0]}_1")
    assert login.digest("store") == digest, login.logs()
    assert json.loads((shares / "000000.json").read_text())["state"] == "running"  # it could not
    log = (login.folder / f"tokenmill-tokenize-{jobs[0]}_1.log").read_text()
    assert "back into the queue" not in log
    assert not [p for p in login.folder.rglob("*") if p.name.endswith((".partial", ".part"))]


def test_a_job_that_is_warned_stops_requeues_and_continues(
    login: LoginNode, corpus: Path, digest: str
):
    name = "odd 'log' %j"
    command = ("-o", name, "tokenize", str(corpus), "-o", "store", *UNITS)
    (job,) = login.submit(*SMALL, *command)
    events = login.folder / "store" / "_run" / "events.jsonl"
    wait_for_file(events, '"start"')
    login.slurm.call("scancel", "--signal=USR1", "--batch", job)
    log = login.folder / f"odd 'log' {job}"
    wait_for_file(log, "back into the queue")
    status = login.status("store")
    assert status["state"] == "stopped"
    assert 0 < status["num_units_done"] < status["num_units"]
    assert login.digest("store") == digest
    starts = [json.loads(e)["where"] for e in events.read_text().splitlines() if '"start"' in e]
    assert [start.get("restarts", 0) for start in starts] == [0, 1]
    assert {start["job"] for start in starts} == {job}
    text = log.read_text()  # both attempts are in one log
    assert text.index("back into the queue") < text.index("continuing: ")


def test_a_job_whose_node_is_taken_away_continues(login: LoginNode, corpus: Path, digest: str):
    (job,) = login.submit(*SMALL, "tokenize", str(corpus), "-o", "store", *UNITS)
    events = login.folder / "store" / "_run" / "events.jsonl"
    wait_for_file(events, '"start"')
    urgent = ("--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null")
    login.slurm.call("sbatch", *urgent, "--wrap=sleep 1")
    log = login.folder / f"tokenmill-tokenize-{job}.log"
    assert "stopped at a safe point; the job is " in wait_for_file(log, "stopped at a safe point")
    assert login.digest("store") == digest
    starts = [json.loads(e)["where"] for e in events.read_text().splitlines() if '"start"' in e]
    assert [start.get("restarts", 0) for start in starts] == [0, 1]


def test_a_ray_cluster_over_two_nodes_gives_the_same_bytes_also_when_it_is_stopped(
    login: LoginNode, corpus: Path, digest: str
):
    before = set(Path("/tmp").glob("tokenmill-ray-*"))
    flags = ("-N", "2", "-c", "2", "--mem", "1000M")
    units = ("--unit-bytes", "16000", "--shard-tokens", "200000")
    (job,) = login.submit(*flags, "tokenize", str(corpus), "-o", "store", *units)
    wait_for_file(login.folder / "store" / "_run" / "events.jsonl", '"start"', seconds=120)
    login.slurm.call("scancel", "--signal=USR1", "--batch", job)
    log = login.folder / f"tokenmill-tokenize-{job}.log"
    wait_for_file(log, "back into the queue", seconds=120)
    assert "Ray is ready with 4 cores" in log.read_text()
    assert set(Path("/tmp").glob("tokenmill-ray-*")) == before  # the first cluster is gone
    assert login.digest("store") == digest
    assert log.read_text().count("Ray is ready with 4 cores") == 2
    assert set(Path("/tmp").glob("tokenmill-ray-*")) == before


def test_the_status_shows_the_jobs_of_a_run(login: LoginNode, corpus: Path):
    (login.folder / "bin").mkdir()
    sleeper = login.folder / "bin" / "activate"
    sleeper.write_text(f'python3() {{ {quote(sys.executable)} "$@"; sleep 30; }}\n')
    jobs = login.submit(
        *(*SMALL, "--array", "2", "--conf", f"environment.venv={login.folder}"),
        *("tokenize", str(corpus), "-o", "store", *UNITS),
    )
    shares = login.folder / "store" / "_run" / "shares"
    wait_for_file(shares / "000000.json", '"done"')
    wait_for_file(shares / "000001.json", '"done"')
    status = login.status("store")
    assert (status["num_shares"], status["num_shares_done"]) == (2, 2)
    assert status["num_units_done"] == status["num_units"]
    state = json.loads((shares / "000001.json").read_text())
    state["state"] = "running"
    state["where"]["host"] = "another-node"  # whose processes cannot be seen from here
    (shares / "000001.json").write_text(json.dumps(state))
    status = login.status("store")
    assert (status["state"], status["jobs"]) == ("running", [f"{jobs[0]}_1"])
    assert f"{jobs[0]}_1 on n" in login.tokenmill("status", "store").stdout
    state["time"] -= 1000
    (shares / "000001.json").write_text(json.dumps(state))
    assert login.status("store")["state"] == "stopped"
    login.slurm.cancel_all()


def test_an_array_that_is_too_large_is_refused(login: LoginNode, corpus: Path):
    done = login.tokenmill("run", "--array", "102", "tokenize", str(corpus), "-o", "store")
    assert done.returncode == 2
    assert "this Slurm takes 101" in done.stderr
    assert not login.slurm.queue()


def test_what_sbatch_refuses_is_said(login: LoginNode):
    done = login.tokenmill("run", "--partition", "nowhere", "verify", "s")
    assert done.returncode == 2
    assert "invalid partition" in done.stderr
