"""The training loop: batch in, weights moved, and now and then a row, an evaluation, a checkpoint.

Losses stay on the device as tensors and are read only where a row is written, so that the host is
always ahead of it. Everything at step k depends on the settings, the data and k: the learning rate
is a function of the step, the batch is that of the plan, and what is random is seeded by the step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tokenmill.dataset import IGNORED, Batch, Loader, Plan
from tokenmill.errors import ConfigError
from tokenmill.progress import Event, Report
from tokenmill.train.batch_size import explained
from tokenmill.train.checkpoint import Checkpoints, Record, versions, whole_tensors
from tokenmill.train.data import Validation
from tokenmill.train.distributed import Ranks, accumulating, put_back, whole
from tokenmill.train.evaluate import Evaluation, evaluate
from tokenmill.train.feed import Feed
from tokenmill.train.flops import flops_per_token, mfu
from tokenmill.train.metrics import Kind, Metrics
from tokenmill.train.model import GPT
from tokenmill.train.optimizer import Optimizers
from tokenmill.train.settings import TrainSettings
from tokenmill.train.signals import StopSignals
from tokenmill.train.trackers import Tracker

Ending = Literal["done", "max_hours", "stopped"]
_ENDINGS: tuple[Ending | None, ...] = (None, "max_hours", "stopped")
SECONDS_PER_HOUR = 3600


@dataclass(kw_only=True)
class Run:
    """What a training loop works with; the last fields are what moves on from step to step."""

    settings: TrainSettings
    plan: Plan
    num_steps: int
    ranks: Ranks
    device: torch.device
    model: GPT
    forward: nn.Module
    """The model as the ranks hold it: itself, or wrapped."""
    optimizers: Optimizers
    feed: Feed
    batch_size: int
    validation: Validation | None
    bytes_per_token: float | None
    checkpoints: Checkpoints
    metrics: Metrics | None
    """Only the first rank writes."""
    trackers: Sequence[Tracker]
    report: Report
    average: dict[str, Tensor] = field(default_factory=dict)
    """The averaged weights by name, if the run keeps them."""
    step: int = 0
    """Steps that are done."""
    seconds: float = 0.0
    """Time that they took, with evaluations and checkpoints, over all parts of the run."""
    pending: list[float | Tensor] = field(default_factory=list)
    """Losses of steps since the last row."""
    best_loss: float = math.inf
    evaluation: Evaluation | None = None
    """The last one."""
    evaluated_step: int = -1
    saved_step: int = -1

    @property
    def num_tokens(self) -> int:
        """Tokens trained on, padding included."""
        return self.plan.timeline.num_tokens(self.step)


def train(run: Run, signals: StopSignals) -> Ending:
    """Train from `run.step` to the end, or until something stops it; a checkpoint is there then."""
    settings = run.settings
    lap = Lap(run)
    run.model.train()
    while run.step < run.num_steps:
        begin = time.perf_counter()
        with explained(run.batch_size, run.plan.seq_len):
            loss, gradient_norm = update(run, run.feed.next_step())
        run.pending.append(loss)
        run.step += 1
        is_last = run.step == run.num_steps
        if is_last or run.step % settings.log_interval == 0:
            write_row(run, lap, gradient_norm)
        run.seconds += time.perf_counter() - begin
        ending = _stops(run, signals)
        is_over = is_last or ending == "max_hours"
        improved = False
        if is_over or _is_due(run.step, settings.eval_interval):
            improved = measure(run, lap)
        if is_over or ending or improved or _is_due(run.step, settings.checkpoint_interval):
            save(run, lap)
        if ending:
            return ending
    return "done"


def update(run: Run, batches: list[Batch]) -> tuple[Tensor, Tensor | None]:
    """Move the weights by the gradient of one global batch.

    Returns this rank's part of the mean loss, and how long the gradient was before it was clipped.
    The sum of losses is divided by the labels of all ranks: nothing else tells how rows are shared.
    """
    settings, ranks = run.settings, run.ranks
    if run.model.settings.dropout:
        torch.manual_seed(_seed(settings.seed, run.step, ranks.rank))
    labels = torch.stack([(batch["labels"] != IGNORED).sum() for batch in batches]).sum()
    num_labels = ranks.sum(labels).clamp(min=1)
    total = torch.zeros((), device=run.device)
    for number, batch in enumerate(batches, start=1):
        with accumulating(run.forward, is_last=number == len(batches)):
            loss = loss_sum(run, batch)
            (loss * (ranks.world_size / num_labels)).backward()  # ranks take the mean of gradients
        total += loss.detach()
    gradient_norm = None
    if settings.grad_clip:
        gradient_norm = nn.utils.clip_grad_norm_(run.model.parameters(), settings.grad_clip)
    factor = settings.schedule.factor(run.step, run.num_steps)
    run.optimizers.step(run.step, factor=factor)
    run.optimizers.zero_grad()
    if run.average:
        _average(run)
    return total / num_labels, gradient_norm


def loss_sum(run: Run, batch: Batch) -> Tensor:
    """Return the summed loss of a batch on the device."""
    documents = None
    if run.settings.document_masking:
        documents = run.model.make_documents(batch["document_ids"], batch["position_ids"])
    return run.forward(batch["token_ids"], batch["labels"], documents=documents)


def write_row(run: Run, lap: Lap, gradient_norm: Tensor | None) -> None:
    """Read the losses since the last row, and tell everybody how it goes."""
    losses = read_pending(run)
    run.pending = []
    loss = sum(losses) / len(losses)
    norm = None if gradient_norm is None else float(whole(gradient_norm))
    seconds, tokens, stall = lap.take(run)
    bits = None
    if run.bytes_per_token:
        bits = loss / math.log(2) / run.bytes_per_token
    speed = tokens / seconds
    model = run.model.settings
    name = torch.cuda.get_device_name(run.device) if run.device.type == "cuda" else ""
    flops = flops_per_token(model, run.plan.seq_len)
    _tell(
        run,
        "train",
        loss=loss,
        bits_per_byte=bits,
        tokens=run.num_tokens,
        tokens_per_second=round(speed, 1),
        mfu=mfu(speed, flops, device_name=name, num_devices=run.ranks.world_size),
        stall=round(stall, 6),
        lr_factor=run.settings.schedule.factor(run.step - 1, run.num_steps),
        grad_norm=norm,
    )
    note = f"loss {loss:.4f}" + (f", {bits:.4f} bits per byte" if bits is not None else "")
    event = Event(stage="train", unit="steps", done=run.step, total=run.num_steps, note=note)
    run.report(replace(event, num_tokens=run.num_tokens))


def measure(run: Run, lap: Lap) -> bool:
    """Evaluate on the validation rows; return whether the model is better than ever."""
    if run.validation is None or run.evaluated_step == run.step:
        return False
    begin = time.perf_counter()
    run.model.eval()
    with averaged(run):
        found = evaluate(
            lambda batch: loss_sum(run, batch),
            run.validation,
            ranks=run.ranks,
            device=run.device,
            batch_size=run.batch_size,
        )
        put_back(run.forward)
    run.model.train()
    run.evaluation, run.evaluated_step = found, run.step
    bits = found.bits_per_byte
    _tell(
        run,
        "eval",
        loss=found.loss,
        perplexity=found.perplexity,
        bits_per_byte=bits,
        tokens=run.num_tokens,
        labels=found.num_labels,
        seconds=round(time.perf_counter() - begin, 3),
    )
    shown = "" if bits is None else f", {bits:.4f} bits per byte"
    text = f"step {run.step:,}: validation loss {found.loss:.4f}{shown}"
    run.report(Event(stage="train", message=text))
    improved = found.loss < run.best_loss
    run.best_loss = min(run.best_loss, found.loss)
    lap.pause(run, begin)
    return improved


def save(run: Run, lap: Lap) -> None:
    """Write a checkpoint; every rank takes part, the first one writes."""
    if run.saved_step == run.step:
        return
    begin = time.perf_counter()
    run.pending = list(read_pending(run))
    model = dict(run.model.named_parameters())
    tensors = {
        "model": whole_tensors(model, whole),
        "optimizer": whole_tensors(run.optimizers.state_dict(), whole),
    }
    if run.average:
        tensors["ema"] = whole_tensors(run.average, whole)
    is_measured = run.evaluation is not None and run.evaluated_step == run.step
    found = run.evaluation if is_measured else None
    settings = run.settings.as_mapping() | {"model": _fields(run.model.settings)}
    if run.ranks.is_first:
        record = Record(
            step=run.step,
            settings=settings,
            data=Loader(run.plan, start_step=run.step).state_dict(),
            num_tokens=run.num_tokens,
            seconds=run.seconds,
            val_loss=None if found is None else found.loss,
            val_bits_per_byte=None if found is None else found.bits_per_byte,
            best_loss=None if math.isinf(run.best_loss) else run.best_loss,
            pending=[float(loss) for loss in run.pending],
            world_size=run.ranks.world_size,
            versions=versions(),
        )
        run.checkpoints.save(record, tensors)
    run.saved_step = run.step
    run.ranks.wait()
    lap.pause(run, begin)


def read_pending(run: Run) -> list[float]:
    """Return the losses since the last row, of all ranks together: here the host waits.

    One that is no number is an error, also before a checkpoint: weights that are spoilt must not
    take the place of good ones.
    """
    losses = [float(loss) for loss in run.pending if not isinstance(loss, Tensor)]
    new = [loss for loss in run.pending if isinstance(loss, Tensor)]
    if new:
        losses += run.ranks.sum(torch.stack(new)).tolist()
    if not all(map(math.isfinite, losses)):
        raise ConfigError(
            f"the loss is no number before step {run.step:,}: training has diverged",
            hint="a smaller --lr, a longer schedule.warmup_steps or a smaller --grad-clip",
        )
    return losses


class Lap:
    """Time, tokens and waiting since the last row; evaluations and checkpoints do not count."""

    def __init__(self, run: Run) -> None:
        self._start(run)

    def take(self, run: Run) -> tuple[float, int, float]:
        """Return seconds, tokens and the share of the time that the loop waited for data."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        waited = run.feed.stall.seconds - self._waited
        tokens = run.num_tokens - self._tokens
        self._start(run)
        return seconds, tokens, waited / seconds

    def pause(self, run: Run, begin: float) -> None:
        """Leave out the time since `begin`; it counts for the run."""
        passed = time.perf_counter() - begin
        self._began += passed
        run.seconds += passed

    def _start(self, run: Run) -> None:
        self._began = time.perf_counter()
        self._tokens, self._waited = run.num_tokens, run.feed.stall.seconds


