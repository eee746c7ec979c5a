"""What a plan will do, in numbers: before the run, and after it was amended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.dataset.plan_settings import Amendment
from tokenmill.dataset.reading import Reading
from tokenmill.dataset.rows import Accounting
from tokenmill.progress import count

if TYPE_CHECKING:
    from tokenmill.dataset.plan import Plan
    from tokenmill.dataset.timeline import Segment


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFacts:
    """What a run takes from one source."""

    name: str
    path: str
    split: str
    digest: str
    num_tokens: int
    num_documents: int
    bytes_per_token: int
    epoch: Accounting
    """What becomes of its tokens in one epoch, with the sequence length at the start."""
    num_samples: int
    """Rows that the run draws."""
    num_drawn: int
    """Tokens in these rows, padding included."""
    share: float
    """Of all tokens of the run."""
    num_epochs: float
    first_repeat: int | None
    """The first step that reads something again; None if none does."""
    max_epochs: int | None
    num_skipped: int
    """Tokens passed over by skips."""
    num_dropped: int
    """Tokens lost at the ends of epochs that were begun with another sequence length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentFacts:
    """Steps with the same settings."""

    start: int
    stop: int
    cause: str
    batch_size: int
    seq_len: int
    weights: dict[str, float]
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AmendmentFacts:
    """A change that was made to the plan."""

    at_step: int
    change: str
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """All of it."""

    digest: str
    num_steps: int
    has_end: bool
    """Whether the plan says how long the run is."""
    num_tokens: int
    """Tokens trained on, padding included."""
    num_samples: int
    first_repeat: int | None
    sources: tuple[SourceFacts, ...]
    segments: tuple[SegmentFacts, ...]
    amendments: tuple[AmendmentFacts, ...]
    bytes_per_token: float
    """Bytes read from stores for each token trained on."""

    def bytes_per_second(self, tokens_per_second: float) -> float:
        """Return what storage must deliver to all ranks together at a rate of training."""
        return tokens_per_second * self.bytes_per_token

    def text(self, *, tokens_per_second: float = 1e6) -> str:
        """Return all of it for people to read."""
        end = "" if self.has_end else " (the plan itself has no end)"
        rows = f"{self.num_samples:,} rows"
        lines = [
            f"plan {self.digest}",
            f"{self.num_steps:,} steps, {self.num_tokens:,} tokens in {rows}{end}",
            "",
            "sources",
        ]
        for source in self.sources:
            lines += _source_lines(source)
        lines += ["", "steps"]
        for segment in self.segments:
            weights = ", ".join(f"{name} {share:.4g}" for name, share in segment.weights.items())
            lines.append(
                f"  {segment.start:,} to {segment.stop:,} ({segment.cause}): batch_size "
                f"{segment.batch_size:,}, seq_len {segment.seq_len:,}, {weights}"
            )
        if self.amendments:
            lines += ["", "amendments"]
        for number, change in enumerate(self.amendments, start=1):
            note = f" ({change.note})" if change.note else ""
            lines.append(f"  {number}. at step {change.at_step:,}: {change.change}{note}")
        rate = count(self.bytes_per_second(tokens_per_second))
        lines += ["", f"at {count(tokens_per_second)} tokens/s, storage must deliver {rate}B/s"]
        return "\n".join(lines)


def explain(plan: Plan, *, num_steps: int | None = None) -> Explanation:
    """Say what a plan takes from where in its first steps, by default in the whole run.

    A plan without end is followed until it repeats something.
    """
    timeline = plan.timeline
    first_repeat = plan.first_repeat()
    stop = num_steps or timeline.num_steps or first_repeat
    assert stop is not None  # a run without end draws from a source without end
    spans = [
        (segment, stop if segment.stop is None else min(segment.stop, stop))
        for segment in timeline.segments
        if segment.start < stop
    ]
    total = timeline.num_tokens(stop)
    sources = tuple(_source_facts(plan, number, spans, total) for number in range(len(plan.names)))
    read = sum(facts.num_drawn * facts.bytes_per_token for facts in sources)
    return Explanation(
        digest=plan.digest,
        num_steps=stop,
        has_end=timeline.num_steps is not None,
        num_tokens=total,
        num_samples=sum(facts.num_samples for facts in sources),
        first_repeat=first_repeat if first_repeat is not None and first_repeat < stop else None,
        sources=sources,
        segments=tuple(_segment_facts(plan, segment, end) for segment, end in spans),
        amendments=tuple(
            AmendmentFacts(at_step=c.at_step, change=", ".join(_changes(c)), note=c.note)
            for c in plan.amendments
        ),
        bytes_per_token=read / total,
    )


