"""Look inside a store, and at what is to become one."""

from tokenmill.inspector.check_data import Check, CheckSettings, check_data
from tokenmill.inspector.lengths import LengthHistogram, length_histogram, lengths_svg
from tokenmill.inspector.ratios import ratios_svg
from tokenmill.inspector.statistics import Statistics, store_statistics
from tokenmill.inspector.tokens import render_tokens

__all__ = [
    "Check",
    "CheckSettings",
    "LengthHistogram",
    "Statistics",
    "check_data",
    "length_histogram",
    "lengths_svg",
    "ratios_svg",
    "render_tokens",
    "store_statistics",
]
