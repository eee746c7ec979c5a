"""The digest of a plan: a name for the sequence of its batches.

It covers what decides batches, also the content of the sources, and nothing else: not paths, names
or notes, not the length of the run, not how often a source may be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tokenmill.dataset.mixture import normalize
from tokenmill.dataset.plan_settings import Amendment, Source, Stage

if TYPE_CHECKING:
    from tokenmill.dataset.plan import Plan

_VERSION: Final = 1


def digest_of(plan: Plan, num_amendments: int) -> str:
    """Return the digest of a plan as it was with only its first amendments."""
    amendments = plan.amendments[:num_amendments]
    num_sources = len(plan.sources) + sum(len(change.sources) for change in amendments)
    facts = [_amendment_facts(plan, change) for change in amendments]
    content = {
        "version": _VERSION,
        "seed": plan.seed,
        "seq_len": plan.seq_len,
        "batch_size": plan.batch_size,
        "packing": plan.packing,
        "mask_boundaries": plan.mask_boundaries,
        "pad_last": plan.pad_last,
        "sources": [_source_facts(plan, source) for source in plan.all_sources[:num_sources]],
        "weights": [str(weight) for weight in normalize(plan.first_weights)],
        "stages": [_stage_facts(plan, stage) for stage in plan.stages],
        "amendments": [fact for fact in facts if fact],
    }
    data = msgspec.json.encode(content, order="sorted")
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _source_facts(plan: Plan, source: Source) -> list[Any]:
    facts: list[Any] = [plan.opened.digest(source), source.split]
    return [*facts, source.hold_out] if source.hold_out else facts


def _stage_facts(plan: Plan, stage: Stage) -> dict[str, Any]:
    return {
        "from_step": stage.from_step,
        "from_tokens": stage.from_tokens,
        "batch_size": stage.batch_size,
        "seq_len": stage.seq_len,
        "weights": _weight_facts(plan, stage.weights),
    }


def _amendment_facts(plan: Plan, change: Amendment) -> dict[str, Any]:
    """Return what of an amendment decides batches; nothing if it only sets the length."""
    stages = change.stages
    facts = {
        "batch_size": change.batch_size,
        "seq_len": change.seq_len,
        "skip_steps": change.skip_steps or None,
        "weights": _weight_facts(plan, change.weights),
        "num_sources": len(change.sources) or None,
        "stages": None if stages is None else [_stage_facts(plan, stage) for stage in stages],
    }
    facts = {name: value for name, value in facts.items() if value is not None}
    return {"at_step": change.at_step, **facts} if facts else {}


def _weight_facts(plan: Plan, weights: Mapping[str, float] | None) -> list[list[Any]] | None:
    """Return weights by the number of the source, since names are free to change."""
    if weights is None:
        return None
    exact = normalize([Fraction(str(weight)) for weight in weights.values()])
    numbers = map(plan.source_number, weights)
    return [[number, str(weight)] for number, weight in sorted(zip(numbers, exact, strict=True))]
