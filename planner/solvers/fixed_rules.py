"""Fixed keys against the space: values that no legal candidate has are bad input, with the nearest legal one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from hardware import Cluster
from planner.graph import ModelGraph
from planner.solvers.core import CoreGroup, CoreSpace, enumerate_meshes, outer_candidate
from planner.solvers.entries import OuterRows, expand
from planner.solvers.layouts import model_chain
from planner.solvers.space import Fixed, divisors, outer_choices
from planner.targets import ModelFacts, Target, model_facts
from planner.workload import Workload

SAMPLE = 256
"""Meshes looked at in one go while a legal candidate is looked for."""


def fixed_problems(fixed: Fixed, model: ModelGraph, cluster: Cluster, workload: Workload, target: Target) -> list[str]:
    """One line per fixed key that no legal candidate can keep, or one for keys that only clash together."""
    keys = [*fixed.numbers, *fixed.at_most, *fixed.words]
    if not keys:
        return []
    checker = _Checker(model, cluster, workload, target)
    if checker.legal(fixed):
        return []
    problems = [line for key in dict.fromkeys(keys) if (line := _alone(checker, key, fixed))]
    if problems:
        return problems
    cuts = checker.cuts_of(fixed)
    reasons = (
        f"; rules that cut it: {_listed(cuts)}" if cuts else "; their product does not fit the devices and the batch"
    )
    return [f"fix {fixed.describe()}: no candidate of target {target.name} has all of these; {reasons}"]


def _alone(checker: _Checker, key: str, fixed: Fixed) -> str | None:
    """The problem of one key, all others left open; ``None`` if it has none."""
    single = Fixed(
        numbers={key: fixed.numbers[key]} if key in fixed.numbers else {},
        at_most={key: fixed.at_most[key]} if key in fixed.at_most else {},
        words={key: fixed.words[key]} if key in fixed.words else {},
    )
    if checker.legal(single):
        return None
    cuts = checker.cuts_of(single)
    text = f"fix {single.describe()}: no candidate of target {checker.target.name} has it"
    if cuts:
        text += f" (cut by {_listed(cuts)})"
    else:
        text += f" (it is no part of {checker.num_devices} devices, of the batch or of the experts)"
    legal = checker.legal_values(key)
    if legal and key in fixed.numbers:
        wanted = fixed.numbers[key][0]
        nearest = sorted(sorted(legal, key=lambda value: (abs(value - wanted), value))[:4])
        text += f"; nearest legal: {', '.join(map(str, nearest))}"
    return text


def _listed(cuts: Counter[str]) -> str:
    return ", ".join(name for name, _ in sorted(cuts.items(), key=lambda item: (-item[1], item[0])))


class _Checker:
    """Looks for legal candidates, whatever they cost."""

    def __init__(self, model: ModelGraph, cluster: Cluster, workload: Workload, target: Target) -> None:
        self.target, self.num_devices = target, cluster.num_devices
        self.facts: ModelFacts = model_facts(model, workload)
        names = tuple(dict.fromkeys(block.layer_type for block in model.blocks))
        self.chain = model_chain(model, names)

    def _space(self, fixed: Fixed) -> CoreSpace:
        meshes = enumerate_meshes(self.num_devices, self.facts, self.target, fixed)
        valid = np.ones(len(meshes.keys.tp), dtype=bool)
        return CoreSpace(meshes, self.chain, self.facts, self.target, fixed, self.num_devices, valid)

    def legal(self, fixed: Fixed) -> bool:
        """Whether any outer row keeps all rules."""
        return any(len(rows) for rows, _, _ in self._rows(fixed, Counter()))

    def cuts_of(self, fixed: Fixed) -> Counter[str]:
        """Outer rows that each rule cuts."""
        cuts: Counter[str] = Counter()
        for _ in self._rows(fixed, cuts):
            pass
        return cuts

    def _rows(self, fixed: Fixed, cuts: Counter[str]) -> Iterator[tuple[OuterRows, CoreGroup, Fixed]]:
        space = self._space(fixed)
        for group in space.mesh_groups():
            for start in range(0, len(group.rows), SAMPLE):
                index = np.arange(start, min(start + SAMPLE, len(group.rows)))
                for core, cut in space.core_groups(group, index):
                    cuts.update(cut)
                    if core is not None:
                        yield self._legal_rows(core, fixed, cuts), core, fixed
        cuts.update(space.cut)
        for name in [name for name, size in cuts.items() if not size]:
            del cuts[name]

    def _legal_rows(self, core: CoreGroup, fixed: Fixed, cuts: Counter[str]) -> OuterRows:
        mesh = core.rows
        choices = [outer_choices(int(dp), int(cp), core.pp, fixed) for dp, cp in zip(mesh.dp, mesh.cp, strict=True)]
        rows, _ = expand(mesh, choices)
        keep = np.ones(len(rows), dtype=bool)
        candidate = outer_candidate(rows, core.vpp, self.num_devices, fixed.sequence_parallel)
        for code, holds in self.target.masks(candidate, self.facts, "outer"):
            cuts[f"rule {code}"] += int((keep & ~holds).sum())
            keep &= holds
        return rows.take(keep)

    def legal_values(self, key: str) -> tuple[int, ...]:
        """Values of a key among meshes that keep the core rules, nothing fixed."""
        meshes = enumerate_meshes(self.num_devices, self.facts, self.target, Fixed(numbers={}, at_most={}, words={}))
        rows = [rows for rows in meshes.by_pp.values() if len(rows)]
        if key in ("tp", "cp", "dp", "ep", "etp", "microbatch_size"):
            return tuple(sorted({int(value) for part in rows for value in np.unique(getattr(part, key))}))
        if key == "pp":
            return tuple(part.pp for part in rows)
        if key == "vpp":
            return tuple(range(1, max(meshes.max_vpp.values(), default=0) + 1))
        if key in ("dp_shard", "dp_replicate"):
            degrees = {int(value) for part in rows for value in np.unique(part.dp)}
            return tuple(sorted({divisor for degree in degrees for divisor in divisors(degree)}))
        return ()
