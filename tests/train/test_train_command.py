"""`tokenmill train` as people meet it: results, errors, exit codes, kills."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_train_resume import assert_same_bits
from tiny_runs import TINY, text, tiny

from tokenmill.cli import run
from tokenmill.dataset import Plan, Source
from tokenmill.files import exclusive_lock
from tokenmill.train.checkpoint import Checkpoints
from tokenmill.train.run import train_model

SMALL = [
    "--set=model.num_layers=1",
    "--set=model.num_heads=2",
    "--set=model.width=16",
    "--set=model.context_length=32",
    "--batch-tokens=256",
    "--device=cpu",
    "--progress=none",
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "input.txt"
    path.write_text("\n".join(text(200, seed=3)))
    return path


def test_a_text_file_becomes_a_model_that_writes(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out_dir = tmp_path / "run"
    command = ["train", str(source), "--out-dir", str(out_dir), "--max-steps=4", *SMALL]
    assert run([*command, "--set=bpe_vocab_size=300"]) == 0
    told = capsys.readouterr().out
    assert "bits per byte" in told
    assert "sample:" in told
    assert f"next: tokenmill generate {out_dir}" in told
    assert run([*command, "--set=bpe_vocab_size=300", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["was_complete"] is True
    assert facts["step"] == 4
    assert facts["bits_per_byte"] > 0
    assert facts["sample"]
    for name in ("run.json", "plan.json", "tokenizer.json", "metrics.jsonl", "checkpoints"):
        assert (out_dir / name).exists(), name
    assert Plan.load(out_dir / "plan.json").sources[0].hold_out > 0


def test_resume_needs_nothing_but_the_folder(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out_dir = str(tmp_path / "run")
    start = ["train", str(source), "--out-dir", out_dir, "--tokenizer=bytes", *SMALL]
    assert run([*start, "--max-steps=2"]) == 0
    again = ["train", "--resume", "--out-dir", out_dir, "--max-steps=5", "--json"]
    assert run([*again, "--progress=none"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["step"] == 5
    assert run(["train", "--resume", "9", "--out-dir", out_dir, "--progress=none"]) == 2
    assert "no checkpoint of step 9" in capsys.readouterr().err
    assert run(["train", "--resume", "soon", "--out-dir", out_dir]) == 2


def test_a_plan_and_plain_ids_are_trained_on(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    plan = Plan(sources=(Source(path=str(store)),), seq_len=32, batch_size=4, num_steps=3, seed=7)
    plan.save(tmp_path / "plan.yaml")
    flags = [flag for flag in SMALL if "batch-tokens" not in flag]
    command = ["train", str(tmp_path / "plan.yaml"), "--out-dir", str(tmp_path / "a"), "--json"]
    assert run([*command, *flags]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["step"], facts["num_tokens"]) == (3, 3 * 4 * 32)
    assert run([*command[:2], "--out-dir", str(tmp_path / "b"), "--seed=8", *flags]) == 2
    assert "seed is 8, the plan says 7" in capsys.readouterr().err
    ids = tmp_path / "ids.npy"
    np.save(ids, np.random.default_rng(0).integers(0, 90, 4000).astype(np.uint16))
    plain = ["train", str(ids), "--out-dir", str(tmp_path / "c"), "--max-steps=2", *SMALL]
    assert run(plain) == 2
    assert "do not tell the size of their vocabulary" in capsys.readouterr().err
    assert run([*plain, "--set=model.vocab_size=90", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["bits_per_byte"] is None
    assert facts["loss"] > 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--set=model.vocab_size=100"], "has 257 ids, but the model has 100"),
        (["--set=model.context_length=65536", "--batch-tokens=65536"], "make no row"),
        (["--set=model.width=1073741824"], "out of memory"),
        (["--set=model.depth=3"], "unknown setting 'model.depth'"),
        (["--device=cuda"], "torch finds none"),
        (["--batch-size=3"], "does not divide the 8 rows"),
        (["--val-data=nowhere"], "nowhere: not a store"),
        (["--config=nowhere.yaml"], "nowhere.yaml: No such file"),
        (["--set=tokens_on_device=on", "--packing=best-fit"], "tokens_on_device is on, but"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    store: Path, flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    command = ["train", str(store), "--out-dir", str(tmp_path / "run"), "--max-steps=2"]
    assert run([*command, *SMALL, *flags]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


def test_missing_or_busy_places_are_named(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out_dir = tmp_path / "run"
    assert run(["train", "nowhere.txt", "--out-dir", str(out_dir), *SMALL]) == 2
    assert "nowhere.txt: no such file or folder" in capsys.readouterr().err
    assert run(["train", *SMALL]) == 2
    assert "the setting 'data' is missing" in capsys.readouterr().err
    with exclusive_lock(out_dir / ".lock"):
        assert run(["train", str(store), "--out-dir", str(out_dir), *SMALL]) == 6
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    assert run(["train", str(store), "--out-dir", str(other), *SMALL]) == 2
    assert "holds other files than those of a run" in capsys.readouterr().err


def test_a_loss_that_is_no_number_stops_the_run(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    wild = ["--optimizer=adamw", "--lr=1e30", "--grad-clip=0", "--max-steps=20"]
    wild += ["--set=log_interval=20", "--set=checkpoint_interval=1"]
    assert run(["train", str(store), "--out-dir", str(tmp_path / "run"), *SMALL, *wild]) == 2
    assert "training has diverged" in capsys.readouterr().err
    # Nothing is saved of a step whose loss is no number, however seldom rows are written.
    found = Checkpoints(tmp_path / "run").find("last").record
    assert all(map(math.isfinite, found.pending))


def test_help_does_not_wait_for_torch():
    program = (
        "import sys\nfrom tokenmill.cli import run\nrun(['train', '--help'])\n"
        "print('loaded:', sorted({'torch', 'safetensors', 'tokenizers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("loaded: []\n")


def test_a_run_that_is_killed_again_and_again_ends_at_the_same_bits(store: Path, tmp_path: Path):
    changes = {"max_steps": 20, "checkpoint_interval": 1, "keep_last": 2}
    straight, out_dir = tmp_path / "straight", tmp_path / "run"
    train_model(tiny(store, straight, **changes))
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**TINY, **changes}))
    command = [sys.executable, "-m", "tokenmill", "train", str(store), "--config", str(config)]
    command += ["--out-dir", str(out_dir), "--device", "cpu", "--progress", "none"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for more in (3, 7):
        last = (Checkpoints(out_dir).steps() or [0])[-1]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        while (Checkpoints(out_dir).steps() or [0])[-1] < last + more:
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    assert_same_bits(straight, out_dir)
