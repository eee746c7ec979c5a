"""What a run saves to continue its data, and whether a plan may continue it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tokenmill.dataset.plan import Plan
from tokenmill.errors import ConfigError

_VERSION: Final = 1
_SHOWN: Final = ("seed", "seq_len", "batch_size", "packing", "mask_boundaries", "pad_last")


def plan_state(plan: Plan, next_step: int) -> dict[str, Any]:
    """Return the state of a run before a step: plain values, under 1 KB as JSON.

    Only the digest and the step count; the settings are there to explain a refusal.
    """
    return {
        "version": _VERSION,
        "plan": plan.digest,
        "next_step": next_step,
        "settings": {name: getattr(plan, name) for name in _SHOWN},
        "num_amendments": len(plan.amendments),
    }


def resume_step(plan: Plan, state: Mapping[str, Any]) -> int:
    """Return the step at which a plan continues a saved state; refuse if its past is another.

    A plan that was amended since may continue if its new amendments are at the step or after it.
    """
    if state.get("version") != _VERSION:
        raise ConfigError(f"the state has version {state.get('version')!r}, expected {_VERSION}")
    digest, step = state["plan"], int(state["next_step"])
    if digest == plan.digest:
        return step
    for known in reversed(range(len(plan.amendments))):
        if plan.digest_after(known) != digest:
            continue
        amended = plan.amendments[known].at_step
        if amended >= step:
            return step
        raise ConfigError(
            f"the plan was amended at step {amended}, before step {step}, where the state was "
            f"saved: steps {amended} to {step - 1} were trained on other data",
            hint=f"resume from a checkpoint of step {amended} or earlier, or amend at {step}",
        )
    raise _other_plan(plan, state)


def _other_plan(plan: Plan, state: Mapping[str, Any]) -> ConfigError:
    saved = state.get("settings", {})
    changed = [
        f"{name} was {saved[name]}, is {getattr(plan, name)}"
        for name in _SHOWN
        if name in saved and saved[name] != getattr(plan, name)
    ]
    step = state["next_step"]
    if changed:
        reason = "; ".join(changed)
        hint = f"keep the plan as it was, and change it with plan.amend({step}, …)"
    elif state.get("num_amendments", 0) > len(plan.amendments):
        reason = f"it had {state['num_amendments']} amendments, this one has {len(plan.amendments)}"
        hint = "load the plan file that the run was using last"
    else:
        reason = "sources, weights, stages or the content of a store differ"
        hint = "load the plan file that the run was using last, and verify its stores"
    return ConfigError(
        f"the state belongs to another plan ({state['plan'][:19]}, this one is "
        f"{plan.digest[:19]}): {reason}",
        hint=hint,
    )
