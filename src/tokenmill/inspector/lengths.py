"""Lengths of documents: counted in bounded memory, drawn as an SVG picture."""

from __future__ import annotations

from html import escape

import msgspec
import numpy as np

from tokenmill.progress import count
from tokenmill.store import Split

_BINS_PER_DOUBLING = 2
_WINDOW_TOKENS = 1 << 24
_WIDTH, _HEIGHT = 720, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 48, 48


class LengthHistogram(msgspec.Struct, frozen=True, kw_only=True):
    """How many documents have how many tokens, in bins of equal width on a logarithmic scale."""

    split: str
    num_documents: int
    mean: float
    shortest: int
    longest: int
    median: int
    """Lower edge of the bin in which the middle document falls."""
    edges: list[int]
    """Bin i holds the lengths from edges[i] up to, not including, edges[i + 1]."""
    counts: list[int]


def length_histogram(split: Split) -> LengthHistogram:
    """Count the lengths of all documents of a split; reads the document tables once."""
    edges = _edges(split.num_tokens)
    counts = np.zeros(len(edges) - 1, dtype=np.int64)
    shortest, longest, previous = split.num_tokens, 0, 0
    for start in range(0, split.num_tokens, _WINDOW_TOKENS):
        stop = min(start + _WINDOW_TOKENS, split.num_tokens)
        ends = split.document_ends(start, stop).astype(np.int64)
        if not len(ends):
            continue
        lengths = np.diff(ends, prepend=previous)
        previous = int(ends[-1])
        counts += np.histogram(lengths, bins=edges)[0]
        shortest, longest = min(shortest, int(lengths.min())), max(longest, int(lengths.max()))
    middle = int(np.searchsorted(np.cumsum(counts), counts.sum() / 2))
    return LengthHistogram(
        split=split.name,
        num_documents=split.num_documents,
        mean=round(split.num_tokens / max(split.num_documents, 1), 1),
        shortest=shortest,
        longest=longest,
        median=int(edges[min(middle, len(edges) - 1)]),
        edges=edges.tolist(),
        counts=counts.tolist(),
    )


def lengths_svg(histogram: LengthHistogram, *, title: str) -> str:
    """Draw a histogram of document lengths as an SVG picture that stands by itself."""
    used = [i for i, number in enumerate(histogram.counts) if number] or [0]
    first, after = used[0], used[-1] + 1
    counts, edges = histogram.counts[first:after], histogram.edges[first : after + 1]
    tallest = max(*counts, 1)
    step = (_WIDTH - _LEFT - _RIGHT) / len(counts)
    plot_height = _HEIGHT - _TOP - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="20" font-size="15">{escape(title)}</text>',
        f'<text x="{_LEFT}" y="38" fill="#777">{_summary(histogram)}</text>',
    ]
    for fraction in (0.0, 0.5, 1.0):
        y = _TOP + plot_height * (1 - fraction)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        label = count(tallest * fraction)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for i, number in enumerate(counts):
        height = plot_height * number / tallest
        x, y = _LEFT + i * step, _TOP + plot_height - height
        parts.append(
            f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{max(step - 2, 1):.1f}" '
            f'height="{height:.1f}" fill="#3b7dd8"><title>{edges[i]:,} to {edges[i + 1] - 1:,} '
            f"tokens: {number:,} documents</title></rect>"
        )
    every = max(len(counts) // 8, 1)
    for i in range(0, len(edges), every):
        x = _LEFT + i * step
        parts.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
            f"{count(edges[i])}</text>"
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    label = "tokens in a document"
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{label}</text>')
    parts.append("</svg>\n")
    return "\n".join(parts)


def _summary(histogram: LengthHistogram) -> str:
    return (
        f"{histogram.num_documents:,} documents in {escape(histogram.split)}: "
        f"mean {histogram.mean:,.0f} tokens, median about {histogram.median:,}, "
        f"longest {histogram.longest:,}"
    )


def _edges(num_tokens: int) -> np.ndarray:
    doublings = np.arange(0, max(num_tokens, 2).bit_length() * _BINS_PER_DOUBLING + 2)
    edges = np.unique(np.round(2 ** (doublings / _BINS_PER_DOUBLING)).astype(np.int64))
    return np.concatenate([[0], edges])
