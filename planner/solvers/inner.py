"""B2: the inner problem of outer rows: layouts, recomputed layers per stage, and memory.

For a given layout each rank takes the least number of recomputed layers that fits its memory: in a fixed order of
actions the makespan is non-decreasing in every duration, so no other choice of that kind is faster. With virtual
stages the first n layers of each chunk of a rank recompute, one n per rank (for all ranks under a uniform target).
Arrays have the candidate as their last axis: one per outer row and layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.cost import (
    Entries,
    JobCosts,
    RankTails,
    compose,
    exposed_reduction,
    gathered_bytes,
    rank_states,
    rank_tails,
)
from planner.layer_costs import Kind
from planner.solvers.bounds import SAFETY
from planner.solvers.layouts import Layouts
from planner.solvers.space import RecomputeChoice
from planner.strategy import Recompute

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

KINDS = {Recompute.NONE: Kind.NONE, Recompute.SELECTIVE: Kind.SELECTIVE, Recompute.FULL: Kind.FULL}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Memory of every rank, whole numbers in floats. Each [rank, candidate] [bytes]."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    gathered: Floats
    activations: Floats
    transient: Floats
    runtime: int

    @property
    def total(self) -> Floats:
        """Sum of the terms."""
        static = self.weights + self.gradients + self.optimizer + self.gathered + self.runtime
        return np.asarray(static + self.activations + self.transient)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlans:
    """Complete candidates of one (pp, vpp, microbatches): stage contents, recomputation and durations."""

    row: Ints
    """Outer row of each. [candidate]"""
    layout: Ints
    """Layout of each. [candidate]"""
    kind: Ints
    """Kind of recomputation (``Kind``). [candidate]"""
    recompute_layers: Ints
    """Recomputed layers of each virtual stage. [stage, candidate]"""
    forward: Floats
    """[stage, candidate] [s]"""
    backward: Floats
    """Recomputation included. [stage, candidate] [s]"""
    reduction: Floats
    """Gradient reduction of each rank, before overlap. [rank, candidate] [s]"""
    update: Floats
    """Optimizer step and weight gather of the slowest rank. [candidate] [s]"""
    link_time: Floats
    """Message from a pipeline rank to the next. [rank, candidate] [s]"""

    def __len__(self) -> int:
        return len(self.row)

    def take(self, index: Ints | slice | Bools) -> StagePlans:
        """Some of the candidates."""
        return StagePlans(**{name: getattr(self, name)[..., index] for name in self.__slots__})


def join_plans(parts: Sequence[StagePlans]) -> StagePlans:
    """Candidates of several parts behind one another."""
    names = StagePlans.__slots__
    return StagePlans(**{name: np.concatenate([getattr(part, name) for part in parts], axis=-1) for name in names})


class InnerProblem:
    """Pairs of an outer row and a layout, all of one (pp, vpp, number of microbatches)."""

    def __init__(
        self, entries: Entries, layouts: Layouts, in_flight: Sequence[Ints], job: JobCosts, row: Ints, layout: Ints
    ) -> None:
        """`entries` of all outer rows; `row` and `layout` say which pairs to look at. [candidate]"""
        self.entries, self.layouts, self.in_flight, self.job = entries.take(row), layouts, in_flight, job
        self.row, self.layout = row, layout
        self.counts = layouts.counts[layout]  # [candidate, stage, type]
        shape = (len(row), layouts.vpp, layouts.pp, self.counts.shape[2])
        self.rank_counts = self.counts.reshape(shape).sum(axis=1)  # [candidate, rank, type]
        self.times = compose(self.entries, job)
        self.forward = self._per_stage(self.times.forward)
        self.backward = self._per_stage(self.times.backward)
        self.dense = self._per_rank(self.entries.dense_parameters)
        self.expert = self._per_rank(self.entries.expert_parameters)
        if layouts.pp == 1:
            self.dense = self.dense - self.entries.shared_parameters

    def __len__(self) -> int:
        return len(self.row)

    def _per_stage(self, values: Any) -> Any:
        """Sum over the layers of each stage. [type, candidate] -> [stage, candidate]"""
        return np.einsum("kst,tk->sk", self.counts, values)

    def _per_rank(self, values: Any) -> Any:
        """Sum over the layers of each rank. [type, candidate] -> [rank, candidate]"""
        return np.einsum("krt,tk->rk", self.rank_counts, values)

    def _largest(self, values: Floats) -> Floats:
        """Largest over the layer types of each rank. [type, candidate] -> [rank, candidate]"""
        present = np.moveaxis(self.rank_counts > 0, 0, -1)  # [rank, type, candidate]
        return np.asarray((present * values).max(axis=1))

    def tails(self) -> RankTails:
        """End of the step on each rank. [rank, candidate]"""
        return rank_tails(self.dense, self.expert, self.entries, self.job)

    def memory(self, kind: Kind, num_layers: Ints) -> RankMemory:
        """Memory if the first `num_layers` of each stage recompute. [stage, candidate]"""
        dense, expert = rank_states(self.dense, self.expert, self.entries, self.job)
        layer_dense, layer_expert = (
            self._largest(values) for values in (self.entries.dense_parameters, self.entries.expert_parameters)
        )
        recomputes = num_layers.reshape(self.layouts.vpp, self.layouts.pp, -1).max(axis=0) > 0
        plain = self._largest(self.entries.transient[Kind.NONE])
        gathered = gathered_bytes(layer_dense, layer_expert, self.entries, self.job)
        return RankMemory(
            weights=dense.weights + expert.weights,
            gradients=dense.gradients + expert.gradients,
            optimizer=dense.optimizer + expert.optimizer,
            gathered=gathered + np.zeros_like(plain),
            activations=self._activations(kind, num_layers),
            transient=np.where(recomputes, self._largest(self.entries.transient[kind]), plain),
            runtime=self.job.runtime,
        )

    def first_layers(self, num_layers: Ints) -> Ints:
        """Types of the first layers of each stage. [stage, candidate] -> [candidate, stage, type]"""
        return self.layouts.first_layers(num_layers.T, self.layout)

    def _activations(self, kind: Kind, num_layers: Ints) -> Floats:
        saved = self._per_stage(self.entries.saved[Kind.NONE])
        if num_layers.any():
            freed = self.entries.saved[Kind.NONE] - self.entries.saved[kind]
            saved = saved - np.einsum("kst,tk->sk", self.first_layers(num_layers), freed)
        pp = self.layouts.pp
        peaks = [(self.in_flight[rank] @ saved[rank::pp]).max(axis=0) for rank in range(pp)]
        return np.asarray(peaks)

    def take(self, index: Bools | Ints) -> InnerProblem:
        """Some of the pairs."""
        part = object.__new__(InnerProblem)
        part.layouts, part.in_flight, part.job = self.layouts, self.in_flight, self.job
        part.entries, part.row, part.layout = self.entries.take(index), self.row[index], self.layout[index]
        part.counts, part.rank_counts = self.counts[index], self.rank_counts[index]
        part.times = self.times.take(index)
        for name in ("forward", "backward", "dense", "expert"):
            setattr(part, name, getattr(self, name)[:, index])
        return part

    def spread(self, per_rank: Ints) -> Ints:
        """Per-rank counts for each stage, at most its layers. [rank, candidate] -> [stage, candidate]"""
        return np.minimum(np.tile(per_rank, (self.layouts.vpp, 1)), self.layouts.layers[self.layout].T)

    def plans(self, kind: Kind, num_layers: Ints) -> StagePlans:
        """All pairs as complete candidates with so many recomputed layers per stage. [stage, candidate]"""
        again = np.zeros_like(self.forward)
        if num_layers.any():
            again = np.einsum("kst,tk->sk", self.first_layers(num_layers), self.entries.recompute[kind])
        tails = self.tails()
        reduction = np.array(tails.reduction)
        if self.layouts.pp > 1:
            reduction[0] += self.entries.shared_time
            reduction[-1] += self.entries.shared_time
        return StagePlans(
            row=self.row,
            layout=self.layout,
            kind=np.full(len(self), int(kind)),
            recompute_layers=num_layers,
            forward=self.forward,
            backward=self.backward + again,
            reduction=reduction,
            update=tails.update.max(axis=0),
            link_time=self.entries.link_time,
        )

    def no_layers(self) -> Ints:
        """No recomputed layer in any stage. [stage, candidate]"""
        return np.zeros((self.layouts.pp * self.layouts.vpp, len(self)), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """What is left of some pairs of outer row and layout."""

    plans: StagePlans
    """Complete candidates that fit."""
    least_need: float
    """Least memory of the fullest rank over pairs and kinds that were looked at [bytes]."""


def solve_pairs(problem: InnerProblem, choice: RecomputeChoice) -> Solved:
    """For each pair and open kind of recomputation, the least recomputation that fits every rank."""
    parts: list[StagePlans] = []
    least_need = np.inf
    rest = problem
    for recompute in choice.kinds:
        if not len(rest):
            break
        kind = KINDS[recompute]
        fits, layers, need = _least_recompute(rest, kind, choice)
        least_need = min(least_need, float(need.min()))
        if fits.any():
            chosen = rest.take(fits)
            parts.append(chosen.plans(kind, layers[:, fits]))
        if kind is Kind.NONE:
            rest = rest.take(~fits)  # recomputing what fits without gains nothing
    empty = problem.take(np.zeros(0, dtype=np.int64))
    parts = parts or [empty.plans(Kind.NONE, empty.no_layers())]
    return Solved(plans=join_plans(parts), least_need=least_need)


def _least_recompute(problem: InnerProblem, kind: Kind, choice: RecomputeChoice) -> tuple[Bools, Ints, Floats]:
    """Which pairs fit, their least recomputed layers per stage, and their least need. [.., candidate]

    Memory falls as more layers recompute, but for the working memory of the first one: counts 0 and 1 are looked at,
    then the rest is bisected.
    """
    budget, pp = problem.job.budget, problem.layouts.pp
    longest = int(problem.layouts.layers[problem.layout].max())
    shape = (pp, len(problem))

    def totals(per_rank: Ints) -> Floats:
        return problem.memory(kind, problem.spread(per_rank)).total

    if kind is Kind.NONE or not choice.partial or (choice.uniform and kind is Kind.SELECTIVE):
        count = np.full(shape, 0 if kind is Kind.NONE else longest)
        need = totals(count)
        return np.asarray((need <= budget).all(axis=0)), problem.spread(count), np.asarray(need.max(axis=0))
    most = np.full(shape, longest)
    need = totals(most)
    fits = (need <= budget).all(axis=0)
    none = totals(np.zeros(shape, dtype=np.int64)) <= budget
    low, high = np.ones(shape, dtype=np.int64), most
    while (low < high).any():
        middle = (low + high) // 2
        enough = totals(middle) <= budget
        if choice.uniform:
            enough = np.broadcast_to(enough.all(axis=0), shape)
        low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
    plain_allowed = Recompute.NONE in choice.kinds and not choice.uniform
    least = np.where(none, 0, high) if plain_allowed else high
    fits |= (totals(least) <= budget).all(axis=0)
    return np.asarray(fits), problem.spread(least), np.asarray(need.max(axis=0))


def chain_bounds(plans: StagePlans, num_microbatches: int, pp: int, vpp: int, job: JobCosts) -> Floats:
    """Lower bound of the step time of each candidate from the path through each rank. [candidate] [s]

    Fill to the rank's first stage, all microbatches of the rank, drain to the first rank.
    """
    both = plans.forward + plans.backward
    per_rank = both.reshape(vpp, pp, -1).sum(axis=0)
    fill = np.cumsum(both[:pp], axis=0) - both[:pp]
    hops = np.zeros_like(per_rank)
    hops[1:] = 2 * np.cumsum(plans.link_time[: pp - 1], axis=0)
    path = fill + hops + num_microbatches * per_rank
    drained = path.max(axis=0) + exposed_reduction(plans.reduction[0], plans.backward[0], job)
    drain = np.cumsum(plans.backward[:pp], axis=0) - plans.backward[:pp] + hops / 2
    at_rank = path - drain + exposed_reduction(plans.reduction, plans.backward[:pp], job)
    return np.asarray((np.maximum(drained, at_rank.max(axis=0)) + plans.update) * SAFETY)
