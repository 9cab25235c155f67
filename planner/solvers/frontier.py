"""What the search holds on the way: complete candidates found, closed parts, and rows that wait for refinement."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.layer_costs import Kind
from planner.plan import Subtree, rounded
from planner.solvers.core import CoreGroup, CoreSpace
from planner.solvers.entries import OuterRows
from planner.solvers.inner import StagePlans
from planner.solvers.space import MeshRows

Floats = NDArray[np.float64]

KEY_DIGITS = 9
"""Step times are compared after rounding to so many significant digits."""


def rank_key(seconds: float) -> float:
    """A step time as it is compared."""
    return float(f"{seconds:.{KEY_DIGITS}g}") if math.isfinite(seconds) else seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A complete candidate with its exact step time."""

    step_time: float
    """[s]"""
    pp: int
    vpp: int
    rows: OuterRows
    """One row: the outer choices."""
    layers_per_stage: tuple[int, ...]
    recompute: Kind
    recompute_layers: tuple[int, ...]
    sequence_parallel: bool

    @property
    def order(self) -> tuple[Any, ...]:
        """Ranking key, then the written order of ties: smaller degrees and simpler choices first."""
        mesh = self.rows.mesh
        return (
            rank_key(self.step_time),
            self.pp,
            int(mesh.tp[0]),
            int(mesh.cp[0]),
            int(mesh.ep[0]),
            int(mesh.etp[0]),
            self.vpp,
            int(self.rows.zero_stage[0]),
            int(self.rows.dp_shard[0]),
            -int(mesh.microbatch_size[0]),
            int(self.rows.cp_kind[0]),
            int(self.rows.rank_order[0]),
            int(self.recompute),
            self.recompute_layers,
            self.layers_per_stage,
        )

    @property
    def mesh_key(self) -> tuple[int, ...]:
        """What makes plans distinct: the mesh."""
        return mesh_key_of(self.rows.mesh, 0)


def mesh_key_of(mesh: MeshRows, index: int) -> tuple[int, ...]:
    """(tp, pp, cp, ep, etp) of a row."""
    return (int(mesh.tp[index]), mesh.pp, int(mesh.cp[index]), int(mesh.ep[index]), int(mesh.etp[index]))


@dataclass(slots=True)
class Frontier:
    """Closed parts of the space: how many outer rows, and the least bound among them."""

    sizes: Counter[str] = field(default_factory=Counter)
    bounds: dict[str, float] = field(default_factory=dict)

    def close(self, name: str, size: int, lower_bound: float | None = None) -> None:
        """Count a closed part."""
        if size == 0:
            return
        self.sizes[name] += size
        if lower_bound is not None:
            self.bounds[name] = min(lower_bound, self.bounds.get(name, math.inf))

    def subtrees(self) -> tuple[Subtree, ...]:
        """The parts in the order of their names."""
        return tuple(
            Subtree(name=name, size=self.sizes[name], lower_bound=_rounded(self.bounds.get(name)))
            for name in sorted(self.sizes)
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else rounded(value)


@dataclass(slots=True, kw_only=True)
class CoreBatch:
    """Core rows of one shape that wait to be expanded, the least bound first."""

    group: CoreGroup
    bounds: Floats
    """[row] [s]"""


@dataclass(slots=True, kw_only=True)
class OuterBatch:
    """Outer rows of one (pp, vpp, microbatches) that wait for their inner problem, the least bound first."""

    pp: int
    vpp: int
    num_microbatches: int
    rows: OuterRows
    bounds: Floats


@dataclass(slots=True, kw_only=True)
class Candidates:
    """Complete candidates of one shape that wait for the simulator, the least bound first."""

    shape: tuple[int, int, int]
    """(pp, vpp, microbatches)."""
    plans: StagePlans
    rows: OuterRows
    """Outer rows that ``plans.row`` points into."""
    bounds: Floats
    """[candidate] [s]"""


def found_of(seconds: float, queue: Candidates, index: int, space: CoreSpace) -> Found:
    """A waiting candidate with its exact step time."""
    pp, vpp, _ = queue.shape
    layouts = space.layouts(pp, vpp)
    assert layouts is not None
    plans = queue.plans
    row = int(plans.row[index])
    recompute_layers = tuple(int(count) for count in plans.recompute_layers[:, index])
    return Found(
        step_time=seconds,
        pp=pp,
        vpp=vpp,
        rows=queue.rows.take(slice(row, row + 1)),
        layers_per_stage=tuple(int(count) for count in layouts.layers[plans.layout[index]]),
        recompute=Kind(int(plans.kind[index])) if any(recompute_layers) else Kind.NONE,
        recompute_layers=recompute_layers,
        sequence_parallel=space.fixed.sequence_parallel,
    )
