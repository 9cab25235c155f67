"""Answers in prose: why a plan loses, and why nothing fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict

from hardware.units import format_bytes
from planner.plan import Plan, Prediction


def why_it_loses(best: Prediction, other: Prediction) -> str:
    """The terms of the step in which another plan spends most more than the best one."""
    ours, theirs = asdict(best.time_breakdown), asdict(other.time_breakdown)
    extra = {name: theirs[name] - ours[name] for name in ours}
    worst = sorted(extra, key=lambda name: (-extra[name], name))[:2]
    said = [f"{name.replace('_', ' ')} +{extra[name] / best.step_time:.1%}" for name in worst if extra[name] > 0]
    saved = min(extra, key=lambda name: (extra[name], name))
    text = ", ".join(said) if said else "a tie"
    if extra[saved] < 0 and said:
        text += f", against {saved.replace('_', ' ')} {extra[saved] / best.step_time:.1%}"
    return text


def miss_in_prose(plan: Plan, *, exact: bool) -> str:
    """Which stage of a plan that does not fit needs how many bytes for what.

    `exact` tells whether no candidate needs less, or only none of the most promising ones.
    """
    prediction, strategy = plan.prediction, plan.strategy
    stage = max(prediction.memory_by_stage, key=lambda memory: (memory.total, -memory.rank))
    terms = {name: getattr(stage, name) for name in MEMORY_TERMS}
    said = ", ".join(f"{name} {format_bytes(terms[name])}" for name in MEMORY_TERMS if terms[name])
    degrees = " ".join(f"{name}={value}" for name, value in strategy.degrees.items() if value > 1) or "one device"
    free = prediction.capacity - prediction.budget
    who = "The candidate" if exact else "Of the most promising candidates the one"
    return (
        f"{who} that needs least memory ({degrees}, zero_stage={strategy.zero_stage}, "
        f"microbatch_size={strategy.microbatch_size}, recompute={strategy.recompute}) needs "
        f"{format_bytes(stage.total)} on pipeline rank {stage.rank} ({said}), "
        f"{format_bytes(stage.total - prediction.budget)} more than the {format_bytes(prediction.budget)} usable "
        f"({format_bytes(prediction.capacity)} less {format_bytes(free)} headroom and reserve)."
    )


def memory_that_fits(need: int, headroom: float, reserve: int) -> int:
    """Least device memory whose usable part reaches a need [bytes]."""
    memory = math.ceil((need + reserve) / (1 - headroom))
    while int(memory * (1 - headroom)) - reserve < need:
        memory += 1
    return memory


def headroom_that_fits(need: int, memory: int, reserve: int) -> float | None:
    """Largest headroom, in whole thousandths, that leaves a need; ``None`` where none does."""
    if memory - reserve < need:
        return None
    thousandths = math.floor((1 - (need + reserve) / memory) * 1000)
    while thousandths > 0 and int(memory * (1 - thousandths / 1000)) - reserve < need:
        thousandths -= 1
    return thousandths / 1000


def cut_by(sizes: Mapping[str, int]) -> str:
    """What closed how many candidates, the largest first."""
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {size:,}" for name, size in ordered) or "the space is empty"


MEMORY_TERMS = ("weights", "gradients", "optimizer", "activations", "transient", "gathered", "runtime")
"""Terms of a stage's memory in the order in which people read them."""
