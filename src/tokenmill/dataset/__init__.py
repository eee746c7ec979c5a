"""From a store to what a model is fed: rows, batches, plans, loaders."""

from tokenmill.dataset.batch import IGNORED, PADDING, Batch
from tokenmill.dataset.data_module import TextDataModule
from tokenmill.dataset.explain import Explanation, explain
from tokenmill.dataset.loader import Loader, LoaderStats, Transform
from tokenmill.dataset.masking import Augmentation, augmentation, dynamic_masking
from tokenmill.dataset.masks import cu_seqlens, document_mask, max_seqlen
from tokenmill.dataset.open_source import open_source
from tokenmill.dataset.packing import Packing, open_rows
from tokenmill.dataset.permutation import permute, unpermute
from tokenmill.dataset.plan import Indices, Plan
from tokenmill.dataset.plan_settings import Amendment, Source, Stage
from tokenmill.dataset.random_access import RandomAccessSource
from tokenmill.dataset.rows import Accounting, DocumentSpan, Rows
from tokenmill.dataset.speed import LoaderSpeed, measure_loader
from tokenmill.dataset.stream_lane import StreamCounts
from tokenmill.dataset.stream_settings import StreamSettings
from tokenmill.dataset.stream_text import TextStream, stream_text
from tokenmill.dataset.token_dataset import TokenDataset, get_dataset
from tokenmill.dataset.token_source import StoreSource, TokenSource
from tokenmill.dataset.which import Appearance, DocumentPart, RowFacts, which_rows, which_steps

__all__ = [
    "IGNORED",
    "PADDING",
    "Accounting",
    "Amendment",
    "Appearance",
    "Augmentation",
    "Batch",
    "DocumentPart",
    "DocumentSpan",
    "Explanation",
    "Indices",
    "Loader",
    "LoaderSpeed",
    "LoaderStats",
    "Packing",
    "Plan",
    "RandomAccessSource",
    "RowFacts",
    "Rows",
    "Source",
    "Stage",
    "StoreSource",
    "StreamCounts",
    "StreamSettings",
    "TextDataModule",
    "TextStream",
    "TokenDataset",
    "TokenSource",
    "Transform",
    "augmentation",
    "cu_seqlens",
    "document_mask",
    "dynamic_masking",
    "explain",
    "get_dataset",
    "max_seqlen",
    "measure_loader",
    "open_rows",
    "open_source",
    "permute",
    "stream_text",
    "unpermute",
    "which_rows",
    "which_steps",
]
