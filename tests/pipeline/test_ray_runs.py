"""Whole runs on a real Ray cluster: the same bytes, whatever happens to it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from faults import command
from msgspec.structs import replace

import tokenmill
from tokenmill.engine import RayCluster, RayEngine
from tokenmill.errors import StorageError
from tokenmill.pipeline.parts import Receipt
from tokenmill.pipeline.unit import UnitTask
from tokenmill.pipeline.work import work
from tokenmill.sources import Unit
from tokenmill.sources.settings import Span
from tokenmill.store import verify

if TYPE_CHECKING:
    from rigs.ray_cluster import RayRig

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("ray")]

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "shuffled": {"shuffle": 11},
    "with val": {"val_ratio": 0.3},
    "with val documents, cut": {"val_documents": 7, "max_tokens": 60_000},
}
SECONDS = 120
NUM_RACES = 200


@pytest.fixture(scope="module")
def local_digests(
    corpus: Path, tiny_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """What one machine makes of the same input."""
    folder = tmp_path_factory.mktemp("local")
    return {
        name: tokenize(corpus, folder / name, tiny_tokenizer, **settings).digest
        for name, settings in CASES.items()
    }


def tokenize(corpus: Path, output: Path, tokenizer: Path, **settings: Any) -> tokenmill.Store:
    return tokenmill.tokenize(
        corpus,
        output,
        tokenizer=str(tokenizer),
        unit_bytes=20_000,
        shard_tokens=20_000,
        **settings,
    )


def on_ray(corpus: Path, output: Path, tokenizer: Path, rig: RayRig, *extra: str) -> list[str]:
    """The command line of a run on the rig's cluster."""
    where = ("--engine", "ray", "--address", rig.address)
    arguments = command(corpus, output, tokenizer, *where, *extra)
    workers = arguments.index("--workers")
    return arguments[:workers] + arguments[workers + 2 :]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=SECONDS, check=False)


def num_parts(output: Path) -> int:
    return len(list((output / "_run" / "parts").glob("[0-9]*.json")))


def wait_for_parts(output: Path, driver: subprocess.Popen[str], *, number: int) -> None:
    deadline = time.monotonic() + SECONDS
    while num_parts(output) < number and driver.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)


# -- equal digests


@pytest.mark.parametrize("num_nodes", [1, 2, 3])
def test_a_cluster_makes_the_store_that_one_machine_makes(
    num_nodes: int,
    ray_rig: RayRig,
    corpus: Path,
    tiny_tokenizer: Path,
    local_digests: dict[str, str],
    tmp_path: Path,
):
    ray_rig.resize(num_nodes)
    for name, settings in CASES.items():
        output = tmp_path / name
        where = {"engine": "ray", "address": ray_rig.address}
        store = tokenize(corpus, output, tiny_tokenizer, **where, **settings)
        assert store.digest == local_digests[name], name
        assert verify(output, level="full").ok
        assert not (output / "_run" / "parts").exists()


