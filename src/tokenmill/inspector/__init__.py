"""Look inside a store."""

from tokenmill.inspector.lengths import LengthHistogram, length_histogram, lengths_svg
from tokenmill.inspector.ratios import ratios_svg
from tokenmill.inspector.tokens import render_tokens

__all__ = ["LengthHistogram", "length_histogram", "lengths_svg", "ratios_svg", "render_tokens"]
