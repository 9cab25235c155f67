"""Fixed values against the space: a value that no candidate can have is bad input, with the nearest legal one."""

from __future__ import annotations

from hardware import Cluster
from planner.graph import ModelGraph
from planner.solvers.space import Fixed
from planner.targets import Target
from planner.workload import Workload


def fixed_problems(fixed: Fixed, model: ModelGraph, cluster: Cluster, workload: Workload, target: Target) -> list[str]:
    """One line per fixed key whose values are all illegal for the model, the cluster and the target."""
    return []
