"""Where documents come from: files found, cut into units, and read as batches of documents.

    settings = SourceSettings(places=("corpus/",))
    files = find_files(settings)
    for unit in cut_units(files):
        for batch in read_unit(files, unit, settings):
            ...

Every document is in exactly one unit, and the sequence of documents does not depend on the cut.
"""

from __future__ import annotations

from tokenmill.sources.catalog import NamedDataset, add_to_catalog, read_catalog, resolve_name
from tokenmill.sources.describe import (
    CONTENTS,
    STRATEGIES,
    Description,
    TokenizedInfo,
    check_corpus,
    check_date,
    find_description,
    read_description,
    to_mapping,
    write_description,
)
from tokenmill.sources.documents import BATCH_BYTES, BATCH_DOCUMENTS, Batch, Reject
from tokenmill.sources.fetch import Fetched, fetch
from tokenmill.sources.find import find_files
from tokenmill.sources.long_text import LongText
from tokenmill.sources.read import read_unit
from tokenmill.sources.settings import FORMATS, SourceFile, SourceSettings, Span, Unit
from tokenmill.sources.split_text import SplitText, split_text
from tokenmill.sources.units import UNIT_BYTES, cut_units
from tokenmill.sources.well_known import WELL_KNOWN, WellKnown

__all__ = [
    "BATCH_BYTES",
    "BATCH_DOCUMENTS",
    "CONTENTS",
    "FORMATS",
    "STRATEGIES",
    "UNIT_BYTES",
    "WELL_KNOWN",
    "Batch",
    "Description",
    "Fetched",
    "LongText",
    "NamedDataset",
    "Reject",
    "SourceFile",
    "SourceSettings",
    "Span",
    "SplitText",
    "TokenizedInfo",
    "Unit",
    "WellKnown",
    "add_to_catalog",
    "check_corpus",
    "check_date",
    "cut_units",
    "fetch",
    "find_description",
    "find_files",
    "read_catalog",
    "read_description",
    "read_unit",
    "resolve_name",
    "split_text",
    "to_mapping",
    "write_description",
]
