"""Shares of a run: made by processes that know nothing of each other, put together by one more."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from faults import command, run

import tokenmill
from tokenmill.cli import run as run_here
from tokenmill.errors import BadDocumentError, ConfigError, SettingsChangedError
from tokenmill.folder import LocalFolder
from tokenmill.pipeline import (
    TokenizeSettings,
    parse_share,
    run_status,
    tokenize_corpus,
    tokenize_share,
)
from tokenmill.pipeline.share_state import read_states, write_state
from tokenmill.pipeline.whereabouts import whereabouts
from tokenmill.store import verify

UNITS = ("--unit-bytes", "2000")


def settings(corpus: Path, tokenizer: Path, **changes: object) -> TokenizeSettings:
    values: dict[str, object] = {"unit_bytes": 2000, "shard_tokens": 20_000, "workers": 1}
    values |= {"sources": (str(corpus),), "tokenizer": str(tokenizer), **changes}
    return TokenizeSettings(**values)  # pyright: ignore[reportArgumentType]


def local_digest(chosen: TokenizeSettings, output: Path) -> str:
    return tokenize_corpus(chosen, output).metadata.digest


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"val_ratio": 0.3, "shuffle": 3},
        {"val_documents": 7},
        {"max_tokens": 9_001},
        {"max_tokens": 9_001, "shuffle": 1},
        {"max_tokens": 5_000, "sample": True},
    ],
    ids=str,
)
def test_shares_and_then_the_plain_run_give_the_bytes_of_one_run(
    changes: dict[str, object], corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    chosen = settings(corpus, tiny_tokenizer, **changes)
    expected = local_digest(chosen, tmp_path / "whole")
    output = tmp_path / "store"
    for k in (2, 0, 1):
        tokenize_share(chosen, str(output), parse_share(f"{k}/3"))
    assert local_digest(chosen, output) == expected
    assert verify(output, level="full").ok


def test_a_share_on_several_processes_gives_the_same_bytes(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    chosen = settings(corpus, tiny_tokenizer)
    expected = local_digest(chosen, tmp_path / "whole")
    tokenize_share(replace(chosen, workers=3), str(tmp_path / "store"), parse_share("0/1"))
    assert local_digest(chosen, tmp_path / "store") == expected


def test_a_share_makes_its_own_units_and_makes_them_once(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    chosen, output = settings(corpus, tiny_tokenizer), tmp_path / "store"
    first = tokenize_share(chosen, str(output), parse_share("1/4"))
    assert first.num_units_made == first.num_units > 5
    units = sorted(int(path.stem) for path in (output / "_run" / "parts").glob("*.json"))
    assert units == list(range(1, units[-1] + 1, 4))
    again = tokenize_share(chosen, str(output), parse_share("1/4"))
    assert (again.num_units_made, again.num_tokens) == (0, first.num_tokens)


def test_a_share_stops_when_units_before_it_have_tokens_enough(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    chosen, output = settings(corpus, tiny_tokenizer, max_tokens=3_000), tmp_path / "store"
    made = [tokenize_share(chosen, str(output), parse_share(f"{k}/2")) for k in (0, 1)]
    assert made[1].num_units_made < made[1].num_units


def test_shares_of_a_complete_store_have_nothing_to_do(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    chosen, output = settings(corpus, tiny_tokenizer), tmp_path / "store"
    local_digest(chosen, output)
    before = sorted(output.rglob("*"))
    assert tokenize_share(chosen, str(output), parse_share("0/2")).num_units_made == 0
    assert sorted(output.rglob("*")) == before


def test_a_share_with_other_settings_is_refused(corpus: Path, tiny_tokenizer: Path, tmp_path: Path):
    chosen, output = settings(corpus, tiny_tokenizer), tmp_path / "store"
    tokenize_share(chosen, str(output), parse_share("0/2"))
    with pytest.raises(SettingsChangedError, match="val_ratio"):
        tokenize_share(
            settings(corpus, tiny_tokenizer, val_ratio=0.5), str(output), parse_share("1/2")
        )


def test_too_many_broken_documents_stop_a_share(tiny_tokenizer: Path, tmp_path: Path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": 5}\n' * 50)
    chosen = settings(bad, tiny_tokenizer, on_error="skip", max_errors=9, unit_bytes=100)
    with pytest.raises(BadDocumentError, match="share 0/1"):
        tokenize_share(chosen, str(tmp_path / "store"), parse_share("0/1"))
    assert run_status(tmp_path / "store").state == "stopped"


@pytest.mark.parametrize("text", ["", "3", "3/3", "-1/3", "1/0", "a/b", "1/2/3", "²/3"])
def test_a_share_that_is_none_is_refused(text: str):
    with pytest.raises(ConfigError, match="share is"):
        parse_share(text)


def test_a_single_file_has_no_shares(corpus: Path, tmp_path: Path):
    output = str(tmp_path / "ids.npy")
    assert run_here(["tokenize", str(corpus), "-o", output, "--share", "0/2"]) == 2


def test_the_status_adds_up_the_shares(corpus: Path, tiny_tokenizer: Path, tmp_path: Path):
    chosen, output = settings(corpus, tiny_tokenizer), tmp_path / "store"
    made = [tokenize_share(chosen, str(output), parse_share(f"{k}/3")) for k in (0, 2)]
    status = run_status(output)
    assert (status.state, status.num_shares, status.num_shares_done) == ("stopped", 3, 2)
    assert status.num_tokens == sum(share.num_tokens for share in made)
    assert status.num_units_done == sum(share.num_units for share in made) < status.num_units
    assert "  shares    2 of 3 done, 0 running" in status.text()


def test_usr1_stops_a_share_at_a_safe_point(corpus: Path, tiny_tokenizer: Path, tmp_path: Path):
    output = tmp_path / "store"
    arguments = [*command(corpus, output, tiny_tokenizer), "--unit-bytes", "100", "--share", "0/1"]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while not (output / "_run" / "shares" / "000000.json").exists():
        assert process.poll() is None
        time.sleep(0.01)
    assert run_status(output).num_shares_running == 1
    process.send_signal(signal.SIGUSR1)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, b"run the same command again" in said) == (75, True)
    assert read_states(LocalFolder(output))[0].state == "stopped"


def test_a_share_that_was_killed_does_not_run(corpus: Path, tiny_tokenizer: Path, tmp_path: Path):
    output = tmp_path / "store"
    tokenize_share(settings(corpus, tiny_tokenizer), str(output), parse_share("0/2"))
    folder = LocalFolder(output)
    (state,) = read_states(folder)
    dead = subprocess.Popen(["true"])
    dead.wait()
    gone = msgspec.structs.replace(state.where, pid=dead.pid)
    for where, alive in ((state.where, True), (gone, False)):
        write_state(folder, msgspec.structs.replace(state, state="running", where=where))
        assert (run_status(output).state == "running") == alive


def test_a_job_of_slurm_is_known_by_its_number():
    job = {"SLURM_JOB_ID": "19", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_RESTART_COUNT": "3"}
    found = whereabouts(job)
    assert (found.job, found.nodes, found.restarts) == ("19", "n[1-2]", 3)
    array = {**job, "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "2"}
    assert whereabouts(array).job == "17_2"
    assert (whereabouts({}).job, whereabouts({}).seems_alive()) == ("", True)


def test_shares_that_overlap_with_each_other_and_with_the_run_agree(
    corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    expected = local_digest(settings(corpus, tiny_tokenizer), tmp_path / "whole")
    output = tmp_path / "store"
    plain = [*command(corpus, output, tiny_tokenizer), *UNITS]
    shares = [[*plain, "--share", f"{k}/2"] for k in (0, 1, 0)]
    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(run, [*shares, plain]))
    assert [done.stderr for done in ended if done.returncode not in {0, 5, 75}] == []
    run(plain).check_returncode()
    assert tokenmill.open_store(output).digest == expected
    assert verify(output, level="full").ok


def kill_some(plain: list[str], *, patience: float, rng: random.Random) -> bool:
    """Start a share or the whole run, and tell whether it was killed before it was done."""
    shares = [[*plain, "--share", f"{k}/2"] for k in (0, 1)]
    process = subprocess.Popen(
        rng.choice([*shares, plain]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(timeout=rng.uniform(0.3, patience))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


def check_killed_shares(folder: Path, corpus: Path, tokenizer: Path, *, num_kills: int) -> None:
    """Kill shares and runs at random times, over as many stores as it takes."""
    expected = local_digest(settings(corpus, tokenizer), folder / "whole")
    rng = random.Random(num_kills)
    while num_kills > 0:
        output, patience = folder / "store", 0.5
        plain = [*command(corpus, output, tokenizer), *UNITS]
        while num_kills > 0 and not (output / "metadata.json").exists():
            num_kills -= kill_some(plain, patience=patience, rng=rng)
            patience *= 1.1  # so that it gets done in the end
        run(plain).check_returncode()
        assert tokenmill.open_store(output).digest == expected
        assert verify(output, level="full").ok
        names = {path.name for path in output.rglob("*")}
        assert not [name for name in names if name.endswith((".partial", ".part"))]
        shutil.rmtree(output)


def test_shares_that_are_killed_lose_nothing(corpus: Path, tiny_tokenizer: Path, tmp_path: Path):
    check_killed_shares(tmp_path, corpus, tiny_tokenizer, num_kills=4)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(10))
def test_shares_that_are_killed_twenty_times_lose_nothing(
    number: int, corpus: Path, tiny_tokenizer: Path, tmp_path: Path
):
    check_killed_shares(tmp_path, corpus, tiny_tokenizer, num_kills=20 + number)
