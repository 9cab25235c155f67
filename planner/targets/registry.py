"""Targets by name."""

from __future__ import annotations

from hardware.errors import suggest
from planner.graph import ModelGraph
from planner.strategy import Strategy
from planner.targets import any as any_target
from planner.targets import megatron
from planner.targets.target import Target
from planner.workload import Workload

TARGETS = {
    target.name: target
    for target in (
        Target(name="any", rules=any_target.RULES, uniform_recompute=False, allow_empty_end_stages=True),
        Target(name="megatron", rules=megatron.RULES, uniform_recompute=True, allow_empty_end_stages=False),
    )
}
"""All targets."""


def target_names() -> tuple[str, ...]:
    """Names of all targets, ``any`` first."""
    return tuple(TARGETS)


def load_target(name: str) -> Target:
    """The target of a name; ``ValueError`` with the nearest name if there is none."""
    if name not in TARGETS:
        raise ValueError(f"unknown target {name!r}{suggest(name, list(TARGETS))}; accepted: {', '.join(TARGETS)}")
    return TARGETS[name]


def accepting_targets(strategy: Strategy, graph: ModelGraph, num_devices: int, workload: Workload) -> tuple[str, ...]:
    """Names of the targets that would run a strategy on so many devices."""
    return tuple(
        name for name, target in TARGETS.items() if not target.violations(strategy, graph, num_devices, workload)
    )
