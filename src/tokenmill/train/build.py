"""Build what a training loop works with: the device, the model as ranks hold it, the feed."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from tokenmill.dataset import Plan
from tokenmill.errors import ConfigError
from tokenmill.progress import silent
from tokenmill.train.batch_size import Share, choose_batch_size, explained, take_share
from tokenmill.train.checkpoint import Checkpoints
from tokenmill.train.data import TrainData
from tokenmill.train.distributed import Ranks, spread
from tokenmill.train.feed import FeedOptions, open_feed
from tokenmill.train.float8 import check_float8
from tokenmill.train.loop import Run
from tokenmill.train.model import GPT
from tokenmill.train.model_settings import ComputeSettings
from tokenmill.train.optimizer import make_optimizers
from tokenmill.train.settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class Course:
    """Which steps of which plan a run still has to do."""

    plan: Plan
    num_steps: int
    start: int


def build_run(
    settings: TrainSettings, data: TrainData, course: Course, *, ranks: Ranks, device: torch.device
) -> Run:
    """Build model, optimizers and feed; nothing of them depends on the number of ranks."""
    plan = course.plan
    if data.num_ids is None and not settings.model.vocab_size:
        raise ConfigError(
            f"{settings.data}: files of token ids do not tell the size of their vocabulary",
            hint="--set model.vocab_size=50257",
        )
    num_ids = data.num_ids or settings.model.vocab_size
    compute = choose_compute(settings, device)
    model_settings = settings.model.for_vocab(num_ids, source=settings.data)
    out_dir = settings.folder
    share = take_share(
        plan.batch_size,
        settings.batch_size,
        ranks=ranks,
        context_length=plan.seq_len,
        device=device,
    )
    with explained(1, plan.seq_len):
        model = GPT(model_settings, compute, seed=settings.seed).to(device)
    batch_size = choose_batch_size(
        share,
        settings.batch_size,
        attempt=lambda rows: _attempt(model, share, rows=rows, settings=settings),
        out_dir=out_dir,
    )
    if _compiles(settings, device):
        _compile(model, settings, ranks)
    forward = spread(model, ranks, blocks=list(model.blocks))
    options = FeedOptions(
        device=device,
        start_step=course.start,
        batch_size=batch_size,
        documents=settings.document_masking,
    )
    return Run(
        settings=settings,
        plan=plan,
        num_steps=course.num_steps,
        ranks=ranks,
        device=device,
        model=model,
        forward=forward,
        optimizers=make_optimizers(
            model, settings.optimizer, share_work=ranks.parallel == "ddp" and device.type == "cuda"
        ),
        feed=open_feed(plan, ranks, options, tokens_on_device=settings.tokens_on_device),
        batch_size=batch_size,
        validation=data.validation,
        bytes_per_token=data.bytes_per_token,
        checkpoints=Checkpoints(out_dir, keep_last=settings.keep_last),
        metrics=None,
        trackers=(),
        report=silent,
        step=course.start,
    )


def choose_compute(settings: TrainSettings, device: torch.device) -> ComputeSettings:
    """Return how the model is computed, with the precision that suits the device."""
    wanted = settings.precision
    if wanted == "auto":
        is_low = device.type == "cuda" and torch.cuda.is_bf16_supported()
        wanted = "bfloat16" if is_low else settings.compute.dtype
    if settings.compute.float8:
        check_float8(device)
    return replace(settings.compute, dtype=wanted)


def _compiles(settings: TrainSettings, device: torch.device) -> bool:
    return settings.compile == "on" or (settings.compile == "auto" and device.type == "cuda")


def _compile(model: GPT, settings: TrainSettings, ranks: Ranks) -> None:
    """Let torch compile the model in place, at its first pass: as one graph, or block by block."""
    if ranks.parallel == "fsdp":  # what it does around each block is no part of a graph
        for block in model.blocks:
            block.compile(dynamic=False)
        return
    if settings.document_masking or settings.compute.checkpoint_blocks:
        # DDP cuts graphs to send gradients early, which such parts of a graph do not survive.
        torch._dynamo.config.optimize_ddp = False  # pyright: ignore[reportAttributeAccessIssue]
    model.compile(dynamic=False)


def _attempt(model: GPT, share: Share, *, rows: int, settings: TrainSettings) -> int:
    """Take a pass of so many rows, and return how many bytes of memory a step would need.

    Without compilation, which needs less: what fits here fits then, too.
    """
    device, shape = share.device, (rows, share.context_length)
    torch.cuda.reset_peak_memory_stats(device)
    token_ids = torch.zeros(shape, dtype=torch.int64, device=device)
    documents = None
    if settings.document_masking:
        ids = torch.zeros(shape, dtype=torch.int32, device=device)
        positions = torch.arange(shape[1], dtype=torch.int32, device=device).expand(shape)
        documents = model.make_documents(ids, positions.contiguous())
    model.train()
    model(token_ids, token_ids, documents=documents).backward()
    peak = torch.cuda.max_memory_allocated(device)
    model.zero_grad(set_to_none=True)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return peak + (3 if settings.ema else 2) * weights  # what optimizers remember comes on top


def choose_device(name: str, ranks: Ranks) -> torch.device:
    """Return the device of this rank; one that is not there is an error."""
    if name == "auto":
        has_mps = torch.backends.mps.is_available()
        name = "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError("device is cuda, but torch finds none", hint="--device cpu")
        if ranks.local_rank >= torch.cuda.device_count():
            raise ConfigError(
                f"local rank {ranks.local_rank} has no GPU: there are {torch.cuda.device_count()}",
                hint="start as many ranks on a machine as it has GPUs",
            )
        torch.cuda.set_device(ranks.local_rank)
        return torch.device("cuda", ranks.local_rank)
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device is mps, but torch finds none", hint="--device cpu")
    return torch.device(name)


@contextmanager
def arithmetic(settings: TrainSettings, device: torch.device) -> Generator[None]:
    """Set how torch computes for the time of a run: fast products, or only reproducible ones."""
    before = (torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled())
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    elif device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.use_deterministic_algorithms(before[1])
