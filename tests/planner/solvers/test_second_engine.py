"""The inner problem by other roads: CP-SAT and HiGHS choose layout, recomputed layers and start times of all actions.

Both get the durations and bytes of every choice as numbers; precedence, memory and the objective are stated as
constraints, so that neither the least-recompute rule nor the simulator nor its paths are assumed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from planner.cost import exposed_reduction
from planner.layer_costs import Kind
from planner.schedule import ActionKind, generate
from planner.solvers.entries import expand, outer_entries
from planner.solvers.inner import InnerProblem, solve_pairs
from planner.solvers.result import Limits
from planner.solvers.run import _resolve, _tables
from planner.solvers.shapes import in_flight, schedule_name
from planner.solvers.space import RecomputeChoice, outer_choices
from planner.solvers.timeline import durations_of, simulate_step
from planner.strategy import Recompute
from tests.planner.solvers.brute_force import Case
from tests.planner.solvers.instances import random_case

SCALE = 1e9
"""CP-SAT ticks in a second."""


@dataclass(frozen=True, kw_only=True)
class Inner:
    """One outer row with a kind of recomputation, as numbers of each (layout, recomputed layers per rank)."""

    pp: int
    vpp: int
    num_microbatches: int
    forward: np.ndarray[Any, Any]  # [layout, stage]
    backward: np.ndarray[Any, Any]  # [layout, count, stage]
    memory: np.ndarray[Any, Any]  # [layout, count, rank]
    exposed: np.ndarray[Any, Any]  # [layout, count, rank]
    update: np.ndarray[Any, Any]  # [layout]
    link: np.ndarray[Any, Any]  # [stage - 1]
    budget: int
    ours: float


def inner_problem(case: Case, rng: random.Random) -> Inner | None:
    """A random outer row of a case that has a pipeline, and what the planner's inner solver makes of it."""
    job = _resolve(case.model, case.cluster, case.workload, "any", "step_time", {}, case.headroom, "balanced", Limits())
    tables = _tables(job)
    rows = [
        (core, index)
        for group in tables.space.mesh_groups()
        for core, _ in tables.space.core_groups(group, np.arange(len(group.rows)))
        if core is not None and 1 < core.pp <= 3 and core.vpp <= 2
        for index in range(len(core.rows))
        if core.rows.num_microbatches[index] <= 6
    ]
    if not rows:
        return None
    core, index = rng.choice(rows)
    mesh = core.rows.take(slice(index, index + 1))
    every, _ = expand(mesh, [outer_choices(int(mesh.dp[0]), int(mesh.cp[0]), core.pp, job.fixed)])
    pick = rng.randrange(len(every))
    row = every.take(slice(pick, pick + 1))
    pp, vpp, count = core.pp, core.vpp, int(mesh.num_microbatches[0])
    layouts = tables.space.layouts(pp, vpp)
    assert layouts is not None
    entries = outer_entries(row, tables.times, tables.table, case.cluster, tables.costs.gradient_bytes)
    number = np.arange(layouts.num_layouts)
    problem = InnerProblem(entries, layouts, in_flight(pp, vpp, count), tables.costs, 0 * number, number)
    kind = rng.choice((Recompute.SELECTIVE, Recompute.FULL))
    choice = RecomputeChoice(kinds=(Recompute.NONE, kind), partial=True, uniform=False)
    plans = solve_pairs(problem, choice).plans
    ours = min(
        (
            simulate_step(durations_of(plans, candidate, pp, tables.costs), pp, vpp, count).time
            for candidate in range(len(plans))
        ),
        default=float("inf"),
    )
    longest = int(layouts.layers.max())
    backward, memory, exposed = [], [], []
    for layers in range(longest + 1):
        spread = problem.spread(np.full((pp, len(number)), layers))
        plan = problem.plans(Kind[kind.name], spread)
        backward.append(plan.backward.T)
        memory.append(problem.memory(Kind[kind.name], spread).total.T)
        exposed.append(exposed_reduction(plan.reduction, plan.backward[:pp], tables.costs).T)
    return Inner(
        pp=pp,
        vpp=vpp,
        num_microbatches=count,
        forward=plan.forward.T,
        backward=np.stack(backward, axis=1),
        memory=np.stack(memory, axis=1),
        exposed=np.stack(exposed, axis=1),
        update=plan.update,
        link=entries.link_time[np.arange(pp * vpp - 1) % pp, 0],
        budget=tables.costs.budget,
        ours=ours,
    )


