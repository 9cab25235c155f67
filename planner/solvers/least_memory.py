"""The candidate that needs least memory: the nearest miss where nothing fits.

Best first like the search, with memory in place of time: bounds of meshes, core rows and outer rows, then the exact
memory of the fullest rank over all layouts and kinds of recomputation.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.cost import JobCosts, LayerTimes
from planner.layer_costs import Kind
from planner.solvers.bounds import bound_rows
from planner.solvers.core import CoreSpace, MeshBounder, outer_candidate
from planner.solvers.entries import OuterRows, expand, outer_entries
from planner.solvers.inner import KINDS, InnerProblem
from planner.solvers.shapes import in_flight
from planner.solvers.space import RecomputeChoice, outer_choices
from planner.strategy import Recompute
from planner.tables import LayerTable

BLOCKS = {"mesh": 256, "core": 256, "outer": 16}
"""Rows refined at once."""
MOST_SOLVED = 1500
"""Outer rows whose exact memory is looked at: the least bounds come first, and what follows differs by little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestMiss:
    """The candidate whose fullest rank needs least memory."""

    need: int
    """Of its fullest rank [bytes]."""
    pp: int
    vpp: int
    rows: OuterRows
    """One row: its outer choices."""
    layers_per_stage: tuple[int, ...]
    recompute: Kind
    recompute_layers: tuple[int, ...]
    """[virtual stage]"""
    sequence_parallel: bool


class LeastMemory:
    """The search for the nearest miss."""

    def __init__(
        self, space: CoreSpace, times: LayerTimes, table: LayerTable, job: JobCosts, recompute: RecomputeChoice
    ) -> None:
        self.space, self.times, self.table, self.job, self.recompute = space, times, table, job, recompute
        self._bounder = MeshBounder(times, table, job, recompute)
        self.best: NearestMiss | None = None
        self.exact = True
        """Whether nothing needs less than the best; false where the search was cut short."""
        self._num_solved = 0
        self._heap: list[tuple[float, int, Any]] = []
        self._counter = itertools.count()

    def run(self, enough: int = 0) -> NearestMiss | None:
        """The nearest miss, or any candidate that needs no more than `enough`; ``None`` where none keeps the rules."""
        for group in self.space.mesh_groups():
            memory = self._bounder.bound(group.rows, group.shape)[1]
            self._push(("mesh", group), memory, np.arange(len(memory)))
        while self._heap and self._heap[0][0] < self._least and self._least > enough:
            if self.best is not None and self._num_solved >= MOST_SOLVED:
                self.exact = False
                break
            _, _, (item, memory, index) = heapq.heappop(self._heap)
            kind, payload = item
            size = min(BLOCKS[kind], int(np.searchsorted(memory, self._least)))
            self._push(item, memory[size:], index[size:])
            getattr(self, f"_open_{kind}")(payload, index[:size])
        return self.best

    @property
    def _least(self) -> float:
        return math.inf if self.best is None else self.best.need

    def _push(self, item: Any, memory: Any, index: Any) -> None:
        kept = np.nonzero(memory < self._least)[0]
        if len(kept):
            order = kept[np.argsort(memory[kept], kind="stable")]
            entry = (item, memory[order], index[order])
            heapq.heappush(self._heap, (float(memory[order[0]]), next(self._counter), entry))

    def _open_mesh(self, group: Any, index: Any) -> None:
        for core, _ in self.space.core_groups(group, index):
            if core is not None:
                memory = self._bounder.bound(core.rows, core.shape)[1]
                self._push(("core", core), memory, np.arange(len(memory)))

    def _open_core(self, core: Any, index: Any) -> None:
        mesh, fixed = core.rows.take(index), self.space.fixed
        choices = [outer_choices(int(dp), int(cp), core.pp, fixed) for dp, cp in zip(mesh.dp, mesh.cp, strict=True)]
        rows, _ = expand(mesh, choices)
        candidate = outer_candidate(rows, core.vpp, self.space.num_devices, fixed.sequence_parallel)
        keep = np.ones(len(rows), dtype=bool)
        for _, holds in self.space.target.masks(candidate, self.space.facts, "outer"):
            keep &= holds
        rows = rows.take(keep)
        if len(rows):
            memory = bound_rows(self._entries(rows), core.shape, self.job, self.recompute).memory
            self._push(("outer", (core.vpp, rows)), memory, np.arange(len(memory)))

    def _entries(self, rows: OuterRows) -> Any:
        return outer_entries(rows, self.times, self.table, self.job.cluster, self.job.gradient_bytes)

    def _open_outer(self, payload: Any, index: Any) -> None:
        vpp, rows = payload
        self._num_solved += len(index)
        rows = rows.take(index)
        for count in np.unique(rows.mesh.num_microbatches):
            self._solve(vpp, rows.take(rows.mesh.num_microbatches == count), int(count))

    def _solve(self, vpp: int, rows: OuterRows, num_microbatches: int) -> None:
        pp = rows.mesh.pp
        layouts = self.space.layouts(pp, vpp)
        assert layouts is not None
        row, layout = (part.ravel() for part in np.indices((len(rows), layouts.num_layouts)))
        flying = in_flight(pp, vpp, num_microbatches)
        problem = InnerProblem(self._entries(rows), layouts, flying, self.job, row, layout)
        none = problem.no_layers()
        everything = layouts.layers[layout].T
        plain = problem.memory(Kind.NONE, none).total
        for recompute in self.recompute.kinds:
            kind = KINDS[recompute]
            total = plain if kind is Kind.NONE else problem.memory(kind, everything).total
            spared = np.zeros_like(total, dtype=bool)
            if self.recompute.partial and not self.recompute.uniform and Recompute.NONE in self.recompute.kinds:
                spared = plain <= total
            need = np.where(spared, plain, total).max(axis=0)
            best = int(np.argmin(need))
            if need[best] < self._least:
                chosen = np.where(np.tile(spared[:, best], vpp), 0, everything[:, best])
                chosen = none[:, best] if kind is Kind.NONE else chosen
                self.best = NearestMiss(
                    need=int(need[best]),
                    pp=pp,
                    vpp=vpp,
                    rows=rows.take(slice(int(row[best]), int(row[best]) + 1)),
                    layers_per_stage=tuple(int(value) for value in layouts.layers[layout[best]]),
                    recompute=kind if chosen.any() else Kind.NONE,
                    recompute_layers=tuple(int(value) for value in chosen),
                    sequence_parallel=self.space.fixed.sequence_parallel,
                )
