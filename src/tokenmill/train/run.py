"""A training run from settings to weights: begin it, or continue it where it stopped."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from tokenmill.dataset import Loader, Plan
from tokenmill.errors import ConfigError, Interrupted
from tokenmill.files import exclusive_lock
from tokenmill.progress import Event, Report, silent
from tokenmill.train.build import Course, arithmetic, build_run, choose_device
from tokenmill.train.checkpoint import Checkpoint, Checkpoints, Which
from tokenmill.train.data import TrainData, open_data
from tokenmill.train.distributed import Ranks, find_ranks, joined
from tokenmill.train.evaluate import Evaluation
from tokenmill.train.loop import SECONDS_PER_HOUR, Ending, Run, train
from tokenmill.train.metrics import Metrics
from tokenmill.train.run_folder import (
    LOCK_NAME,
    PLAN_NAME,
    check_folder,
    check_same_run,
    load_weights,
    make_record,
    read_run,
    write_run,
)
from tokenmill.train.settings import TrainSettings
from tokenmill.train.sharded import cut_like
from tokenmill.train.signals import StopSignals
from tokenmill.train.trackers import open_trackers


@dataclass(frozen=True, kw_only=True)
class TrainOutcome:
    """How a run ended."""

    out_dir: Path
    step: int
    num_tokens: int
    seconds: float
    """Training time over all parts of the run."""
    ending: Ending
    was_complete: bool
    """Whether nothing was left to do."""
    evaluation: Evaluation | None
    is_first: bool = True
    """Whether this rank should print results."""


def train_model(
    settings: TrainSettings, *, resume: Which | None = None, report: Report = silent
) -> TrainOutcome:
    """Train a GPT, or continue a run that has the same settings, to its end.

    A signal to stop raises `Interrupted`, after a checkpoint was written. With `resume` there must
    be something to continue; a step continues from its checkpoint and sets later ones aside.
    """
    out_dir = settings.folder
    ranks = find_ranks(settings.parallel)
    device = choose_device(settings.device, ranks)
    if not ranks.is_first:
        report = silent
    with ExitStack() as stack:
        if ranks.is_first:
            check_folder(out_dir)
            stack.enter_context(exclusive_lock(out_dir / LOCK_NAME))
        stack.enter_context(joined(ranks, device))
        stack.enter_context(arithmetic(settings, device))
        checkpoint = _find_checkpoint(settings, resume, ranks=ranks)
        data = _open_data(settings, out_dir, ranks=ranks, report=report)
        course = _settle_course(settings, data.plan, checkpoint)
        if checkpoint is not None and _is_over(settings, course, checkpoint):
            return _outcome_before(out_dir, checkpoint, is_first=ranks.is_first)
        if ranks.is_first:
            _write_record(settings, data, course)
        run = build_run(settings, data, course, ranks=ranks, device=device)
        stack.callback(run.feed.close)
        run.report = report
        if checkpoint is not None:
            _restore(run, checkpoint)
        _open_outputs(run, stack)
        return _finish(run)


def _open_data(
    settings: TrainSettings, out_dir: Path, *, ranks: Ranks, report: Report
) -> TrainData:
    """Open the data; the first rank tokenizes raw text while the others wait."""
    if ranks.is_first:
        data = open_data(settings, out_dir, report=report)
        ranks.wait()
    else:
        ranks.wait()
        data = open_data(settings, out_dir, report=report, is_first=False)
    for note in data.notes:
        report(Event(stage="train", message=note))
    return data


def _find_checkpoint(
    settings: TrainSettings, resume: Which | None, *, ranks: Ranks
) -> Checkpoint | None:
    """Return what to continue from, verified; refuse settings that the run was not begun with."""
    checkpoints = Checkpoints(settings.folder)
    if ranks.is_first:
        checkpoints.clean()
    ranks.wait()
    if resume is None and not checkpoints.steps():
        return None
    before = read_run(settings.folder)
    if before is not None:
        check_same_run(settings.folder, before, settings)
    return checkpoints.resume("last" if resume is None else resume)


def _settle_course(settings: TrainSettings, plan: Plan, checkpoint: Checkpoint | None) -> Course:
    """Return the steps to do. Data that is not that of the checkpoint is refused.

    A run that continues may be longer than before: its past stays what it was.
    """
    num_steps = settings.max_steps
    if settings.max_tokens is not None:
        num_steps = steps_for_tokens(plan, settings.max_tokens)
    if num_steps is None:
        raise ConfigError("nothing says how long to train", hint="give --max-steps N")
    start = 0
    if checkpoint is not None:
        loader = Loader(plan)
        loader.load_state_dict(checkpoint.record.data)
        start = loader.next_step
    long = replace(plan, num_steps=num_steps)
    if long.total_steps != num_steps:  # an amendment of the plan says otherwise
        last = max(change.at_step for change in plan.amendments)
        long = plan.amend(max(start, last), num_steps=num_steps, note="length given to train")
    return Course(plan=long, num_steps=num_steps, start=start)


def _is_over(settings: TrainSettings, course: Course, checkpoint: Checkpoint) -> bool:
    hours = settings.max_hours
    is_late = hours is not None and checkpoint.record.seconds >= hours * SECONDS_PER_HOUR
    return course.start >= course.num_steps or is_late


def _outcome_before(out_dir: Path, checkpoint: Checkpoint, *, is_first: bool) -> TrainOutcome:
    """Return the outcome of a run that has nothing left to do."""
    record = checkpoint.record
    found = None
    if record.val_loss is not None:
        found = Evaluation(loss=record.val_loss, bits_per_byte=record.val_bits_per_byte)
    return TrainOutcome(
        out_dir=out_dir,
        step=record.step,
        num_tokens=record.num_tokens,
        seconds=record.seconds,
        ending="done",
        was_complete=True,
        evaluation=found,
        is_first=is_first,
    )


def steps_for_tokens(plan: Plan, max_tokens: int) -> int:
    """Return the most steps of a plan that train on no more tokens than this; at least one."""
    steps = 1
    for segment in replace(plan, num_steps=None).timeline.segments:
        left = max_tokens - segment.tokens_before
        if left > 0:
            most = segment.start + left // segment.step_tokens
            steps = max(steps, most if segment.stop is None else min(most, segment.stop))
    return steps


def _write_record(settings: TrainSettings, data: TrainData, course: Course) -> None:
    out_dir, plan = settings.folder, course.plan
    record = make_record(
        settings, plan=plan.digest, num_steps=course.num_steps, tokenizer=data.tokenizer
    )
    write_run(out_dir, record, data.tokenizer)
    plan.save(out_dir / PLAN_NAME)
    Checkpoints(out_dir).set_aside(course.start)


def _restore(run: Run, checkpoint: Checkpoint) -> None:
    """Put weights, optimizers and counters back to where a checkpoint was written."""
    record = checkpoint.record
    load_weights(run.model, checkpoint.tensors("model"))
    run.optimizers.load_state_dict(checkpoint.tensors("optimizer"))
    if run.settings.ema:
        run.average = _copies(run.model)
        _load_average(run.average, checkpoint.tensors("ema"))
    run.seconds, run.pending = record.seconds, list(record.pending)
    run.saved_step = record.step
    if record.best_loss is not None:
        run.best_loss = record.best_loss
    text = f"continuing from step {record.step:,} of {run.num_steps:,}"
    run.report(Event(stage="train", message=text))


def _copies(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@torch.no_grad()
def _load_average(average: dict[str, torch.Tensor], saved: dict[str, torch.Tensor]) -> None:
    for name, tensor in average.items():
        tensor.copy_(cut_like(saved[name], tensor))


def _open_outputs(run: Run, stack: ExitStack) -> None:
    """Open the metrics and trackers, and say what begins."""
    settings = run.settings
    if settings.ema and not run.average:
        run.average = _copies(run.model)
    parameters = run.model.num_parameters()
    shape = run.model.settings
    run.report(
        Event(
            stage="train",
            message=f"{parameters:,} parameters ({shape.num_layers} layers, width {shape.width}), "
            f"{run.num_steps:,} steps of {run.plan.batch_size * run.plan.seq_len:,} tokens, "
            f"{run.batch_size} rows at once, on {_place(run)}",
        )
    )
    if not run.ranks.is_first:
        return
    run.metrics = Metrics(settings.folder, step=run.step)
    if settings.trackers:
        run.trackers = open_trackers(
            settings.trackers,
            run_name=settings.folder.name,
            settings=settings.as_mapping(),
            out_dir=settings.folder,
        )
        for tracker in run.trackers:
            stack.callback(tracker.close)
    run.metrics.write(
        "start",
        run.step,
        tokens=run.num_tokens,
        num_steps=run.num_steps,
        parameters=parameters,
        world_size=run.ranks.world_size,
        device=_place(run),
        batch_size=run.batch_size,
        torch=str(torch.__version__),
    )


def _finish(run: Run) -> TrainOutcome:
    """Train to the end, and say how it went."""
    with StopSignals() as signals:
        ending = train(run, signals)
    if ending == "stopped":
        name = signals.received or "a signal to another rank"
        raise Interrupted(
            f"stopped by {name} at step {run.step:,} of {run.num_steps:,}; it is saved in "
            f"{run.settings.folder}",
            hint="run the same command again: it continues",
        )
    found = run.evaluation
    if run.metrics is not None:
        run.metrics.write(
            "end",
            run.step,
            tokens=run.num_tokens,
            loss=None if found is None else found.loss,
            bits_per_byte=None if found is None else found.bits_per_byte,
            seconds=round(run.seconds, 3),
            ending=ending,
        )
    return TrainOutcome(
        out_dir=run.settings.folder,
        step=run.step,
        num_tokens=run.num_tokens,
        seconds=run.seconds,
        ending=ending,
        was_complete=False,
        evaluation=found,
        is_first=run.ranks.is_first,
    )


def _place(run: Run) -> str:
    name = torch.cuda.get_device_name(run.device) if run.device.type == "cuda" else run.device.type
    count = run.ranks.world_size
    return name if count == 1 else f"{count} x {name} ({run.ranks.parallel})"
