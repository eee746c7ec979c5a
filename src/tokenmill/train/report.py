"""What training runs have measured, as pictures and one page that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import ConfigError, MissingDependencyError
from tokenmill.files import atomic_write
from tokenmill.train.chart import COLOURS, Curve, line_chart, short_number
from tokenmill.train.metrics import METRICS_NAME, read_metrics

Row = dict[str, Any]
PAGE_NAME = "report.html"
_SMOOTH_SHARE = 0.02
_PNG_ZOOM = 2.0


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The rows of one run, in order, under the name by which the report calls it."""

    name: str
    rows: list[Row]

    def column(self, kind: str, key: str) -> tuple[list[float], list[float]]:
        """Return tokens seen and values of `key`, where a row of this kind has them."""
        found = [row for row in self.rows if row.get("kind") == kind and row.get(key) is not None]
        x = [float(row.get("tokens", row.get("step", 0))) for row in found]
        return x, [float(row[key]) for row in found]

    def last(self, kind: str, key: str) -> float | None:
        """Return the newest value of `key`."""
        values = self.column(kind, key)[1]
        return values[-1] if values else None


def write_report(runs: Sequence[Path], output: Path, *, png: bool = False) -> list[Path]:
    """Write the page and its pictures into the folder `output`; return the files, page first."""
    loaded = [load_run(run) for run in runs]
    charts = draw_charts(loaded)
    output.mkdir(parents=True, exist_ok=True)
    files = {output / PAGE_NAME: _page(loaded, charts).encode()}
    for name, svg in charts.items():
        files[output / f"{name}.svg"] = svg.encode()
        if png:
            files[output / f"{name}.png"] = _to_png(svg)
    for path, data in files.items():
        with atomic_write(path, sync=False) as file:
            file.write(data)
    return list(files)


def load_run(run: Path) -> RunMetrics:
    """Read what a run measured; a folder that is no run is `ConfigError`."""
    if not (run / METRICS_NAME).is_file():
        raise ConfigError(
            f"{run}: holds no {METRICS_NAME}, so it is not a training run",
            hint="name the folder that `tokenmill train --out-dir` wrote",
        )
    return RunMetrics(run.name or str(run), read_metrics(run))


def draw_charts(runs: Sequence[RunMetrics]) -> dict[str, str]:
    """Return the pictures by name; each run has one colour in all of them."""
    charts: dict[str, tuple[str, Callable[[RunMetrics, str], Iterator[Curve]], bool]] = {
        "loss": ("Loss (nats per token)", _loss_curves, False),
        "bits_per_byte": ("Bits per byte, validation", _curves("eval", "bits_per_byte"), False),
        "throughput": ("Tokens per second", _curves("train", "tokens_per_second"), False),
        "stall": ("Time that steps waited for data", _curves("train", "stall", scale=100), True),
        "learning_rate": ("Learning rate, of its peak", _curves("train", "lr_factor"), False),
    }
    return {
        name: line_chart(
            [c for run, colour in _coloured(runs) for c in draw(run, colour)],
            title=title,
            x_label="tokens seen",
            percent=percent,
        )
        for name, (title, draw, percent) in charts.items()
    }


def smooth(values: Sequence[float]) -> NDArray[np.float64]:
    """Return the mean around each point; the window is smaller at both ends.

    >>> smooth([4.0, 2.0, 2.0]).round(1).tolist()
    [4.0, 2.0, 2.0]
    """
    y = np.asarray(values, dtype=np.float64)
    places = np.arange(len(y))
    reach = np.minimum(int(len(y) * _SMOOTH_SHARE / 2), np.minimum(places, len(y) - 1 - places))
    sums = np.concatenate([[0.0], np.cumsum(y)])
    return (sums[places + reach + 1] - sums[places - reach]) / (2 * reach + 1)


def _coloured(runs: Sequence[RunMetrics]) -> Iterator[tuple[RunMetrics, str]]:
    return ((run, COLOURS[i % len(COLOURS)]) for i, run in enumerate(runs))


def _loss_curves(run: RunMetrics, colour: str) -> Iterator[Curve]:
    """Yield the training loss as measured and smoothed, and the validation loss as dots."""
    x, y = run.column("train", "loss")
    yield Curve(f"{run.name}, each step", x, y, colour, faint=True)
    yield Curve(f"{run.name}, training", x, smooth(y).tolist(), colour)
    x, y = run.column("eval", "loss")
    if x:
        yield Curve(f"{run.name}, validation", x, y, colour, dots=True)


def _curves(
    kind: str, key: str, *, scale: float = 1.0
) -> Callable[[RunMetrics, str], Iterator[Curve]]:
    def draw(run: RunMetrics, colour: str) -> Iterator[Curve]:
        x, y = run.column(kind, key)
        yield Curve(run.name, x, [value * scale for value in y], colour, dots=kind == "eval")

    return draw


def _to_png(svg: str) -> bytes:
    try:
        import resvg_py
    except ImportError as error:
        raise MissingDependencyError("resvg-py", extra="train", purpose="PNG pictures") from error
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=_PNG_ZOOM))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 96rem; padding: 0 1rem;
  color: #222; background: #fafafa; }}
table {{ border-collapse: collapse; background: #fff; }}
th, td {{ padding: .35rem .9rem; text-align: right; border-bottom: 1px solid #e4e4e4; }}
th:first-child, td:first-child {{ text-align: left; }}
.charts {{ display: grid; gap: 1rem; margin-top: 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(36rem, 100%), 1fr)); }}
.charts svg {{ width: 100%; height: auto; border: 1px solid #e4e4e4; border-radius: 6px; }}
</style></head><body>
<h1>{title}</h1>
{table}
<div class="charts">
{charts}
</div>
</body></html>
"""
_COLUMNS: tuple[tuple[str, str, str, str], ...] = (
    ("steps", "train", "step", ",.0f"),
    ("tokens", "train", "tokens", "short"),
    ("training loss", "train", "loss", ".4f"),
    ("validation loss", "eval", "loss", ".4f"),
    ("perplexity", "eval", "perplexity", ",.2f"),
    ("bits per byte", "eval", "bits_per_byte", ".4f"),
    ("tokens/s", "train", "tokens_per_second", "short"),
    ("MFU", "train", "mfu", ".1%"),
    ("stall", "train", "stall", ".2%"),
)


def _page(runs: Sequence[RunMetrics], charts: dict[str, str]) -> str:
    title = escape(", ".join(run.name for run in runs))
    return _PAGE.format(title=title, table=_table(runs), charts="\n".join(charts.values()))


def _table(runs: Sequence[RunMetrics]) -> str:
    """Return the newest numbers of each run; columns that no run has are left out."""
    columns = [c for c in _COLUMNS if any(run.last(c[1], c[2]) is not None for run in runs)]
    head = "".join(f"<th>{name}</th>" for name, _, _, _ in columns)
    lines = [
        f"<tr><td>{escape(run.name)}</td>"
        + "".join(f"<td>{_shown(run.last(kind, key), form)}</td>" for _, kind, key, form in columns)
        + "</tr>"
        for run in runs
    ]
    return f"<table><tr><th>run</th>{head}</tr>\n" + "\n".join(lines) + "\n</table>"


def _shown(value: float | None, form: str) -> str:
    if value is None:
        return "–"  # noqa: RUF001  (a dash: there is no number)
    return short_number(value) if form == "short" else format(value, form)