class averaged:  # noqa: N801  (used as a verb: with averaged(run))
    """Lets the model have its averaged weights for the time of a block, if there are any."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._own: dict[str, Tensor] = {}

    @torch.no_grad()
    def __enter__(self) -> None:
        for name, parameter in self.run.model.named_parameters() if self.run.average else ():
            self._own[name] = parameter.detach().clone()
            parameter.copy_(self.run.average[name])

    @torch.no_grad()
    def __exit__(self, *_: object) -> None:
        for name, parameter in self.run.model.named_parameters() if self.run.average else ():
            parameter.copy_(self._own[name])


@torch.no_grad()
def _average(run: Run) -> None:
    weights = [parameter.detach() for _, parameter in run.model.named_parameters()]
    for average, weight in zip(run.average.values(), weights, strict=True):
        average.lerp_(weight, 1.0 - run.settings.ema)


def _stops(run: Run, signals: StopSignals) -> Ending | None:
    """Return whether to stop now; the ranks agree."""
    hours = run.settings.max_hours
    is_late = hours is not None and run.seconds >= hours * SECONDS_PER_HOUR
    return _ENDINGS[run.ranks.largest(2 if signals.received else int(is_late))]


def _is_due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0


def _tell(run: Run, kind: Kind, **values: Any) -> None:
    if run.metrics is not None:
        row = run.metrics.write(kind, run.step, **values)
        for tracker in run.trackers:
            tracker.log(row)


def _seed(seed: int, step: int, rank: int) -> int:
    """Mix numbers into a seed: what is random at a step needs no state to be resumed.

    >>> _seed(0, 1, 0) != _seed(0, 0, 1)
    True
    """
    mixed = (seed * 0x9E3779B97F4A7C15 + step) * 0xBF58476D1CE4E5B9 + rank
    return (mixed ^ (mixed >> 31)) % (1 << 63)


def _fields(settings: Any) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__slots__}