def test_a_relative_output_and_input_are_found_by_workers(
    ray_rig: RayRig,
    corpus: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    local_digests: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(corpus.parent)
    relative = Path(os.path.relpath(tmp_path / "store"))
    where = {"engine": "ray", "address": ray_rig.address}
    store = tokenize(Path(corpus.name), relative, tiny_tokenizer, **where)
    assert store.digest == local_digests["plain"]


def test_the_command_says_the_same_as_on_one_machine(
    ray_rig: RayRig, corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    local = finish([*command(corpus, tmp_path / "a", tiny_tokenizer), "--json"])
    remote = finish([*on_ray(corpus, tmp_path / "b", tiny_tokenizer, ray_rig), "--json"])
    assert (remote.returncode, remote.stderr) == (0, "")
    same = ("digest", "num_tokens", "num_documents", "dtype", "tokenizer")
    found, expected = json.loads(remote.stdout), json.loads(local.stdout)
    assert [found[name] for name in same] == [expected[name] for name in same]


def test_a_broken_document_is_the_same_error_as_on_one_machine(
    ray_rig: RayRig, tiny_tokenizer: Path, tmp_path: Path
):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "fine"}\n{"text": 7}\n')
    local = finish(command(bad, tmp_path / "a", tiny_tokenizer))
    remote = finish(on_ray(bad, tmp_path / "b", tiny_tokenizer, ray_rig))
    assert local.returncode == remote.returncode == 4
    assert remote.stderr == local.stderr
    assert "bad.jsonl: byte 17" in remote.stderr


def test_an_output_that_workers_do_not_see_is_a_clear_error(
    ray_rig: RayRig,
    corpus: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Another machine is played by a driver that marks another folder than the workers see."""
    from tokenmill.folder import LocalFolder

    write = LocalFolder.write

    def write_elsewhere(self: LocalFolder, name: str, data: bytes, **how: Any) -> None:
        elsewhere = LocalFolder(tmp_path / "elsewhere")
        (tmp_path / "elsewhere" / "_run").mkdir(parents=True, exist_ok=True)
        write(elsewhere if name == "_run/mark" else self, name, data, **how)

    monkeypatch.setattr(LocalFolder, "write", write_elsewhere)
    where = {"engine": "ray", "address": ray_rig.address}
    with pytest.raises(StorageError, match=r"node .* does not see .*store") as caught:
        tokenize(corpus, tmp_path / "store", tiny_tokenizer, **where)
    assert "all nodes share" in (caught.value.hint or "")


# -- deaths


def test_a_node_killed_in_the_middle_of_a_run_changes_nothing(
    ray_rig: RayRig,
    corpus: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    local_digests: dict[str, str],
):
    ray_rig.resize(3)
    output = tmp_path / "store"
    driver = start(on_ray(corpus, output, tiny_tokenizer, ray_rig, "--unit-bytes", "3000"))
    wait_for_parts(output, driver, number=3)
    ray_rig.kill_node(ray_rig.nodes[-1])
    _, err = driver.communicate(timeout=SECONDS)
    assert (driver.returncode, err) == (0, "")
    assert tokenmill.open_store(output).digest == local_digests["plain"]


def test_a_killed_driver_continues_where_it_was(
    ray_rig: RayRig,
    corpus: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    local_digests: dict[str, str],
):
    ray_rig.resize(2)
    output = tmp_path / "store"
    arguments = on_ray(corpus, output, tiny_tokenizer, ray_rig, "--unit-bytes", "3000")
    driver = start(arguments)
    wait_for_parts(output, driver, number=5)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.communicate()
    before = num_parts(output)
    assert before >= 5
    assert not (output / "metadata.json").exists()
    shown = [word for word in arguments if word not in {"--progress", "none"}]
    again = finish([*shown, "--progress", "plain"])
    assert again.returncode == 0
    assert f"continuing: {before:,} of " in again.stderr
    assert tokenmill.open_store(output).digest == local_digests["plain"]


def test_ctrl_c_stops_at_a_safe_point_and_the_cluster_lives_on(
    ray_rig: RayRig,
    corpus: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    local_digests: dict[str, str],
):
    output = tmp_path / "store"
    arguments = on_ray(corpus, output, tiny_tokenizer, ray_rig, "--unit-bytes", "3000")
    driver = start(arguments)
    wait_for_parts(output, driver, number=3)
    os.killpg(driver.pid, signal.SIGINT)
    _, err = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 75
    assert "the same command again" in err
    assert not list((output / "_run" / "parts").glob(".*.partial"))
    assert finish(arguments).returncode == 0
    assert tokenmill.open_store(output).digest == local_digests["plain"]


def kill_at_random(rig: RayRig, arguments: list[str], output: Path, *, num_kills: int) -> None:
    """Run a command again and again while its workers, and now and then its driver, are killed."""
    rng = random.Random(num_kills)
    num_left = num_kills
    driver = start(arguments)
    deadline = time.monotonic() + SECONDS + 10 * num_kills
    while num_left:
        assert time.monotonic() < deadline, f"{num_left} kills are left"
        time.sleep(rng.uniform(0.01, 0.2))
        if driver.poll() is not None:
            driver.communicate()
            if (output / "metadata.json").exists():  # it was faster than we
                shutil.rmtree(output)
            driver = start(arguments)
        busy = rig.workers()
        if busy:
            os.kill(driver.pid if num_left % 4 == 3 else rng.choice(busy), signal.SIGKILL)
            num_left -= 1
    driver.communicate(timeout=SECONDS)


@pytest.mark.parametrize(
    "num_kills", [6, pytest.param(20, marks=[pytest.mark.soak, pytest.mark.slow])]
)
def test_killed_at_random_a_run_ends_at_its_digest(
    num_kills: int, ray_rig: RayRig, corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    ray_rig.resize(2)
    texts = [path.read_text() for path in sorted(corpus.iterdir())]
    source = tmp_path / "long.jsonl"
    source.write_text("".join(texts) * 40)  # so that there is time to be killed in
    settings = ("--unit-bytes", "100000", "--shard-tokens", "500000", "--val-ratio", "0.2")
    finish(command(source, tmp_path / "whole", tiny_tokenizer, *settings)).check_returncode()
    output = tmp_path / "store"
    arguments = on_ray(source, output, tiny_tokenizer, ray_rig, *settings)
    kill_at_random(ray_rig, arguments, output, num_kills=num_kills)
    while finish(arguments).returncode:  # three deaths on one task stop a run: it continues
        assert not (output / "metadata.json").exists()
    digest = tokenmill.open_store(tmp_path / "whole").digest
    assert tokenmill.open_store(output).digest == digest
    assert verify(output, level="full").ok


# -- a cluster of our own


def test_without_an_address_a_cluster_is_started_and_ended(
    corpus: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    local_digests: dict[str, str],
):
    arguments = command(corpus, tmp_path / "store", tiny_tokenizer, "--engine", "ray")
    environment = {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"}
    with tempfile.TemporaryDirectory(prefix="r") as folder:  # short: sockets are in it
        done = subprocess.run(
            arguments,
            env={**environment, "RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert tokenmill.open_store(tmp_path / "store").digest == local_digests["plain"]
        assert not processes_that_mention(folder)


def processes_that_mention(text: str) -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command_line = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it ended meanwhile
        if text in command_line:
            found.append(command_line)
    return found


def test_an_address_needs_the_engine_ray(corpus: Path, tiny_tokenizer: Path, tmp_path: Path):
    done = finish(command(corpus, tmp_path / "store", tiny_tokenizer, "--address", "a:1"))
    assert done.returncode == 2
    assert "--engine ray" in done.stderr


def test_a_cluster_that_is_not_there_is_an_error_and_nothing_is_lost(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path, local_digests: dict[str, str]
):
    output = tmp_path / "store"
    where = ("--engine", "ray", "--address", "127.0.0.1:1")
    done = finish(command(corpus, output, tiny_tokenizer, *where))
    assert done.returncode == 2
    assert "the Ray cluster cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
    assert finish(command(corpus, output, tiny_tokenizer)).returncode == 0
    assert tokenmill.open_store(output).digest == local_digests["plain"]


# -- training


def test_a_tokenizer_trained_on_a_cluster_is_the_one_of_one_machine(
    ray_rig: RayRig, corpus: Path, tmp_path: Path
):
    ray_rig.resize(2)
    settings: dict[str, Any] = {"vocab_size": 300, "unit_bytes": 20_000, "held_out": 0.1}
    here = tokenmill.train_tokenizer(corpus, tmp_path / "here", **settings)
    where = {"engine": "ray", "address": ray_rig.address}
    there = tokenmill.train_tokenizer(corpus, tmp_path / "there", **where, **settings)
    assert there.fingerprint == here.fingerprint
    reports = [
        json.loads((tmp_path / name / "report.json").read_text()) for name in ("here", "there")
    ]
    for report in reports:
        for name in ("seconds", "peak_memory_mib"):
            del report[name]
    assert reports[0] == reports[1]


# -- races


def test_of_two_attempts_at_a_unit_that_race_exactly_one_counts(
    ray_rig: RayRig, corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    """Two tasks on two nodes make the same unit at the same moment, again and again."""
    ray_rig.resize(2)
    output = tmp_path / "store"
    # a run that stops before its first part: a broken document at the end of its input
    source = tmp_path / "source.jsonl"
    source.write_text('{"text": "the cat sat"}\n' * 20 + '{"text": 7}\n')
    assert finish(command(source, output, tiny_tokenizer)).returncode == 4
    good = UnitTask(
        output=str(output),
        unit=Unit(0, (Span(0, 0, 23),)),
        fail_on_reject=True,
        num_threads=1,
    )
    tasks = [replace(good, unit=Unit(i // 2, good.unit.spans)) for i in range(2 * NUM_RACES)]
    cluster = RayCluster(ray_rig.address)
    try:
        made = list(RayEngine(cluster).run(work, tasks))
    finally:
        cluster.close()
    assert len(made) == 2 * NUM_RACES
    attempts: dict[int, set[str]] = {}
    for receipt in made:
        assert isinstance(receipt, Receipt)
        attempts.setdefault(receipt.unit, set()).add(receipt.attempt)
    assert all(len(names) == 1 for names in attempts.values())
    parts = output / "_run" / "parts"
    names = sorted(path.name for path in parts.iterdir())
    expected = [[f"{u:06d}.{a}.part", f"{u:06d}.json"] for u, (a,) in attempts.items()]
    assert names == sorted(name for pair in expected for name in pair)
