"""Sources, tokenizer and engine put together: documents become a store."""

from tokenmill.pipeline.estimate import Estimate, estimate
from tokenmill.pipeline.run import Outcome, tokenize, tokenize_corpus
from tokenmill.pipeline.settings import TokenizeSettings
from tokenmill.pipeline.status import Status, run_status

__all__ = [
    "Estimate",
    "Outcome",
    "Status",
    "TokenizeSettings",
    "estimate",
    "run_status",
    "tokenize",
    "tokenize_corpus",
]