def precedences(inner: Inner) -> tuple[list[tuple[int, int]], list[tuple[int, int, int | None]], list[int]]:
    """Actions as (stage, 0 forward or 1 backward), (before, after, boundary or None), and the last action per rank."""
    schedule = generate(schedule_name(inner.vpp), inner.pp, inner.vpp, inner.num_microbatches)
    number: dict[tuple[int, bool, int], int] = {}
    actions: list[tuple[int, int]] = []
    edges: list[tuple[int, int, int | None]] = []
    last = []
    for rank in schedule.actions:
        before = None
        for action in rank:
            index = len(actions)
            number[action.stage, action.kind is ActionKind.B, action.microbatch] = index
            actions.append((action.stage, int(action.kind is ActionKind.B)))
            if before is not None:
                edges.append((before, index, None))
            before = index
        assert before is not None
        last.append(before)
    for (stage, backward, microbatch), index in number.items():
        if not backward and stage > 0:
            edges.append((number[stage - 1, False, microbatch], index, stage - 1))
        if backward and stage < inner.pp * inner.vpp - 1:
            edges.append((number[stage + 1, True, microbatch], index, stage))
        if backward and stage == inner.pp * inner.vpp - 1:
            edges.append((number[stage, False, microbatch], index, None))
    return actions, edges, last