def _source_facts(
    plan: Plan, number: int, spans: list[tuple[Segment, int]], total: int
) -> SourceFacts:
    source = plan.all_sources[number]
    known = [(segment, stop) for segment, stop in spans if number < len(segment.readings)]
    num_samples, num_drawn, num_epochs = 0, 0, 0.0
    for segment, stop in known:
        reading = segment.readings[number]
        drawn = int((segment.cursors(stop) - segment.cursors(segment.start))[number])
        num_samples += drawn
        num_drawn += drawn * segment.seq_len
        num_epochs += drawn / reading.num_rows
    tokens = plan.opened.tokens(source)
    first_repeat = plan.timeline.epoch_step(number, 1)
    is_repeated = first_repeat is not None and bool(spans) and first_repeat < spans[-1][1]
    return SourceFacts(
        name=plan.names[number],
        path=source.path,
        split=source.split,
        digest=plan.opened.digest(source),
        num_tokens=tokens.num_tokens,
        num_documents=tokens.num_documents,
        bytes_per_token=tokens.dtype.itemsize,
        epoch=plan.rows(number, known[0][0].seq_len if known else plan.seq_len).accounting(),
        num_samples=num_samples,
        num_drawn=num_drawn,
        share=num_drawn / total,
        num_epochs=num_epochs,
        first_repeat=first_repeat if is_repeated else None,
        max_epochs=source.max_epochs,
        num_skipped=sum(int(segment.skipped[number]) for segment, _ in known),
        num_dropped=_num_dropped([segment.readings[number] for segment, _ in known]),
    )


def _num_dropped(readings: list[Reading]) -> int:
    """Add up what is left after the last whole row of each rest, also of rests of rests."""
    found: list[Reading] = []
    waiting = list(readings)
    while waiting:
        reading = waiting.pop()
        if reading not in found:
            found.append(reading)
            waiting += [] if reading.rest is None else [reading.rest.reading]
    return sum(reading.num_dropped for reading in found)


def _segment_facts(plan: Plan, segment: Segment, stop: int) -> SegmentFacts:
    return SegmentFacts(
        start=segment.start,
        stop=stop,
        cause=segment.cause,
        batch_size=segment.batch_size,
        seq_len=segment.seq_len,
        weights={
            name: float(weight)
            for name, weight in zip(plan.names, segment.mixture.weights, strict=False)
        },
        num_tokens=(stop - segment.start) * segment.step_tokens,
    )


def _changes(amendment: Amendment) -> list[str]:
    """Say in words what an amendment changes."""
    changes: list[str] = []
    if amendment.sources:
        names = [source.name or source.path for source in amendment.sources]
        changes.append(f"adds {', '.join(names)}")
    if amendment.weights is not None:
        weights = ", ".join(f"{name} {weight:g}" for name, weight in amendment.weights.items())
        changes.append(f"weights {weights}")
    for name in ("batch_size", "seq_len", "num_steps"):
        value = getattr(amendment, name)
        if value is not None:
            changes.append(f"{name} {value:,}")
    if amendment.stages is not None:
        changes.append(f"{len(amendment.stages)} stages to come")
    if amendment.skip_steps:
        stop = amendment.at_step + amendment.skip_steps
        changes.append(f"skips the data of steps {amendment.at_step:,} to {stop:,}")
    return changes


def _source_lines(facts: SourceFacts) -> list[str]:
    epoch = facts.epoch
    repeat = "nothing is read twice"
    if facts.first_repeat is not None:
        repeat = f"first repeat at step {facts.first_repeat:,}"
    limit = "" if facts.max_epochs is None else f" of at most {facts.max_epochs}"
    lines = [
        f"  {facts.name}  {facts.path} ({facts.split}), {facts.digest[:19]}",
        f"    holds {facts.num_tokens:,} tokens in {facts.num_documents:,} documents: "
        f"{epoch.num_rows:,} rows an epoch",
        f"    gives {facts.num_drawn:,} tokens ({facts.share:.2%}) in {facts.num_samples:,} rows: "
        f"{facts.num_epochs:.3f} epochs{limit}, {repeat}",
    ]
    counts = {
        "dropped": epoch.num_dropped,
        "truncated": epoch.num_truncated,
        "repeated": epoch.num_repeated,
        "padded": epoch.num_padded,
        "without a target": epoch.num_masked,
    }
    shown = [f"{value:,} {what}" for what, value in counts.items() if value]
    lines.append(f"    an epoch has {', '.join(shown) or 'nothing dropped or padded'}")
    if facts.num_skipped:
        lines.append(f"    {facts.num_skipped:,} tokens are passed over by skips")
    if facts.num_dropped:
        lines.append(f"    {facts.num_dropped:,} tokens are lost where the sequence length changes")
    return lines
