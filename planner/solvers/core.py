"""Meshes and core rows of the space: enumerated, held against the target's core rules, and bounded by B0 in chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import Entries, JobCosts, LayerTimes
from planner.layer_costs import Keys
from planner.solvers.bounds import bound_rows
from planner.solvers.entries import Buffers, core_entries
from planner.solvers.layouts import Chain, Layouts, balanced_layouts
from planner.solvers.shapes import Shape, capped_microbatches, least_shape, make_shape
from planner.solvers.space import Fixed, MeshRows, RecomputeChoice, collect_keys, count_outer, divisors, mesh_rows
from planner.tables import LayerTable
from planner.targets import Candidate, ModelFacts, Target

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CHUNK = 16_384
"""Rows bounded at once: large enough for numpy, small enough for the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """All meshes that keep the rules that do not depend on vpp."""

    by_pp: dict[int, MeshRows]
    keys: Keys
    rejected: dict[int, Counter[str]]
    """Outer rows of one vpp that a rule cut, by pp and rule."""
    max_vpp: dict[int, int]
    """Virtual stages per rank that the layers allow, by pp."""


def enumerate_meshes(num_devices: int, facts: ModelFacts, target: Target, fixed: Fixed) -> Meshes:
    """All (pp, tp, cp, dp, ep, etp, microbatch size) whose products are right, less those that rules cut."""
    raw: dict[int, dict[str, Ints]] = {}
    rejected: dict[int, Counter[str]] = {}
    max_vpp: dict[int, int] = {}
    for pp in divisors(num_devices):
        ends = int(facts.has_embedding) + int(facts.has_head) if target.allow_empty_end_stages else 0
        most = (facts.num_body_layers + ends) // pp
        if not fixed.allows("pp", pp) or most < 1:
            continue
        columns = mesh_rows(pp, num_devices, facts, fixed)
        columns["num_outer"] = count_outer(columns, pp, fixed)
        keep, cut = _hold(columns, pp, 1, num_devices, facts, target, fixed)
        rejected[pp], max_vpp[pp] = cut, 1 if pp == 1 else most
        raw[pp] = {name: column[keep] for name, column in columns.items()}
    keys, index = collect_keys(raw)
    by_pp = {
        pp: MeshRows(
            pp=pp,
            key=index[pp],
            num_microbatches=facts.global_batch_size // (columns["dp"] * columns["microbatch_size"]),
            expert_axis=columns["dp"] * columns["cp"] * columns["tp"] // (columns["ep"] * columns["etp"]),
            **columns,
        )
        for pp, columns in raw.items()
    }
    return Meshes(by_pp=by_pp, keys=keys, rejected=rejected, max_vpp=max_vpp)


def _hold(
    columns: dict[str, Any], pp: int, vpp: int, num_devices: int, facts: ModelFacts, target: Target, fixed: Fixed
) -> tuple[NDArray[np.bool_], Counter[str]]:
    """Rows that keep the target's core rules, and outer rows that each rule cuts first."""
    candidate = Candidate(
        num_devices=num_devices,
        pp=pp,
        vpp=vpp,
        **{name: columns[name] for name in ("tp", "cp", "dp", "ep", "etp", "microbatch_size")},
        num_microbatches=facts.global_batch_size // (columns["dp"] * columns["microbatch_size"]),
        sequence_parallel=int(fixed.sequence_parallel),
    )
    keep = np.ones(len(columns["tp"]), dtype=bool)
    cut: Counter[str] = Counter()
    for code, holds in target.masks(candidate, facts, "core"):
        failed = keep & ~holds
        if failed.any():
            cut[code] += int(columns["num_outer"][failed].sum())
            keep &= holds
    return keep, cut


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshGroup:
    """Meshes of one pp that share shape facts; vpp is open."""

    pp: int
    vpps: tuple[int, ...]
    """Numbers of virtual stages per rank that the layers and the user allow."""
    microbatches: int
    """Number of microbatches as far as the shape depends on it."""
    shape: Shape
    """The least facts over all vpp."""
    rows: MeshRows

    @property
    def sizes(self) -> Ints:
        """Outer rows below each mesh. [row]"""
        return self.rows.num_outer * len(self.vpps)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreGroup:
    """Core rows of one (pp, vpp) that share shape facts."""

    pp: int
    vpp: int
    shape: Shape
    rows: MeshRows