def by_cp_sat(inner: Inner) -> float:
    """The least step time [s], by CP-SAT in whole ticks."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    num_layouts, num_counts, _ = inner.backward.shape

    def ticks(seconds: Any) -> Any:
        return np.rint(np.asarray(seconds) * SCALE).astype(np.int64)

    chosen = {
        (layout, rank, count): model.new_bool_var(f"layout {layout}, rank {rank} recomputes {count}")
        for layout in range(num_layouts)
        for rank in range(inner.pp)
        for count in range(num_counts)
    }
    layout_of = [model.new_bool_var(f"layout {layout}") for layout in range(num_layouts)]
    model.add_exactly_one(layout_of)
    for layout in range(num_layouts):
        for rank in range(inner.pp):
            model.add(sum(chosen[layout, rank, count] for count in range(num_counts)) == layout_of[layout])
            for count in range(num_counts):
                if inner.memory[layout, count, rank] > inner.budget:
                    model.add(chosen[layout, rank, count] == 0)

    def duration(stage: int, backward: int) -> Any:
        if not backward:
            values = ticks(inner.forward[:, stage])
            return sum(int(values[layout]) * layout_of[layout] for layout in range(num_layouts))
        values = ticks(inner.backward[:, :, stage])
        return sum(int(values[key[0], key[2]]) * var for key, var in chosen.items() if key[1] == stage % inner.pp)

    actions, edges, last = precedences(inner)
    horizon = int(4 * len(actions) * (ticks(inner.backward).max() + ticks(inner.link).max(initial=0) + 1))
    start = [model.new_int_var(0, horizon, f"start {index}") for index in range(len(actions))]
    for before, after, boundary in edges:
        lag = 0 if boundary is None else int(ticks(inner.link)[boundary])
        model.add(start[after] >= start[before] + duration(*actions[before]) + lag)
    end = model.new_int_var(0, 2 * horizon, "end of the last reduction")
    for rank, index in enumerate(last):
        values = ticks(inner.exposed[:, :, rank])
        tail = sum(int(values[key[0], key[2]]) * var for key, var in chosen.items() if key[1] == rank)
        model.add(end >= start[index] + duration(*actions[index]) + tail)
    model.minimize(end + sum(int(ticks(inner.update)[layout]) * layout_of[layout] for layout in range(num_layouts)))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    if status == cp_model.INFEASIBLE:
        return float("inf")
    assert status == cp_model.OPTIMAL, solver.status_name(status)
    return solver.objective_value / SCALE


def by_milp(inner: Inner) -> float:
    """The least step time [s], by HiGHS with continuous start times in units of the longest action."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    num_layouts, num_counts, _ = inner.backward.shape
    actions, edges, last = precedences(inner)
    unit = inner.backward.max()
    keys = [(la, r, n) for la in range(num_layouts) for r in range(inner.pp) for n in range(num_counts)]
    choice = {key: index for index, key in enumerate(keys)}
    layout_at, start_at = len(keys), len(keys) + num_layouts
    size = start_at + len(actions) + 1
    rows, low = [], []

    def row(entries: dict[int, float], least: float) -> None:
        line = np.zeros(size)
        for index, value in entries.items():
            line[index] += value
        rows.append(line)
        low.append(least)

    def spent(stage: int, backward: int) -> dict[int, float]:
        if not backward:
            return {layout_at + layout: -inner.forward[layout, stage] / unit for layout in range(num_layouts)}
        return {choice[k]: -inner.backward[k[0], k[2], stage] / unit for k in keys if k[1] == stage % inner.pp}

    row({layout_at + layout: 1.0 for layout in range(num_layouts)}, 1.0)
    row({layout_at + layout: -1.0 for layout in range(num_layouts)}, -1.0)
    for layout in range(num_layouts):
        for rank in range(inner.pp):
            line = {choice[layout, rank, count]: 1.0 for count in range(num_counts)}
            row({**line, layout_at + layout: -1.0}, 0.0)
            row({**dict.fromkeys(line, -1.0), layout_at + layout: 1.0}, 0.0)
    for before, after, boundary in edges:
        lag = 0.0 if boundary is None else inner.link[boundary] / unit
        row({**spent(*actions[before]), start_at + after: 1.0, start_at + before: -1.0}, lag)
    for rank, index in enumerate(last):
        entries = dict(spent(*actions[index]))
        for key in keys:
            if key[1] == rank:
                entries[choice[key]] = entries.get(choice[key], 0.0) - inner.exposed[key[0], key[2], rank] / unit
        row({**entries, size - 1: 1.0, start_at + index: -1.0}, 0.0)
    upper = np.full(size, np.inf)
    upper[:start_at] = 1
    for key in keys:
        if inner.memory[key[0], key[2], key[1]] > inner.budget:
            upper[choice[key]] = 0
    goal = np.zeros(size)
    goal[-1] = 1
    goal[layout_at:start_at] = inner.update / unit
    integrality = np.zeros(size)
    integrality[:start_at] = 1
    result = milp(
        goal,
        constraints=LinearConstraint(np.asarray(rows), np.asarray(low), np.inf),
        bounds=Bounds(np.zeros(size), upper),
        integrality=integrality,
        options={"mip_rel_gap": 1e-9},
    )
    if result.status == 2:
        return float("inf")
    assert result.status == 0, result.message
    return float(result.fun * unit)


def check(seed: int) -> bool:
    """Compare the engines on one random outer row; whether there was one."""
    rng = random.Random(seed)
    case, enumeration = random_case(seed, 1500)
    needs = enumeration.evaluate().need
    if len(needs) and rng.random() < 0.7:  # memory that binds
        case = case.with_memory(int(np.quantile(needs, rng.uniform(0.0, 0.6))))
    inner = inner_problem(case, rng)
    if inner is None:
        return False
    if np.isinf(inner.ours):
        assert by_cp_sat(inner) == float("inf")
        assert by_milp(inner) == float("inf")
        return True
    num_actions = 2 * inner.pp * inner.vpp * inner.num_microbatches
    assert by_cp_sat(inner) == pytest.approx(inner.ours, abs=(2 * num_actions + 9) / SCALE)  # each is rounded
    assert by_milp(inner) == pytest.approx(inner.ours, rel=1e-6)  # HiGHS keeps constraints to 1e-7
    return True


def test_both_engines_agree_with_the_inner_solver() -> None:
    assert sum(check(seed) for seed in range(10)) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 300))
def test_both_engines_agree_on_more_rows(seed: int) -> None:
    check(seed)
