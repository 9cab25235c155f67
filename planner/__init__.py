"""Finds the fastest way to split training over devices. Names are loaded when they are first used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hardware.cluster_file import read_cluster
    from planner.graph import ModelGraph
    from planner.plan import Plan, Termination
    from planner.plan_file import read_plan, write_plan
    from planner.readers import read_model
    from planner.solvers.estimate import estimate
    from planner.solvers.result import Limits, Progress, SearchResult
    from planner.solvers.run import PlanCheckError, search
    from planner.strategy import Strategy
    from planner.workload import Workload

_HOMES = {
    "Limits": "planner.solvers.result",
    "ModelGraph": "planner.graph",
    "Plan": "planner.plan",
    "PlanCheckError": "planner.solvers.run",
    "Progress": "planner.solvers.result",
    "SearchResult": "planner.solvers.result",
    "Strategy": "planner.strategy",
    "Termination": "planner.plan",
    "Workload": "planner.workload",
    "estimate": "planner.solvers.estimate",
    "read_cluster": "hardware.cluster_file",
    "read_model": "planner.readers",
    "read_plan": "planner.plan_file",
    "search": "planner.solvers.run",
    "write_plan": "planner.plan_file",
}

__all__ = [
    "Limits",
    "ModelGraph",
    "Plan",
    "PlanCheckError",
    "Progress",
    "SearchResult",
    "Strategy",
    "Termination",
    "Workload",
    "estimate",
    "read_cluster",
    "read_model",
    "read_plan",
    "search",
    "write_plan",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
