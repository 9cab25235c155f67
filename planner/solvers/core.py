"""Core rows of the space: enumerated, held against the target's core rules, and bounded by B0 in chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import JobCosts, LayerTimes
from planner.solvers.bounds import RecomputeChoice, bound_rows
from planner.solvers.entries import core_entries
from planner.solvers.layouts import Chain, Layouts, balanced_layouts
from planner.solvers.shapes import Shape, capped_microbatches, make_shape
from planner.solvers.space import Fixed, MeshRows, collect_keys, count_outer, divisors, mesh_rows
from planner.tables import Keys, LayerTable
from planner.targets import Candidate, ModelFacts, Target

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CHUNK = 65_536
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
            **columns,
        )
        for pp, columns in raw.items()
    }
    return Meshes(by_pp=by_pp, keys=keys, rejected=rejected, max_vpp=max_vpp)


def _hold(
    columns: dict[str, Ints], pp: int, vpp: int, num_devices: int, facts: ModelFacts, target: Target, fixed: Fixed
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
class CoreGroup:
    """Core rows of one (pp, vpp) that share shape facts."""

    pp: int
    vpp: int
    shape: Shape
    rows: MeshRows


class CoreSpace:
    """Core rows group by group, with the counts of what rules cut."""

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

    def groups(self) -> Iterator[CoreGroup]:
        """Every group once, in order of pp and vpp; counts grow as it goes."""
        for pp, rows in self.meshes.by_pp.items():
            for vpp in self._vpps(pp):
                size = int(rows.num_outer.sum())
                rejected = self.meshes.rejected[pp]
                self.space_size += size + sum(rejected.values())
                self.cut.update({f"rule {code}": count for code, count in rejected.items()})
                kept = self._legal(rows, vpp)
                layouts = self.layouts(pp, vpp)
                if layouts is None:
                    self._count("rule layouts", kept.num_outer)
                    continue
                if len(kept):
                    yield from self._by_shape(pp, vpp, layouts, kept)

    def _vpps(self, pp: int) -> list[int]:
        schedules = self.fixed.words.get("schedule", ("1f1b", "interleaved-1f1b"))
        return [
            vpp
            for vpp in range(1, self.meshes.max_vpp[pp] + 1)
            if self.fixed.allows("vpp", vpp) and ("interleaved-1f1b" if vpp > 1 else "1f1b") in schedules
        ]

    def _legal(self, rows: MeshRows, vpp: int) -> MeshRows:
        """Rows that have measured or analytic costs and keep the core rules for a number of virtual stages."""
        known = self.valid[rows.key]
        self._count("not measured", rows.num_outer[~known])
        rows = rows.take(known)
        if vpp == 1 or not len(rows):
            return rows
        columns = {name: getattr(rows, name) for name in MeshRows.__slots__ if name != "pp"}
        keep, cut = _hold(columns, rows.pp, vpp, self.num_devices, self.facts, self.target, self.fixed)
        self.cut.update({f"rule {code}": count for code, count in cut.items()})
        return rows.take(keep)

    def _count(self, name: str, num_outer: Ints) -> None:
        if num_outer.size:
            self.cut[name] += int(num_outer.sum())

    def layouts(self, pp: int, vpp: int) -> Layouts | None:
        """The family of layouts of a (pp, vpp)."""
        if (pp, vpp) not in self._layouts:
            self._layouts[pp, vpp] = balanced_layouts(self.chain, pp, vpp, self.target.allow_empty_end_stages)
        return self._layouts[pp, vpp]

    def _by_shape(self, pp: int, vpp: int, layouts: Layouts, rows: MeshRows) -> Iterator[CoreGroup]:
        capped = capped_microbatches(rows.num_microbatches, pp)
        for value in np.unique(capped):
            yield CoreGroup(
                pp=pp, vpp=vpp, shape=make_shape(layouts, int(value)), rows=rows.take(capped == value)
            )


def bound_core(
    group: CoreGroup, times: LayerTimes, table: LayerTable, job: JobCosts, recompute: RecomputeChoice
) -> tuple[Floats, Floats]:
    """B0 of a group's rows, chunk by chunk: lower bounds of time [s] and memory [bytes]. Each [row]"""
    times_parts, memory_parts = [], []
    for start in range(0, len(group.rows), CHUNK):
        chunk = group.rows.take(slice(start, start + CHUNK))
        entries = core_entries(chunk, times, table, job.cluster)
        bound = bound_rows(entries, group.shape, job, recompute)
        times_parts.append(bound.time)
        memory_parts.append(bound.memory)
    return np.concatenate(times_parts), np.concatenate(memory_parts)


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
        dp_replicate=mesh.dp // rows.dp_shard,
        rank_order=rows.rank_order,
    )