class CoreSpace:
    """Meshes and the core rows below them, with the counts of what rules cut."""

    def __init__(
        self,
        meshes: Meshes,
        chain: Chain,
        facts: ModelFacts,
        target: Target,
        fixed: Fixed,
        num_devices: int,
        valid: NDArray[np.bool_],
    ) -> None:
        self.meshes, self.chain, self.facts, self.target, self.fixed = meshes, chain, facts, target, fixed
        self.num_devices, self.valid = num_devices, valid
        self.cut: Counter[str] = Counter()
        self.space_size = 0
        self._layouts: dict[tuple[int, int], Layouts | None] = {}
        self._shapes: dict[tuple[int, int, int], Shape | None] = {}

    def mesh_groups(self) -> Iterator[MeshGroup]:
        """Every mesh once, in order of pp; the counts of what is cut start anew and grow as it goes."""
        self.cut.clear()
        self.space_size = 0
        for pp, rows in self.meshes.by_pp.items():
            vpps = self._vpps(pp)
            rejected = self.meshes.rejected[pp]
            self.space_size += len(vpps) * (int(rows.num_outer.sum()) + sum(rejected.values()))
            self.cut.update({f"rule {code}": len(vpps) * count for code, count in rejected.items()})
            known = self.valid[rows.key]
            self.cut["not measured"] += len(vpps) * int(rows.num_outer[~known].sum())
            rows = rows.take(known)
            capped = capped_microbatches(rows.num_microbatches, pp)
            for value in np.unique(capped):
                shapes = [shape for vpp in vpps if (shape := self.shape(pp, vpp, int(value)))]
                here = rows.take(capped == value)
                if shapes:
                    yield MeshGroup(pp=pp, vpps=vpps, microbatches=int(value), shape=least_shape(shapes), rows=here)
                else:
                    self.cut["rule layouts"] += len(vpps) * int(here.num_outer.sum())

    def _vpps(self, pp: int) -> tuple[int, ...]:
        schedules = self.fixed.words.get("schedule", ("1f1b", "interleaved-1f1b"))
        return tuple(
            vpp
            for vpp in range(1, self.meshes.max_vpp[pp] + 1)
            if self.fixed.allows("vpp", vpp) and ("interleaved-1f1b" if vpp > 1 else "1f1b") in schedules
        )

    def core_groups(self, group: MeshGroup, index: Ints) -> Iterator[tuple[CoreGroup | None, Counter[str]]]:
        """Core rows below some meshes of a group, one vpp at a time, and outer rows that rules cut there."""
        meshes = group.rows.take(index)
        for vpp in group.vpps:
            shape = self.shape(group.pp, vpp, group.microbatches)
            if shape is None:
                yield None, Counter({"rule layouts": int(meshes.num_outer.sum())})
                continue
            rows, cut = self._legal(meshes, vpp)
            yield (CoreGroup(pp=group.pp, vpp=vpp, shape=shape, rows=rows) if len(rows) else None), cut

    def _legal(self, rows: MeshRows, vpp: int) -> tuple[MeshRows, Counter[str]]:
        """Meshes that keep the core rules for a number of virtual stages, and what the rules cut."""
        if vpp == 1:
            return rows, Counter()
        columns = {name: getattr(rows, name) for name in MeshRows.__slots__ if name != "pp"}
        keep, cut = _hold(columns, rows.pp, vpp, self.num_devices, self.facts, self.target, self.fixed)
        return rows.take(keep), Counter({f"rule {code}": count for code, count in cut.items()})

    def layouts(self, pp: int, vpp: int) -> Layouts | None:
        """The family of layouts of a (pp, vpp)."""
        if (pp, vpp) not in self._layouts:
            self._layouts[pp, vpp] = balanced_layouts(self.chain, pp, vpp, self.target.allow_empty_end_stages)
        return self._layouts[pp, vpp]

    def shape(self, pp: int, vpp: int, microbatches: int) -> Shape | None:
        """The shape facts of a (pp, vpp); ``None`` where no layout exists."""
        key = (pp, vpp, microbatches)
        if key not in self._shapes:
            layouts = self.layouts(pp, vpp)
            self._shapes[key] = None if layouts is None else make_shape(layouts, microbatches)
        return self._shapes[key]


class MeshBounder:
    """B0 of meshes and core rows, chunk by chunk; memory for the gathered entries is kept from one to the next."""

    def __init__(self, times: LayerTimes, table: LayerTable, job: JobCosts, recompute: RecomputeChoice) -> None:
        self.times, self.table, self.job, self.recompute = times, table, job, recompute
        self._buffers: Buffers = {}

    def bound(self, rows: MeshRows, shape: Shape) -> tuple[Floats, Floats]:
        """Lower bounds of time [s] and memory [bytes]. Each [row]"""
        times_parts, memory_parts = [], []
        for start in range(0, len(rows), CHUNK):
            chunk = rows.take(slice(start, start + CHUNK))
            bound = bound_rows(self.entries(chunk), shape, self.job, self.recompute)
            times_parts.append(bound.time)
            memory_parts.append(bound.memory)
        return np.concatenate(times_parts), np.concatenate(memory_parts)

    def entries(self, rows: MeshRows) -> Entries:
        """The least entries of some rows, until the next call."""
        return core_entries(rows, self.times, self.table, self.job.cluster, self.recompute, self._buffers)


def outer_candidate(rows: Any, vpp: int, num_devices: int, sequence_parallel: bool) -> Candidate:
    """Outer rows as the rules see them."""
    mesh = rows.mesh
    core = Candidate(
        num_devices=num_devices,
        pp=mesh.pp,
        vpp=vpp,
        **{name: getattr(mesh, name) for name in ("tp", "cp", "dp", "ep", "etp", "microbatch_size")},
        num_microbatches=mesh.num_microbatches,
        sequence_parallel=int(sequence_parallel),
    )
    return replace(
        core,
        cp_kind=rows.cp_kind,
        zero_stage=rows.zero_stage,
        dp_shard=rows.dp_shard,
        dp_replicate=rows.dp_replicate,
        rank_order=rows.rank_order,
    )
