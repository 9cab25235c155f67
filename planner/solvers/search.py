"""Best first: a queue pops the least bound and refines it, until the next bound is no better than the best plan.

Four kinds of items share one order: meshes with vpp open and core rows (both B0), outer rows (B1) and complete
candidates (B2: paths, then the simulator). Pruned parts are only counted, with the least bound among them: together
they are the proof.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.cost import JobCosts, LayerTimes
from planner.layer_costs import Kind
from planner.solvers.bounds import Bound, bound_rows
from planner.solvers.core import CoreGroup, CoreSpace, MeshBounder, MeshGroup, outer_candidate
from planner.solvers.entries import Buffers, OuterRows, expand, outer_entries, state_entries
from planner.solvers.frontier import (
    Candidates,
    CoreBatch,
    Found,
    Frontier,
    OuterBatch,
    found_of,
    mesh_key_of,
    rank_key,
)
from planner.solvers.inner import InnerProblem, StagePlans, chain_bounds, solve_pairs
from planner.solvers.result import Limits
from planner.solvers.shapes import in_flight
from planner.solvers.space import MeshRows, RecomputeChoice, outer_choices
from planner.solvers.timeline import PathPool, durations_of, simulate_step
from planner.tables import LayerTable

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FIRST_BLOCK, LARGEST_BLOCK = 32, 4096
"""Meshes expanded at once: few while there is no plan, more later."""
PRIME_SOLVES = 8
"""Outer batches solved before the best-first loop."""
LOSERS_NOTED = 4
"""Closed rows of a batch that are remembered as possible runners-up."""
CORE_BLOCK = 256
"""Core rows of one shape expanded at once."""
OUTER_BATCH = 64
"""Outer rows whose inner problem is solved at once."""


class BestFirst:
    """The loop and its state."""

    def __init__(
        self,
        space: CoreSpace,
        times: LayerTimes,
        table: LayerTable,
        job: JobCosts,
        recompute: RecomputeChoice,
        limits: Limits,
        report: Callable[[BestFirst, bool], None] | None = None,
    ) -> None:
        self.space, self.times, self.table, self.job = space, times, table, job
        self.recompute, self.limits, self.report = recompute, limits, report
        self._bounder = MeshBounder(times, table, job, recompute)
        self._buffers: Buffers = {}
        self.frontier = Frontier()
        self.num_bounded = self.num_evaluated = 0
        self.best: dict[tuple[int, ...], Found] = {}
        self.runners_up: list[Found] = []
        self.least_need = math.inf
        self.stopped = False
        self.interrupted = False
        self._open_before, self._lost_bound = 0.0, math.inf
        self._began = time.monotonic()
        self._counter = itertools.count()
        self._outer: list[tuple[float, int, OuterBatch]] = []
        self._candidates: list[tuple[float, int, Candidates]] = []
        self._core_losers: dict[tuple[int, ...], tuple[float, CoreGroup, int]] = {}
        self._losers: dict[tuple[int, ...], tuple[float, int, OuterRows]] = {}
        self._pools: dict[tuple[int, int, int], PathPool] = {}
        self._in_flight: dict[tuple[int, int, int], list[Ints]] = {}
        self._core: list[tuple[float, int, CoreBatch]] = []
        self._meshes: list[MeshGroup] = []
        self._mesh_bounds: Floats = np.zeros(0)
        self._mesh_group: Ints = np.zeros(0, dtype=np.int64)
        self._mesh_row: Ints = np.zeros(0, dtype=np.int64)
        self._next_mesh = 0

    # What is known so far

    @property
    def champion(self) -> Found | None:
        """The best candidate so far."""
        return min(self.best.values(), key=lambda found: found.order, default=None)

    @property
    def seconds(self) -> float:
        """Wall-clock time since the start [s]."""
        return time.monotonic() - self._began

    @property
    def threshold(self) -> float:
        """Parts whose bound is not below it cannot change the answer [s]."""
        ordered = sorted(found.step_time for found in self.best.values())
        if len(ordered) < self.limits.top:
            return math.inf
        kth = rank_key(ordered[self.limits.top - 1])
        return max(kth, ordered[0] * (1 + self.limits.within)) if self.limits.within else kth

    @property
    def open_bound(self) -> float:
        """The least bound of anything still open [s]."""
        waiting = (_least(self._core), _least(self._outer), _least(self._candidates))
        return min(self._next_mesh_bound(), *waiting, self._lost_bound)

    def closed(self, bound: float) -> bool:
        """Whether a bound is no better than what is known."""
        return rank_key(bound) >= self.threshold

    # The loop

    def run(self) -> None:
        """Search until the proof is complete or a limit is reached."""
        try:
            self._bound_meshes()
            self._prime()
            while not self._finished():
                self._step()
        except KeyboardInterrupt:
            self.stopped = self.interrupted = True
            self._lost_bound = self._open_before  # the step that was cut short may have dropped what it held
        self._close_rest()

    def _finished(self) -> bool:
        if self.closed(self.open_bound):
            return True
        out_of_time = self.limits.time_limit is not None and self.seconds >= self.limits.time_limit
        out_of_work = self.limits.max_work is not None and self.num_bounded + self.num_evaluated >= self.limits.max_work
        self.stopped = out_of_time or out_of_work
        return self.stopped

    def _step(self) -> None:
        self._open_before = self.open_bound
        mesh, core = self._next_mesh_bound(), _least(self._core)
        outer, candidate = _least(self._outer), _least(self._candidates)
        dive = not self.best  # any plan first: it closes much of the rest
        if candidate <= min(mesh, core, outer) or (dive and math.isfinite(candidate)):
            self._evaluate(heapq.heappop(self._candidates)[2])
        elif outer <= min(mesh, core) or (dive and math.isfinite(outer)):
            self._solve_outer()
        elif core <= mesh or (dive and math.isfinite(core)):
            self._expand_core(CORE_BLOCK if self.best else FIRST_BLOCK)
        else:
            self._expand_meshes()
        if self.report:
            self.report(self, False)

    # B0

    def _bound_meshes(self) -> None:
        bounds, groups, index = [], [], []
        for group in self.space.mesh_groups():
            low, memory = self._bounder.bound(group.rows, group.shape)
            self.num_bounded += len(low)
            self.least_need = min(self.least_need, float(memory.min()))
            fits = np.isfinite(low)
            self.frontier.close("memory (B0)", int(group.sizes[~fits].sum()))
            kept = np.nonzero(fits)[0]
            bounds.append(low[kept])
            index.append(kept)
            groups.append(np.full(len(kept), len(self._meshes), dtype=np.int64))
            self._meshes.append(group)
            if self.report:
                self.report(self, False)
        for name, size in self.space.cut.items():
            self.frontier.close(name, size)
        if bounds:
            joined = np.concatenate(bounds)
            order = np.argsort(joined, kind="stable")
            self._mesh_bounds = joined[order]
            self._mesh_group = np.concatenate(groups)[order]
            self._mesh_row = np.concatenate(index)[order]

    def _next_mesh_bound(self) -> float:
        return float(self._mesh_bounds[self._next_mesh]) if self._next_mesh < len(self._mesh_bounds) else math.inf

    def _expand_meshes(self) -> None:
        """Open vpp of the next meshes: as many as lie below the threshold, up to a block."""
        block = FIRST_BLOCK if not self.best else LARGEST_BLOCK
        stop = min(self._next_mesh + block, len(self._mesh_bounds))
        if math.isfinite(self.threshold):
            stop = min(stop, int(np.searchsorted(self._mesh_bounds, self.threshold, side="left")))
            stop = max(stop, self._next_mesh + 1)
        chosen = np.arange(self._next_mesh, stop)
        self._next_mesh = stop
        self._open_meshes(chosen)

    def _open_meshes(self, chosen: Ints) -> None:
        groups, rows = self._mesh_group[chosen], self._mesh_row[chosen]
        for number in np.unique(groups):
            for group, cut in self.space.core_groups(self._meshes[number], rows[groups == number]):
                for name, size in cut.items():
                    self.frontier.close(name, size)
                if group is not None:
                    self._bound_core(group)

    def _prime(self) -> None:
        """Look at the most promising mesh of every group first: a good plan early closes much of the rest."""
        if not len(self._mesh_bounds):
            return
        self._open_before = self._next_mesh_bound()
        _, chosen = np.unique(self._mesh_group, return_index=True)
        self._open_meshes(chosen)
        for name in ("_mesh_bounds", "_mesh_group", "_mesh_row"):
            setattr(self, name, np.delete(getattr(self, name), chosen))
        for _ in range(len(self._core)):
            self._expand_core(1)
        for _ in range(PRIME_SOLVES):
            if self._outer and not self.closed(_least(self._outer)):
                self._solve_outer()

    def _bound_core(self, group: CoreGroup) -> None:
        low, memory = self._bounder.bound(group.rows, group.shape)
        self.num_bounded += len(low)
        self.least_need = min(self.least_need, float(memory.min()))
        fits = np.isfinite(low)
        self.frontier.close("memory (B0)", int(group.rows.num_outer[~fits].sum()))
        worse = fits & (low >= self.threshold)
        if worse.any():
            self.frontier.close("bound (B0)", int(group.rows.num_outer[worse].sum()), float(low[worse].min()))
            self._note_core_losers(group, np.where(worse, low, math.inf))
        kept = np.nonzero(fits & ~worse)[0]
        if len(kept):
            kept = kept[np.argsort(low[kept], kind="stable")]
            self._push_core(replace(group, rows=group.rows.take(kept)), low[kept])

    def _push_core(self, group: CoreGroup, bounds: Floats) -> None:
        heapq.heappush(self._core, (float(bounds[0]), next(self._counter), CoreBatch(group=group, bounds=bounds)))

    # B1

    def _expand_core(self, most: int) -> None:
        """Open the outer choices of the next core rows of one shape."""
        batch = heapq.heappop(self._core)[2]
        size = min(most, len(batch.bounds))
        open_rows = int(np.searchsorted(batch.bounds, self.threshold, side="left"))
        if open_rows == 0:
            self.frontier.close("bound (B0)", int(batch.group.rows.num_outer.sum()), float(batch.bounds[0]))
            self._note_core_losers(batch.group, batch.bounds)
            return
        size = min(size, open_rows)
        if size < len(batch.bounds):
            rest = slice(size, None)
            self._push_core(replace(batch.group, rows=batch.group.rows.take(rest)), batch.bounds[rest])
        self._expand_rows(batch.group, batch.group.rows.take(slice(0, size)))

    def _expand_rows(self, group: CoreGroup, mesh: MeshRows) -> None:
        fixed = self.space.fixed
        choices = [outer_choices(int(dp), int(cp), group.pp, fixed) for dp, cp in zip(mesh.dp, mesh.cp, strict=True)]
        rows, _ = expand(mesh, choices)
        rows = self._keep_rules(rows, group.vpp)
        if not len(rows):
            return
        self.num_bounded += len(rows)
        bound = bound_rows(
            state_entries(rows, self.times, self.table, self.recompute), group.shape, self.job, self.recompute
        )
        rows = rows.take(self._close_worse(rows, group.vpp, bound))  # most end here, before communication is looked up
        if not len(rows):
            return
        entries = outer_entries(rows, self.times, self.table, self.job.cluster, self.job.gradient_bytes, self.recompute)
        bound = bound_rows(entries, group.shape, self.job, self.recompute)
        kept = self._close_worse(rows, group.vpp, bound)
        counts = rows.mesh.num_microbatches[kept]
        for value in np.unique(counts):
            here = kept[counts == value]
            here = here[np.argsort(bound.time[here], kind="stable")]
            self._push_outer(group, int(value), rows.take(here), bound.time[here])

    def _close_worse(self, rows: OuterRows, vpp: int, bound: Bound) -> Ints:
        """Close the rows that do not fit or are no better than what is known; the others' indices."""
        self.least_need = min(self.least_need, float(bound.memory.min()))
        fits = np.isfinite(bound.time)
        self.frontier.close("memory (B1)", int((~fits).sum()))
        worse = fits & (bound.time >= self.threshold)
        if worse.any():
            self.frontier.close("bound (B1)", int(worse.sum()), float(bound.time[worse].min()))
            self._note_losers(rows, vpp, np.where(worse, bound.time, math.inf))
        return np.nonzero(fits & ~worse)[0]

    def _note_losers(self, rows: OuterRows, vpp: int, bounds: Floats) -> None:
        """Remember the best-bounded rows that close, one per mesh, for runners-up."""
        for index in np.argsort(bounds, kind="stable")[:LOSERS_NOTED]:
            mesh = mesh_key_of(rows.mesh, int(index))
            if bounds[index] < self._losers.get(mesh, (math.inf,))[0]:
                self._losers[mesh] = (float(bounds[index]), vpp, rows.take(slice(int(index), int(index) + 1)))

    def _note_core_losers(self, group: CoreGroup, bounds: Floats) -> None:
        """The same for core rows."""
        for index in np.argsort(bounds, kind="stable")[:LOSERS_NOTED]:
            mesh = mesh_key_of(group.rows, int(index))
            if bounds[index] < self._core_losers.get(mesh, (math.inf,))[0]:
                self._core_losers[mesh] = (float(bounds[index]), group, int(index))

    def _push_outer(self, group: CoreGroup, num_microbatches: int, rows: OuterRows, bounds: Floats) -> None:
        batch = OuterBatch(pp=group.pp, vpp=group.vpp, num_microbatches=num_microbatches, rows=rows, bounds=bounds)
        heapq.heappush(self._outer, (float(bounds[0]), next(self._counter), batch))

    def _keep_rules(self, rows: OuterRows, vpp: int) -> OuterRows:
        """Rows that keep the target's rules; the others are counted by rule."""
        keep, cut = self._legal(rows, vpp)
        for name, size in cut.items():
            self.frontier.close(name, size)
        return rows.take(keep)

    def _legal(self, rows: OuterRows, vpp: int) -> tuple[NDArray[np.bool_], Counter[str]]:
        """Which rows keep the target's rules, and how many each rule cuts first."""
        candidate = outer_candidate(rows, vpp, self.space.num_devices, self.space.fixed.sequence_parallel)
        keep = np.ones(len(rows), dtype=bool)
        cut: Counter[str] = Counter()
        for code, holds in self.space.target.masks(candidate, self.space.facts, "outer"):
            cut[f"rule {code}"] += int((keep & ~holds).sum())
            keep &= holds
        return keep, cut

    # B2

    def _solve_outer(self) -> None:
        """Solve the inner problem of the next outer rows of one shape."""
        _, _, batch = heapq.heappop(self._outer)
        size = min(OUTER_BATCH, max(1, 200_000 // (batch.pp * batch.vpp * 32)), len(batch.rows))
        if not self.best:
            size = min(size, 4)
        if math.isfinite(self.threshold):
            open_rows = int(np.searchsorted(batch.bounds, self.threshold, side="left"))
            if open_rows == 0:
                self.frontier.close("bound (B1)", len(batch.rows), float(batch.bounds[0]))
                self._note_losers(batch.rows, batch.vpp, batch.bounds)
                return
            size = min(size, open_rows)
        if size < len(batch.rows):
            rest = OuterBatch(
                pp=batch.pp,
                vpp=batch.vpp,
                num_microbatches=batch.num_microbatches,
                rows=batch.rows.take(slice(size, None)),
                bounds=batch.bounds[size:],
            )
            heapq.heappush(self._outer, (float(rest.bounds[0]), next(self._counter), rest))
        rows = batch.rows.take(slice(0, size))
        self._solve_inner(batch, rows, batch.bounds[:size])

    def _solve_inner(self, batch: OuterBatch, rows: OuterRows, bounds: Floats) -> None:
        shape = (batch.pp, batch.vpp, batch.num_microbatches)
        problem = self._problem(shape, rows)
        row = problem.row
        without = problem.plans(Kind.NONE, problem.no_layers())
        low = np.maximum(self._path_bounds(without, shape), bounds[row])
        closed = low >= self.threshold
        least = np.full(len(rows), math.inf)  # of the row's closed candidates
        np.minimum.at(least, row[closed], low[closed])
        solved = solve_pairs(problem.take(~closed), self.recompute)
        plans = solved.plans
        self.num_bounded += len(row) + len(plans)
        self.least_need = min(self.least_need, solved.least_need)
        low = np.maximum(self._path_bounds(plans, shape), bounds[plans.row])
        np.minimum.at(least, plans.row, low)
        fits = np.isfinite(least)
        self.frontier.close("memory (B2)", int((~fits).sum()))
        self.frontier.close("solved (B2)", int(fits.sum()), float(least[fits].min()) if fits.any() else None)
        self._note_losers(rows, batch.vpp, np.where(fits, least, math.inf))
        order = np.argsort(low, kind="stable")
        order = order[low[order] < self.threshold]
        if len(order):
            queue = Candidates(shape=shape, plans=plans.take(order), rows=rows, bounds=low[order])
            self._evaluate(queue)  # at once: a good plan early closes much of the rest

    def _path_bounds(self, plans: StagePlans, shape: tuple[int, int, int]) -> Floats:
        pp, vpp, num_microbatches = shape
        low = chain_bounds(plans, num_microbatches, pp, vpp, self.job)
        return np.maximum(low, self._pools[shape].bounds(plans, self.job)) if shape in self._pools else low

    def _evaluate(self, queue: Candidates) -> None:
        """Simulate the first candidate of a queue, tighten the bounds of the others by its critical path."""
        pp, vpp, num_microbatches = queue.shape
        pool = self._pools.setdefault(queue.shape, PathPool(pp))
        bounds = np.maximum(queue.bounds, pool.bounds(queue.plans, self.job))
        first = int(np.argmin(bounds))
        if not self.closed(bounds[first]):
            durations = durations_of(queue.plans, first, pp, self.job)
            step = simulate_step(durations, pp, vpp, num_microbatches, every_action=True)
            self.num_evaluated += 1
            if pool.add(step):
                bounds = np.maximum(bounds, pool.bounds(queue.plans, self.job))
            self._remember(found_of(step.time, queue, first, self.space))
            bounds[first] = math.inf
        left = np.nonzero(bounds < self.threshold)[0]
        if len(left):
            order = left[np.argsort(bounds[left], kind="stable")]
            rest = Candidates(shape=queue.shape, plans=queue.plans.take(order), rows=queue.rows, bounds=bounds[order])
            heapq.heappush(self._candidates, (float(bounds[order[0]]), next(self._counter), rest))

    def _remember(self, found: Found) -> None:
        before = self.champion
        known = self.best.get(found.mesh_key)
        if known is None or found.order < known.order:
            self.best[found.mesh_key] = found
        if self.report and (before is None or found.order < before.order):
            self.report(self, True)

    # Runners-up: evaluated after the proof, for people

    def look_at_runners_up(self, count: int) -> None:
        """Evaluate the most promising rows of meshes that the proof closed by a bound, `count` meshes at most.

        They are good plans, not proven to be the next best ones.
        """
        for _, _, outer in self._outer:
            self._note_losers(outer.rows, outer.vpp, outer.bounds)
        for _, _, core in self._core:
            self._note_core_losers(core.group, core.bounds)
        nearest = sorted(self._core_losers.items(), key=lambda item: (item[1][0], item[0]))
        for _, (_, group, index) in nearest[:count]:
            self._bound_outer_of(group, index)
        unseen = [(low, mesh, vpp, rows) for mesh, (low, vpp, rows) in self._losers.items() if mesh not in self.best]
        for _, _, vpp, rows in sorted(unseen, key=lambda item: item[:2])[:count]:
            self._look_at(vpp, rows)

    def _bound_outer_of(self, group: CoreGroup, index: int) -> None:
        """B1 of the outer rows below one core row, noted for runners-up; the proof does not count it."""
        mesh = group.rows.take(slice(index, index + 1))
        rows, _ = expand(mesh, [outer_choices(int(mesh.dp[0]), int(mesh.cp[0]), group.pp, self.space.fixed)])
        rows = rows.take(self._legal(rows, group.vpp)[0])
        if len(rows):
            job = self.job
            entries = outer_entries(rows, self.times, self.table, job.cluster, job.gradient_bytes, self.recompute)
            self._note_losers(rows, group.vpp, bound_rows(entries, group.shape, job, self.recompute).time)

    def _look_at(self, vpp: int, rows: OuterRows) -> None:
        """Evaluate the best-bounded candidate of one outer row, if any fits."""
        shape = (rows.mesh.pp, vpp, int(rows.mesh.num_microbatches[0]))
        solved = solve_pairs(self._problem(shape, rows), self.recompute).plans
        if not len(solved):
            return
        low = self._path_bounds(solved, shape)
        best = solved.take(np.array([int(np.argmin(low))]))
        step = simulate_step(durations_of(best, 0, shape[0], self.job), *shape)
        queue = Candidates(shape=shape, plans=best, rows=rows, bounds=low)
        self.runners_up.append(found_of(step.time, queue, 0, self.space))

    def _problem(self, shape: tuple[int, int, int], rows: OuterRows) -> InnerProblem:
        """The inner problem of some outer rows over all layouts."""
        layouts = self.space.layouts(shape[0], shape[1])
        assert layouts is not None
        if shape not in self._in_flight:
            self._in_flight[shape] = in_flight(*shape)
        entries = outer_entries(rows, self.times, self.table, self.job.cluster, self.job.gradient_bytes)
        row, layout = (part.ravel() for part in np.indices((len(rows), layouts.num_layouts)))
        return InnerProblem(entries, layouts, self._in_flight[shape], self.job, row, layout)

    # The end

    def _close_rest(self) -> None:
        """Count what is still open: closed by its bound, or left open by a limit.

        Ctrl-C may come in the middle of a step: what that step held is open too. Solved rows end at the least of the
        best plan, whose equals and betters are all simulated, and the candidates that still wait.
        """
        state = "open" if self.stopped else "bound"
        bounds = self._mesh_bounds[self._next_mesh :]
        groups, rows = self._mesh_group[self._next_mesh :], self._mesh_row[self._next_mesh :]
        for number in np.unique(groups):
            here = groups == number
            size = int(self._meshes[number].sizes[rows[here]].sum())
            self.frontier.close(f"{state} (B0)", size, float(bounds[here].min()))
        for low, _, core in self._core:
            self.frontier.close(f"{state} (B0)", int(core.group.rows.num_outer.sum()), low)
        for low, _, outer in self._outer:
            self.frontier.close(f"{state} (B1)", len(outer.rows), low)
        if "solved (B2)" in self.frontier.sizes:
            best = self.champion
            simulated = math.inf if best is None else best.step_time
            self.frontier.bounds["solved (B2)"] = min(simulated, _least(self._candidates))
        if self.interrupted:
            lost = self.space.space_size - sum(self.frontier.sizes.values())
            self.frontier.close("open (interrupted)", lost, self._lost_bound)
            self._lost_bound = self._lost_bound if lost else math.inf


def _least(heap: Sequence[tuple[float, int, object]]) -> float:
    """The least bound of a heap; infinite for an empty one."""
    return heap[0][0] if heap else math.inf
