"""Answers in prose: why a plan loses, and why nothing fits."""

from __future__ import annotations

import math
from dataclasses import asdict

from hardware import Cluster
from hardware.units import format_bytes
from planner.cost import JobCosts
from planner.graph import ModelGraph
from planner.plan import Prediction
from planner.solvers.result import Infeasibility
from planner.solvers.search import BestFirst


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


def explain_infeasible(model: ModelGraph, cluster: Cluster, job: JobCosts, loop: BestFirst) -> Infeasibility:
    """Why nothing fits, from the least memory that any candidate needs."""
    capacity = cluster.device.memory
    if not math.isfinite(loop.least_need):
        message = "No candidate keeps the rules: " + _cut_by(loop)
        return Infeasibility(
            message=message,
            nearest_need=None,
            budget=job.budget,
            suggestion="change the keys that are fixed, the global batch size or the number of devices",
        )
    missing = loop.least_need - job.budget
    message = (
        f"No plan fits {model.name} on {cluster.num_devices} x {cluster.device.name}: the best attempt still needs "
        f"{format_bytes(math.ceil(loop.least_need))} on its fullest device, {format_bytes(math.ceil(missing))} more than "
        f"the {format_bytes(job.budget)} usable of {format_bytes(capacity)}."
    )
    return Infeasibility(
        message=message, nearest_need=loop.least_need, budget=job.budget, suggestion="use more devices or larger ones"
    )


def _cut_by(loop: BestFirst) -> str:
    sizes = sorted(loop.frontier.sizes.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} cuts {size}" for name, size in sizes) or "the space is empty"
