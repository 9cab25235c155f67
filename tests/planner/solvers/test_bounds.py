"""The ladder of bounds, on real and on random spaces.

B0 with vpp open <= B0 <= B1 <= simulated time; B1 of states alone <= B1, and paths of each candidate <= its own time.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hardware import read_cluster
from planner import Workload, read_model
from planner.cost import Entries, Group
from planner.layer_costs import Kind
from planner.order import compile_order, in_flight_counts
from planner.solvers.bounds import bound_rows
from planner.solvers.core import CoreGroup, MeshBounder, outer_candidate
from planner.solvers.entries import OuterRows, core_entries, expand, outer_entries, state_entries
from planner.solvers.estimate import outer_row
from planner.solvers.inner import InnerProblem, StagePlans, chain_bounds, solve_pairs
from planner.solvers.result import Limits
from planner.solvers.run import _resolve, _tables
from planner.solvers.shapes import capped_microbatches, in_flight, schedule_name, warm_up_counts
from planner.solvers.space import outer_choices
from planner.solvers.timeline import PathPool, durations_of, simulate_step
from planner.strategy import Recompute
from tests.planner.solvers.brute_force import Case, Enumeration, Evaluated, Evaluator
from tests.planner.solvers.instances import random_case

ROUNDING = 1e-12
"""Relative: bounds of one row are summed in another order for B0 than for B1."""


class Space:
    """A space of a search, from which rows are drawn."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        job = _resolve(
            case.model,
            case.cluster,
            case.workload,
            case.target,
            "step_time",
            {},
            case.headroom,
            "balanced",
            Limits(),
        )
        self.tables = _tables(job)
        self.space, self.job, self.recompute = self.tables.space, self.tables.costs, self.tables.recompute
        self.rng = np.random.default_rng(seed)
        self.groups = list(self.space.mesh_groups())
        self.bounds_of = MeshBounder(self.tables.times, self.tables.table, self.job, self.recompute).bound

    def draw(self) -> Drawn | None:
        """A random outer row below a random core row below a random mesh; ``None`` if a rule cuts it."""
        group = self.groups[self.rng.integers(len(self.groups))]
        index = self.rng.integers(len(group.rows), size=1)
        cores = [core for core, _ in self.space.core_groups(group, index) if core is not None]
        if not cores:
            return None
        core = cores[self.rng.integers(len(cores))]
        mesh = core.rows
        rows, _ = expand(mesh, [outer_choices(int(mesh.dp[0]), int(mesh.cp[0]), core.pp, self.space.fixed)])
        candidate = outer_candidate(rows, core.vpp, self.space.num_devices, True)
        keep = np.ones(len(rows), dtype=bool)
        for _, holds in self.space.target.masks(candidate, self.space.facts, "outer"):
            keep &= holds
        legal = rows.take(keep)
        if not len(legal):
            return None
        return Drawn(
            open_vpp=self.bounds_of(group.rows.take(index), group.shape),
            core=core,
            closed_vpp=self.bounds_of(mesh, core.shape),
            rows=legal.take(self.rng.integers(len(legal), size=1)),
        )

    def entries(self, rows: OuterRows) -> Any:
        return outer_entries(rows, self.tables.times, self.tables.table, self.job.cluster, self.job.gradient_bytes)

    def state_entries(self, rows: OuterRows) -> Any:
        return state_entries(rows, self.tables.times, self.tables.table, self.recompute)

    def problem(self, drawn: Drawn) -> InnerProblem:
        """The inner problem of a drawn row over all layouts."""
        layouts = self.space.layouts(drawn.core.pp, drawn.core.vpp)
        assert layouts is not None
        count = layouts.num_layouts
        row, layout = np.zeros(count, dtype=np.int64), np.arange(count)
        return InnerProblem(self.entries(drawn.rows), layouts, in_flight(*drawn.shape), self.job, row, layout)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A row and what bounds it; bounds are (time [s], memory [bytes])."""

    open_vpp: tuple[Any, Any]
    core: CoreGroup
    closed_vpp: tuple[Any, Any]
    rows: OuterRows

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.core.pp, self.core.vpp, int(self.rows.mesh.num_microbatches[0])


def simulated(plans: StagePlans, shape: tuple[int, int, int], job: Any) -> NDArray[np.float64]:
    times = [simulate_step(durations_of(plans, index, shape[0], job), *shape).time for index in range(len(plans))]
    return np.asarray(times)


def check_ladder(space: Space, drawn: Drawn) -> bool:
    """Whether the row has any candidate; the bounds are in order in any case."""
    b1 = bound_rows(space.entries(drawn.rows), drawn.core.shape, space.job, space.recompute)
    assert drawn.open_vpp[0][0] <= drawn.closed_vpp[0][0] * (1 + ROUNDING)
    states = bound_rows(space.state_entries(drawn.rows), drawn.core.shape, space.job, space.recompute)
    assert drawn.closed_vpp[0][0] <= b1.time[0] * (1 + ROUNDING)
    assert states.time[0] <= b1.time[0] * (1 + ROUNDING)  # B0 knows links, states alone do not: either may be larger
    assert drawn.open_vpp[1][0] <= drawn.closed_vpp[1][0] * (1 + ROUNDING)
    assert drawn.closed_vpp[1][0] <= states.memory[0] * (1 + ROUNDING)
    assert states.memory[0] <= b1.memory[0] * (1 + ROUNDING)
    problem = space.problem(drawn)
    solved = solve_pairs(problem, space.recompute)
    least = problem.memory(Kind.FULL, problem.layouts.layers[problem.layout].T).total.max(axis=0).min()
    plain = problem.memory(Kind.NONE, problem.no_layers()).total.max(axis=0).min()
    assert b1.memory[0] <= min(solved.least_need, least, plain)
    if not len(solved.plans):
        return False
    low = chain_bounds(solved.plans, drawn.shape[2], drawn.shape[0], drawn.shape[1], space.job)
    times = simulated(solved.plans, drawn.shape, space.job)
    assert (low <= times).all()
    assert b1.time[0] <= times.min()
    pool = PathPool(drawn.shape[0])
    for index in {0, int(np.argmin(times)), len(times) - 1}:
        durations = durations_of(solved.plans, index, drawn.shape[0], space.job)
        pool.add(simulate_step(durations, *drawn.shape, every_action=True))
    assert (pool.bounds(solved.plans, space.job) <= times).all()
    return True


def mid_size(name: str) -> Case:
    """Real models; memory as it is, and so short that recomputation and sharding are forced."""
    model, nodes, batch, seq_len = {
        "llama": ("llama-3.1-8b", 8, 64, 8192),
        "moe": ("qwen3-30b-a3b", 8, 64, 4096),
        "deepseek": ("deepseek-v3", 32, 256, 4096),
    }[name.partition("-")[0]]
    cluster = read_cluster(f"dgx-h100*{nodes}")
    case = Case(
        model=read_model(model),
        cluster=cluster,
        workload=Workload(global_batch_size=batch, seq_len=seq_len),
        target="megatron" if name.endswith("megatron") else "any",
        headroom=0.08,
    )
    return case.with_memory(cluster.device.memory // 3) if "short" in name else case


SPACES = ("llama", "llama-short", "llama-megatron", "moe", "moe-short", "deepseek", "deepseek-megatron")


def check_space(name: str, num_rows: int, seed: int) -> None:
    space = Space(mid_size(name), seed)
    with_candidates = tried = 0
    while tried < num_rows:
        drawn = space.draw()
        if drawn is not None and drawn.shape[0] * drawn.shape[1] * drawn.shape[2] <= 20_000:
            tried += 1
            with_candidates += check_ladder(space, drawn)
    assert with_candidates


@pytest.mark.parametrize("name", SPACES)
def test_bounds_are_in_order_on_rows_of_real_spaces(name: str) -> None:
    check_space(name, 20, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_bounds_are_in_order_on_more_rows_of_real_spaces(name: str) -> None:
    check_space(name, 300, seed=1)


# All rows of small spaces, against all of their candidates


def outer_groups(everything: Evaluated) -> Iterator[list[int]]:
    groups: dict[int, list[int]] = defaultdict(list)
    for index, outer in enumerate(everything.outer):
        groups[id(outer)].append(index)
    yield from groups.values()


def check_all_rows(seed: int, most: int, shares: tuple[float, ...]) -> None:
    case, enumeration = random_case(seed, most)
    everything = enumeration.evaluate()
    memories = [10**15, *(int(np.quantile(everything.need, share)) for share in shares if len(everything))]
    for memory in memories:
        check_rows_within(everything, case.with_memory(memory))


def check_rows_within(everything: Evaluated, case: Case) -> None:
    space, evaluator = Space(case), Evaluator(case)
    for indices in outer_groups(everything):
        outer = everything.outer[indices[0]]
        table, times = evaluator.table(outer)
        capped = int(capped_microbatches(np.array([outer.num_microbatches]), outer.pp)[0])
        shape = space.space.shape(outer.pp, outer.vpp, capped)
        rows = outer_row(outer)
        entries = outer_entries(rows, times, table, space.job.cluster, space.job.gradient_bytes)
        b1 = bound_rows(entries, shape, space.job, space.recompute)
        core = core_entries(rows.mesh, times, table, space.job.cluster, space.recompute)
        b0 = bound_rows(core, shape, space.job, space.recompute)
        fits = everything.need[indices] <= case.budget
        best = float(everything.time[indices][fits].min(initial=math.inf))
        said = f"{case.describe()}: {outer}"
        assert b1.time[0] <= best, said
        assert b1.memory[0] <= everything.need[indices].min(), said
        assert b0.time[0] <= b1.time[0] * (1 + ROUNDING) and b0.memory[0] <= b1.memory[0] * (1 + ROUNDING), said


@pytest.mark.parametrize("seed", range(500, 507))
def test_no_bound_is_above_the_best_candidate_of_a_row(seed: int) -> None:
    check_all_rows(seed, 400, (0.02, 0.3))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(507, 612))
def test_no_bound_is_above_the_best_candidate_of_more_rows(seed: int) -> None:
    check_all_rows(seed, 4000, (0.0, 0.02, 0.1, 0.3, 0.6))


# Entries


GROUPS = ("dense_shard_group", "dense_replica_group", "expert_shard_group", "expert_replica_group")
RAISED = ("forward", "backward", "link_time", "shared_time", "dense_parameters", "expert_parameters", *GROUPS)
"""Entries that a bound cannot fall with."""


@pytest.mark.parametrize("name", RAISED)
def test_a_bound_does_not_fall_when_an_entry_grows(name: str) -> None:
    for space_name in ("llama-short", "moe-short"):
        space = Space(mid_size(space_name), seed=3)
        drawn = (space.draw() for _ in range(25))
        for row in drawn:
            if row is None:
                continue
            entries = space.entries(row.rows)
            before = bound_rows(entries, row.core.shape, space.job, space.recompute)
            value, factor = getattr(entries, name), 1 + space.rng.uniform(0, 0.5)
            if isinstance(value, Group):
                raised: Any = Group(algorithms=tuple((a * factor, b * factor) for a, b in value.algorithms))
            else:
                which = space.rng.random(value.shape) < 0.5
                raised = np.where(which, np.ceil(value * factor) if "parameters" in name else value * factor, value)
            after = bound_rows(replace(entries, **{name: raised}), row.core.shape, space.job, space.recompute)
            assert after.time[0] >= before.time[0] * (1 - ROUNDING)
            assert after.memory[0] >= before.memory[0] * (1 - ROUNDING)


def test_a_bound_does_not_fall_when_more_is_kept_or_recomputed_dearer() -> None:
    """More bytes while recomputing, a higher price of a byte, larger working memory."""
    space = Space(mid_size("llama-short"), seed=4)
    for row in (space.draw() for _ in range(60)):
        if row is None:
            continue
        entries = space.entries(row.rows)
        before = bound_rows(entries, row.core.shape, space.job, space.recompute)
        saved = entries.saved.copy()
        saved[1:] = np.minimum(np.ceil(saved[1:] * 1.3), saved[:1])
        for changed in (
            replace(entries, saved=saved),
            replace(entries, price=entries.price * 1.2),
            replace(entries, transient=np.ceil(entries.transient * 1.2)),
        ):
            after = bound_rows(changed, row.core.shape, space.job, space.recompute)
            assert after.time[0] >= before.time[0] * (1 - ROUNDING)
            assert after.memory[0] >= before.memory[0] * (1 - ROUNDING)


# The least recomputation, and what is in flight


def check_least_recompute(seed: int) -> None:
    """For each row, layout and kind: the choice is the fastest of all vectors that fit, and none is missed."""
    case, enumeration = random_case(seed, 1500)
    everything = enumeration.evaluate()
    if not len(everything):
        return
    for share in (0.05, 0.4):
        space = Space(case.with_memory(int(np.quantile(everything.need, share))))
        for indices in outer_groups(everything):
            outer = everything.outer[indices[0]]
            best: dict[tuple[tuple[int, ...], Recompute], float] = defaultdict(lambda: math.inf)
            for index in indices:
                layers, kind, _ = everything.inner[index]
                if everything.need[index] <= space.job.budget:
                    best[layers, kind] = min(best[layers, kind], float(everything.time[index]))
            found = solved_times(space, outer, Evaluator(everything.case))
            for (layers, kind), seconds in found.items():
                assert math.isclose(seconds, best[layers, kind], rel_tol=1e-9), (outer, layers, kind)
            for layers, kind in best:
                spared = (layers, Recompute.NONE) in best
                assert spared or (layers, kind) in found, (outer, layers, kind)


def solved_times(space: Space, outer: Any, evaluator: Evaluator) -> dict[tuple[tuple[int, ...], Recompute], float]:
    shape = (outer.pp, outer.vpp, outer.num_microbatches)
    table, times = evaluator.table(outer)
    layouts = space.space.layouts(outer.pp, outer.vpp)
    assert layouts is not None
    entries = outer_entries(outer_row(outer), times, table, space.job.cluster, space.job.gradient_bytes)
    count = layouts.num_layouts
    row, layout = np.zeros(count, dtype=np.int64), np.arange(count)
    plans = solve_pairs(
        InnerProblem(entries, layouts, in_flight(*shape), space.job, row, layout), space.recompute
    ).plans
    seconds = simulated(plans, shape, space.job)
    kinds = list(Recompute)
    return {
        (tuple(int(value) for value in layouts.layers[plans.layout[index]]), kinds[int(plans.kind[index])]): seconds[
            index
        ]
        for index in range(len(plans))
    }


@pytest.mark.parametrize("seed", range(700, 703))
def test_the_least_recomputation_is_the_best_one(seed: int) -> None:
    check_least_recompute(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(703, 760))
def test_the_least_recomputation_is_the_best_one_in_more_cases(seed: int) -> None:
    check_least_recompute(seed)


PIPELINES = [
    (pp, vpp, count)
    for pp in (2, 3, 4, 6)
    for vpp in (1, 2, 3, 5)
    for count in range(1, 6 * pp + 1)
    if vpp == 1 or count % pp == 0
]


def test_the_closed_form_of_the_warm_up_is_a_moment_of_the_schedule() -> None:
    for pp, vpp, count in PIPELINES:
        moments = in_flight_counts(compile_order(schedule_name(vpp), pp, vpp, count))
        capped = int(capped_microbatches(np.array([count]), pp)[0])
        for rank in range(pp):
            closed = warm_up_counts(rank, pp, vpp, count)
            assert (np.asarray(moments[rank]) >= closed).all(axis=1).any(), (pp, vpp, count, rank)
            assert (closed == warm_up_counts(rank, pp, vpp, capped)).all()


def test_what_is_in_flight_does_not_depend_on_the_cap_of_microbatches() -> None:
    """Counted on the whole order, as sets: no count above the ones that memory is taken from, and none made up."""
    for pp, vpp, count in PIPELINES:
        whole = in_flight_counts(compile_order(schedule_name(vpp), pp, vpp, count))
        for rank, used in enumerate(in_flight(pp, vpp, count)):
            assert sorted(map(tuple, np.asarray(used))) == sorted(map(tuple, np.asarray(whole[rank])))


def test_all_entries_are_looked_at() -> None:
    """A new field of the entries must be added to one of the tests above."""
    looked_at = {*RAISED, "saved", "price", "transient", "recompute"}
    counts = {"num_microbatches", "zero_stage", "dense_shards", "expert_shards", "shared_parameters"}
    assert {field.name for field in fields(Entries)} == looked_at | counts


def test_enumeration_covers_the_rows_of_the_search() -> None:
    """The rows that the search keeps are the legal outer candidates of the enumeration."""
    for seed in range(500, 503):
        case, _ = random_case(seed, 400)
        space = Space(case)
        found = set()
        for group in space.groups:
            for core, _ in space.space.core_groups(group, np.arange(len(group.rows))):
                if core is None:
                    continue
                mesh = core.rows
                choices = [
                    outer_choices(int(dp), int(cp), core.pp, space.space.fixed)
                    for dp, cp in zip(mesh.dp, mesh.cp, strict=True)
                ]
                rows, _ = expand(mesh, choices)
                keep = np.ones(len(rows), dtype=bool)
                candidate = outer_candidate(rows, core.vpp, space.space.num_devices, True)
                for _, holds in space.space.target.masks(candidate, space.space.facts, "outer"):
                    keep &= holds
                rows = rows.take(keep)
                names = ("tp", "cp", "dp", "ep", "etp", "microbatch_size")
                columns = [getattr(rows.mesh, name) for name in names]
                columns += [rows.cp_kind, rows.zero_stage, rows.dp_shard, rows.rank_order]
                found |= {(core.pp, core.vpp, *map(int, values)) for values in zip(*columns, strict=True)}
        evaluator = Evaluator(case)
        legal = [
            outer
            for outer in Enumeration(case).legal_outer
            if Enumeration(case).legal_inner(outer.pp, outer.vpp) and evaluator.is_known(outer)
        ]
        assert len(found) == len(legal), case.describe()
