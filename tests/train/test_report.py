"""The pictures and the page of a run, and where else its metrics go."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tokenmill.errors import ConfigError
from tokenmill.train.chart import Curve, line_chart
from tokenmill.train.report import draw_charts, load_run, smooth, write_report
from tokenmill.train.trackers import numbers, open_trackers

SVG = "{http://www.w3.org/2000/svg}"


def points(svg: str) -> list[list[tuple[float, float]]]:
    """Return the points of every curve of a chart."""
    lines = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    pairs = [[pair.split(",") for pair in line.attrib["points"].split()] for line in lines]
    return [[(float(x), float(y)) for x, y in line] for line in pairs]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "first <run>"
    folder.mkdir()
    rows: list[dict[str, object]] = [
        {
            "step": step,
            "kind": "train",
            "tokens": step * 1000,
            "loss": 6.0 * math.exp(-step / 30) + 2.0,
            "tokens_per_second": 50_000.0 + step,
            "stall": 0.002,
            "lr_factor": 0.5,
        }
        for step in range(1, 101)
    ]
    rows.append({"step": 100, "kind": "eval", "tokens": 100_000, "loss": 2.3, "bits_per_byte": 0.9})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_falling_curve_falls_on_the_picture_and_stays_inside_it():
    ((first, *_, last),) = points(
        line_chart([Curve("a", range(50), range(100, 50, -1))], title="t", x_label="x")
    )
    assert first[0] < last[0]
    assert first[1] < last[1]  # y grows downwards
    assert all(0 <= x <= 720 and 0 <= y <= 300 for x, y in (first, last))


def test_a_spike_survives_the_thinning_of_many_points():
    y = [1.0] * 100_000
    y[77_777] = 9.0
    (line,) = points(line_chart([Curve("a", range(len(y)), y)], title="t", x_label="x"))
    assert len(line) <= 700
    assert min(b for _, b in line) == pytest.approx(44.0)  # the top of the axis


def test_values_that_are_not_numbers_are_left_out():
    (line,) = points(
        line_chart([Curve("a", [1, 2, 3], [1.0, math.nan, 3.0])], title="t", x_label="x")
    )
    assert len(line) == 2


def test_smoothing_keeps_length_and_mean_of_a_constant():
    assert smooth([3.0] * 500).tolist() == pytest.approx([3.0] * 500)


def test_the_report_holds_a_picture_of_each_thing_and_the_last_numbers(run: Path, tmp_path: Path):
    files = write_report([run], tmp_path / "out", png=True)
    names = {path.name for path in files}
    for chart in ("loss", "bits_per_byte", "throughput", "stall"):
        assert {f"{chart}.svg", f"{chart}.png"} <= names
        png = (tmp_path / "out" / f"{chart}.png").read_bytes()
        assert png.startswith(b"\x89PNG")
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<svg") == 5
    assert "2.3000" in page
    assert "first &lt;run&gt;" in page
    assert "<run>" not in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_two_runs_share_a_picture_in_two_colours(run: Path):
    loaded = load_run(run)
    svg = draw_charts([loaded, loaded])["throughput"]
    lines = list(ElementTree.fromstring(svg).iter(f"{SVG}polyline"))
    assert len({line.attrib["stroke"] for line in lines}) == 2


def test_a_folder_without_metrics_is_not_a_run(tmp_path: Path):
    with pytest.raises(ConfigError, match="not a training run"):
        load_run(tmp_path)


def test_an_unknown_tracker_is_an_error_that_lists_those_there_are(tmp_path: Path):
    with pytest.raises(ConfigError, match="unknown tracker 'wandbb'") as caught:
        open_trackers(["wandbb"], run_name="r", settings={}, out_dir=tmp_path)
    assert "tensorboard" in (caught.value.hint or "")


def test_trackers_get_numbers_under_the_name_of_their_kind():
    row = {"kind": "train", "step": 7, "time": 1.0, "loss": 2.5, "note": "x"}
    assert numbers(row) == {"train/loss": 2.5}


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_tracker_that_is_installed_keeps_the_curve(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read at its import
    pytest.importorskip(name)
    (tracker,) = open_trackers([name], run_name="r", settings={"lr": 0.1}, out_dir=tmp_path)
    for step in range(3):
        tracker.log({"kind": "train", "step": step, "loss": 3.0 - step})
    tracker.close()
    assert any(path.is_file() and path.stat().st_size > 0 for path in tmp_path.rglob("*"))
    assert capfd.readouterr().out == ""
