"""Compression of several tokenizers, drawn as an SVG picture."""

from __future__ import annotations

from html import escape

from tokenmill.pipeline import Ratio

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 720, 44, 180, 80, 48


def ratios_svg(ratios: list[Ratio], *, title: str) -> str:
    """Draw bytes per token, a bar for each tokenizer; a line spans its documents."""
    height = _TOP + _ROW * len(ratios) + 16
    scale = (_WIDTH - _LEFT - _RIGHT) / max(ratio.highest for ratio in ratios)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        f'<text x="16" y="20" font-size="15">{escape(title)}</text>',
        f'<text x="16" y="38" fill="#777">bytes per token over {ratios[0].num_documents:,} '
        "documents; the line goes from the worst to the best of them</text>",
    ]
    for i, ratio in enumerate(ratios):
        y = _TOP + _ROW * i + 8
        width = ratio.bytes_per_token * scale
        low, high = _LEFT + ratio.lowest * scale, _LEFT + ratio.highest * scale
        label = escape(ratio.tokenizer[-24:])
        parts += [
            f'<text x="{_LEFT - 8}" y="{y + 17}" text-anchor="end">{label}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="26" fill="#3b7dd8">'
            f"<title>{ratio.num_tokens:,} tokens, {ratio.vocab_size:,} ids</title></rect>",
            f'<path d="M{low:.1f} {y + 13}H{high:.1f}" stroke="#333"/>',
            f'<text x="{max(high, _LEFT + width) + 6:.1f}" y="{y + 17}">'
            f"{ratio.bytes_per_token:.3f}</text>",
        ]
    return "\n".join([*parts, "</svg>\n"])
