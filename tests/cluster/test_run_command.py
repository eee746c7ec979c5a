"""`tokenmill run` on a login node, as far as it goes without Slurm."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from tokenmill.cli import run


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    (tmp_path / "text.txt").write_text("Hello.\n")


def script(path: str = "tokenmill-tokenize.sh") -> str:
    return Path(path).read_text()


def test_no_submit_writes_the_script_and_prints_the_line_for_sbatch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    name = "my job's.sh"
    arguments = ["run", "--no-submit", "--submit-script", name, "tokenize", "text.txt", "-o", "s"]
    assert run(arguments) == 0
    words = subprocess.run(
        ["bash", "-c", f"sbatch() {{ printf '%s' \"$1\"; }}; {capsys.readouterr().out}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert words == str(tmp_path / name)
    assert "tokenize --workers 40 text.txt -o s)" in script(name)
    assert run(arguments) == 0  # over its own script


def test_a_file_of_somebody_else_is_left_alone(capsys: pytest.CaptureFixture[str]):
    Path("mine.sh").write_text("echo mine\n")
    command = [
        "run",
        "--no-submit",
        "--submit-script",
        "mine.sh",
        "tokenize",
        "text.txt",
        "-o",
        "s",
    ]
    assert run(command) == 2
    assert "not a script of `tokenmill run`" in capsys.readouterr().err
    assert Path("mine.sh").read_text() == "echo mine\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "name what to run"),
        (["run", "tokenize"], "name what to run"),
        (["tokenise", "x"], "Did you mean 'tokenize'"),
        (["tokenizer", "trian"], "Did you mean 'train'"),
        (["tokenize", "text.txt"], "Missing option '-o'"),
        (["tokenize", "text.txt", "-o", "s", "--val-ration", "0.1"], "No such option"),
        (["tokenize", "text.txt", "-o", "s", "--val-ratio", "7"], "val_ratio must be"),
        (["tokenize", "text.txt", "-o", "s", "--set", "shard_token=5"], "did you mean"),
        (["-N", "2", "verify", "s"], "runs on one node"),
        (["--array", "4", "verify", "s"], "--array is for tokenize"),
        (["--array", "4", "tokenize", "text.txt", "-o", "s.npy"], "name a folder"),
        (["--array", "4", "tokenize", "text.txt", "-o", "s", "--share", "0/2"], "drop yours"),
        (["--array", "4", "tokenize", "text.txt", "-o", "s", "--engine", "ray"], "drop one"),
        (["-N", "2", "tokenize", "text.txt", "-o", "s", "--engine", "local"], "one node"),
        (["--no-such-flag", "tokenize", "text.txt", "-o", "s"], "No such option"),
        (["--conf", "slurm.slurm_bin_dir=/nowhere", "verify", "s"], "/nowhere/sbatch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_found_on_the_login_node(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["run", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_an_array_gets_a_second_script_that_finishes(capsys: pytest.CaptureFixture[str]):
    command = ["run", "--no-submit", "--json", "--array", "4%2", "-c", "3"]
    assert run([*command, "tokenize", "text.txt", "-o", "s"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [Path(path).name for path in facts["scripts"]] == [
        "tokenmill-tokenize.sh",
        "tokenmill-tokenize-finish.sh",
    ]
    assert '--dependency=afterany:"$array" --kill-on-invalid-dep=yes' in facts["commands"][1]
    assert "#SBATCH --array=0-3%2\n" in script()
    assert 'command+=(--share "$SLURM_ARRAY_TASK_ID/4")' in script()
    finish = script("tokenmill-tokenize-finish.sh")
    assert "--share" not in finish
    assert "--array" not in finish


def test_the_catalog_and_the_number_of_workers_travel_with_the_job():
    arguments = ["--catalog", "c.json", "run", "--no-submit", "tokenize", "text.txt", "-o", "s"]
    assert run([*arguments, "--workers", "3"]) == 0
    assert "-m tokenmill --catalog c.json tokenize text.txt -o s --workers 3)" in script()


def test_training_uses_the_gpus_that_it_asks_for():
    assert run(["run", "--no-submit", "--gpus-per-node", "4", "train", "text.txt"]) == 0
    text = script("tokenmill-train.sh")
    assert "#SBATCH --gres=gpu:4\n" in text
    assert "--nproc-per-node=4 -m tokenmill train text.txt)" in text


def test_the_folder_of_the_log_is_made():
    assert run(["run", "--no-submit", "-o", "logs/a/%j.log", "verify", "s"]) == 0
    assert Path("logs/a").is_dir()


def test_what_sbatch_would_put_above_the_script_is_taken_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("SBATCH_PARTITION", "other")
    assert run(["run", "--no-submit", "verify", "s"]) == 0
    assert capsys.readouterr().out.startswith("env -u SBATCH_PARTITION sbatch ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["tokenize", "s3://key:canary-4711@bucket/raw", "-o", "s"],
        ["tokenize", "text.txt", "-o", "s3://canary-4711@bucket/s"],
        ["--conf", "aws.secret=canary-4711", "tokenize", "text.txt", "-o", "s"],
        ["--conf", "secret=canary-4711", "tokenize", "text.txt", "-o", "s"],
        ["tokenize", "text.txt", "-o", "s", "--set", "aws_secret=canary-4711"],
    ],
    ids=["source", "output", "key", "file", "setting"],
)
def test_a_secret_where_none_belongs_is_not_repeated(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["run", "--no-submit", *arguments]) == 2
    said = capsys.readouterr()
    assert "canary-4711" not in said.out + said.err
    assert not list(tmp_path.glob("*.sh"))


def test_the_commands_of_the_page_are_good():
    page = Path(__file__).parent.parent.parent / "docs" / "slurm.md"
    lines = [line for line in page.read_text().splitlines() if line.startswith("tokenmill run ")]
    assert len(lines) >= 4
    for line in lines:
        words = shlex.split(line, comments=True)
        assert run(["run", "--no-submit", *words[2:]]) == 0, line
    assert "--engine ray" in script()


def test_the_example_settings_are_good(tmp_path: Path):
    example = Path(__file__).parent.parent.parent / "examples" / "slurm.yaml"
    assert run(["run", "--no-submit", "--conf", str(example), "verify", "s"]) == 0
    assert "#SBATCH --partition=" in script("tokenmill-verify.sh")
