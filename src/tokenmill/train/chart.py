"""Line charts as SVG: a few curves over one axis, drawn with nothing but text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

COLOURS = ("#2f6fdb", "#d9622b", "#2b9a66", "#9b4fc9", "#b08a00", "#d23f6f", "#4a8f9e", "#777777")
_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 44, 40
_MAX_POINTS = 600
_LEGEND_STEP = 18
_NAME_CHARS = 32
_FONTS = "Helvetica, Arial, 'DejaVu Sans', 'Liberation Sans', 'Noto Sans', sans-serif"
"""By name, since a renderer without a browser around it does not know what sans-serif is."""
_FEW = 1e-3


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one curve, by rising x; `dots` marks each of them."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = COLOURS[0]
    faint: bool = False
    dots: bool = False


def line_chart(curves: Sequence[Curve], *, title: str, x_label: str, percent: bool = False) -> str:
    """Draw curves; points that are not finite are left out, and many are thinned out.

    The y axis spans what is drawn, but for percentages, which start at zero.
    """
    drawn = [(curve, *_thin(curve)) for curve in curves]
    drawn = [(curve, x, y) for curve, x, y in drawn if len(x)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="{_FONTS}" font-size="12" fill="#333">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="18" font-size="14" font-weight="bold">{escape(title)}</text>',
    ]
    if not drawn:
        parts.append(f'<text x="{_LEFT}" y="{_HEIGHT // 2}" fill="#777">nothing measured</text>')
        return "\n".join([*parts, "</svg>\n"])
    x_axis = _Axis.around([x for _, x, _ in drawn], _LEFT, _WIDTH - _RIGHT)
    y_axis = _Axis.around(
        [y for _, _, y in drawn], _HEIGHT - _BOTTOM, _TOP, floor=0.0 if percent else None
    )
    parts += _grid(x_axis, y_axis, x_label=x_label, percent=percent)
    for curve, x, y in drawn:
        parts += _draw(curve, x_axis.place(x), y_axis.place(y))
    parts += _legend([curve for curve, _, _ in drawn if not curve.faint])
    return "\n".join([*parts, "</svg>\n"])


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    start: float
    stop: float

    @classmethod
    def around(
        cls,
        values: list[NDArray[np.float64]],
        start: float,
        stop: float,
        *,
        floor: float | None = None,
    ) -> _Axis:
        low = min(float(v.min()) for v in values) if floor is None else floor
        high = max(float(v.max()) for v in values)
        if not high > low:
            low, high = low - abs(low) * 0.05 - 1e-9, high + abs(high) * 0.05 + 1e-9
        return cls(low, high, start, stop)

    def place(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return pixels for values."""
        return self.start + (values - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Return about five round numbers on the axis.

        >>> _Axis(0.0, 10.0, 0, 1).ticks()
        [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        """
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]


def _thin(curve: Curve) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return finite points, at most `_MAX_POINTS`: of each stretch its lowest and its highest."""
    x, y = np.asarray(curve.x, dtype=np.float64), np.asarray(curve.y, dtype=np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= _MAX_POINTS:
        return x, y
    keep = {0, len(x) - 1}
    for piece in np.array_split(np.arange(len(x)), _MAX_POINTS // 2):
        keep |= {int(piece[y[piece].argmin()]), int(piece[y[piece].argmax()])}
    chosen = sorted(keep)
    return x[chosen], y[chosen]


def _grid(x_axis: _Axis, y_axis: _Axis, *, x_label: str, percent: bool) -> list[str]:
    parts: list[str] = []
    y_ticks, x_ticks = y_axis.ticks(), x_axis.ticks()
    for tick, y in zip(y_ticks, y_axis.place(np.array(y_ticks)), strict=True):
        text = f"{tick:.3g}%" if percent else short_number(tick)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    bottom = _HEIGHT - _BOTTOM
    for tick, x in zip(x_ticks, x_axis.place(np.array(x_ticks)), strict=True):
        parts.append(f'<path d="M{x:.1f} {bottom}v4" stroke="#999"/>')
        text = short_number(tick)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{text}</text>')
    parts.append(f'<path d="M{_LEFT} {bottom}H{_WIDTH - _RIGHT}" stroke="#999"/>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle" fill="#777">'
        f"{escape(x_label)}</text>"
    )
    return parts


def _draw(curve: Curve, x: NDArray[np.float64], y: NDArray[np.float64]) -> list[str]:
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    opacity = ' opacity="0.25"' if curve.faint else ""
    parts = [
        f'<polyline points="{points}" fill="none" stroke="{curve.colour}" stroke-width="1.6" '
        f'stroke-linejoin="round"{opacity}/>'
    ]
    if curve.dots or len(x) == 1:
        parts += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.6" fill="{curve.colour}"/>'
            for a, b in zip(x, y, strict=True)
        ]
    return parts


def _legend(curves: list[Curve]) -> list[str]:
    parts: list[str] = []
    x = float(_LEFT)
    for curve in curves:
        name = curve.name if len(curve.name) <= _NAME_CHARS else f"…{curve.name[1 - _NAME_CHARS :]}"
        parts.append(f'<path d="M{x:.0f} 33h14" stroke="{curve.colour}" stroke-width="2"/>')
        if curve.dots:
            parts.append(f'<circle cx="{x + 7:.0f}" cy="33" r="3.5" fill="{curve.colour}"/>')
        parts.append(f'<text x="{x + _LEGEND_STEP:.0f}" y="37">{escape(name)}</text>')
        x += _LEGEND_STEP + 7 * len(name) + _LEGEND_STEP
    return parts


def short_number(value: float) -> str:
    """Return a number as people read it on an axis.

    >>> [short_number(v) for v in (0.0, 0.25, 1500.0, 2.5e6, 3e9)]
    ['0', '0.25', '1.5K', '2.5M', '3B']
    """
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    if value and abs(value) < _FEW:
        return f"{value:.1e}"
    return f"{value:.4g}"
