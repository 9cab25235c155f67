"""Exact step times of complete candidates, and the pool of critical paths that bounds their siblings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.cost import JobCosts, exposed_reduction
from planner.order import compile_order
from planner.simulator import TICK, Timeline, simulate, to_ticks
from planner.simulator_paths import PathCounts, path_to_rank
from planner.solvers.bounds import SAFETY
from planner.solvers.inner import StagePlans
from planner.solvers.shapes import schedule_name

Floats = NDArray[np.float64]

MAX_PATHS = 64
"""Paths kept per pipeline shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """What the simulator needs of one candidate [s each]."""

    forward: Floats
    """[stage]"""
    backward: Floats
    """[stage]"""
    link: Floats
    """Message from stage s to s + 1, and back. [stage - 1]"""
    exposed: Floats
    """Gradient reduction that the last backward does not hide. [rank]"""
    update: float
    """Optimizer step and weight gather of the slowest rank."""


def durations_of(plans: StagePlans, index: int, pp: int, job: JobCosts) -> Durations:
    """The durations of one candidate."""
    backward = plans.backward[:, index]
    num_stages = len(backward)
    return Durations(
        forward=plans.forward[:, index],
        backward=backward,
        link=plans.link_time[np.arange(num_stages - 1) % pp, index],
        exposed=np.asarray(exposed_reduction(plans.reduction[:, index], backward[:pp], job)),
        update=float(plans.update[index]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An exactly timed step."""

    time: float
    """The makespan of the schedule, then reductions, then the update [s]."""
    last_rank: int
    """The rank whose reduction ends last."""
    timeline: Timeline
    """When each action runs."""


def simulate_step(
    durations: Durations, pp: int, vpp: int, num_microbatches: int, *, every_action: bool = False
) -> Step:
    """The exact step of one candidate; with every action's time kept where its path is wanted."""
    order = compile_order(schedule_name(vpp), pp, vpp, num_microbatches)
    link = to_ticks(durations.link)
    timeline = simulate(
        order, to_ticks(durations.forward), to_ticks(durations.backward), link, link, every_action=every_action
    )
    ends = timeline.rank_finish * TICK + durations.exposed
    last = int(np.argmax(ends))
    return Step(time=float(ends[last]) + durations.update, last_rank=last, timeline=timeline)


class PathPool:
    """Critical paths of one pipeline shape: each is a lower bound of every candidate of the shape."""

    def __init__(self, pp: int) -> None:
        self.pp = pp
        self.paths: list[PathCounts] = []
        self._seen: set[bytes] = set()

    def add(self, step: Step) -> bool:
        """Add the critical path of a step; whether it is new."""
        if len(self.paths) >= MAX_PATHS:
            return False
        path = path_to_rank(step.timeline, step.last_rank)
        signature = path.counts.tobytes()
        if signature in self._seen:
            return False
        self._seen.add(signature)
        self.paths.append(path)
        return True

    def bounds(self, plans: StagePlans, job: JobCosts) -> Floats:
        """The best bound over the pool. [candidate] [s]"""
        best = np.zeros(len(plans))
        if not self.paths:
            return best
        links = plans.link_time[np.arange(len(plans.forward) - 1) % self.pp]
        exposed = exposed_reduction(plans.reduction, plans.backward[: self.pp], job)
        for path in self.paths:
            length = path.forward @ plans.forward + path.backward @ plans.backward
            length = length + (path.link_forward + path.link_backward) @ links + exposed[path.end_rank]
            best = np.maximum(best, (length + plans.update) * SAFETY)
        return best
