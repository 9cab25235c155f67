"""B0 and B1: a lower bound of the step time of core or outer rows, with time and memory coupled.

The bound looks at a few pipeline ranks. On each it takes the least layers any layout gives the rank, the recomputation
that its memory then forces at least, and a path of the schedule through it: fill to the rank's first stage, all its
work, drain back to the first rank. Whether B0 or B1 comes out depends on the entries alone: least ones over open
choices for core rows, chosen ones for outer rows.
"""

from __future__ import annotations

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
from planner.solvers.shapes import Shape
from planner.solvers.space import RecomputeChoice
from planner.strategy import Recompute

Floats = NDArray[np.float64]

SAFETY = 1 - 1e-12
"""Taken off bounds: they are summed in another order than estimates, and rounding must not lift one over the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Lower bounds of a batch of rows. Each [row]."""

    time: Floats
    """No layout and recomputation of the row is faster; infinite where none fits [s]."""
    memory: Floats
    """No layout and recomputation of the row needs less on its fullest rank [bytes]."""


def bound_rows(entries: Entries, shape: Shape, job: JobCosts, recompute: RecomputeChoice) -> Bound:
    """The bound of each row over all layouts of the shape and the kinds of recomputation."""
    times = compose(entries, job)
    both = times.forward + times.backward
    dense, expert = shape.counts @ entries.dense_parameters, _experts(shape.counts, entries)
    if shape.layouts.pp == 1:
        dense = dense - entries.shared_parameters
    static = _static_bytes(dense, expert, entries, shape, job)
    added, memory = _forced_recompute(entries, shape, job, recompute, static)
    path = shape.fill @ both
    if shape.layouts.pp > 1:
        path += (2 * np.asarray(shape.ranks, dtype=np.float64))[:, None] * entries.link_time[:-1].min(axis=0)
    path += entries.num_microbatches * (shape.counts @ both + added)
    tails = rank_tails(dense, expert, entries, job, whole=False)
    if not entries.open:
        path += _exposed(entries, tails, shape.last_backward @ times.backward, added, job)
    total = path.max(axis=0) + tails.update.max(axis=0)
    return Bound(time=np.asarray(total * SAFETY), memory=memory)


def _exposed(entries: Entries, tails: RankTails, last_backward: Floats, added: Floats, job: JobCosts) -> Floats:
    """Reduction that the first rank's last backward does not hide, at the end of each looked-at path. [rank, row]

    The longest backward over the layouts hides most. Recomputation makes it longer still: the path that counts the
    first rank's recomputation counts that too; every other path drains through this backward once, so that what
    recomputation adds there is at least what it hides.
    """
    window = np.repeat(last_backward[None, :], len(added), axis=0)
    window[0] += added[0]
    return np.asarray(exposed_reduction(tails.reduction[0] + entries.shared_time, window, job))


def _experts(counts: Floats, entries: Entries) -> Any:
    """Expert weights of each looked-at rank: 0 for a model without experts. [rank, row]"""
    return counts @ entries.expert_parameters if entries.expert_parameters.any() else 0.0


def _largest_present(counts: Floats, values: Floats) -> Floats:
    """Largest value over the types that each looked-at rank holds. [rank, row]"""
    largest: dict[bytes, Floats] = {}  # most ranks hold the same types
    present = counts > 0
    for types in present:
        if types.tobytes() not in largest:
            largest[types.tobytes()] = values[types].max(axis=0, initial=0.0)
    return np.stack([largest[types.tobytes()] for types in present])


def _static_bytes(dense: Any, expert: Any, entries: Entries, shape: Shape, job: JobCosts) -> Floats:
    """States, gathered weights and runtime of each looked-at rank. [rank, row] [bytes]"""
    states = rank_states(dense, expert, entries, job, whole=False)
    total = states[0].total + states[1].total
    total += job.runtime
    if not entries.open and np.any(entries.zero_stage >= 2):
        layer_dense = _largest_present(shape.counts, entries.dense_parameters)
        layer_expert = _largest_present(shape.counts, entries.expert_parameters)
        total += gathered_bytes(layer_dense, layer_expert, entries, job)
    return np.asarray(total)


def _forced_recompute(
    entries: Entries, shape: Shape, job: JobCosts, recompute: RecomputeChoice, static: Floats
) -> tuple[Floats, Floats]:
    """Least recomputation time per microbatch that memory forces on each rank, and the least memory of the row.

    A layer that recomputes frees at most ``in flight x (saved without - saved with)`` and adds its recompute time, so
    freeing `need` bytes adds at least ``need x min over types of time / bytes freed``. A rank that recomputes needs its
    kind's working memory; where the entries do not tell it, the least is that without recomputation.
    """
    need = shape.held @ entries.saved[Kind.NONE]
    need += static
    need += _largest_present(shape.counts, entries.transient[Kind.NONE])
    memory = need if Recompute.NONE in recompute.kinds else np.full(need.shape, np.inf)
    over = np.maximum(0.0, need - job.budget)
    binds = over > 0
    added = np.where(binds, np.inf, 0.0) if Recompute.NONE in recompute.kinds else np.full(need.shape, np.inf)
    over /= shape.most_in_flight[:, None]
    for kind in (Kind.SELECTIVE, Kind.FULL):
        if Recompute[kind.name] not in recompute.kinds:
            continue
        working = entries.transient[kind if len(entries.transient) > 1 else Kind.NONE]
        least = shape.held @ np.minimum(entries.saved[kind], entries.saved[Kind.NONE])
        least += static
        least += _largest_present(shape.counts, working)
        if recompute.partial:
            with np.errstate(invalid="ignore"):
                time = over * entries.price[kind]
            np.copyto(time, 0.0, where=~binds)
        else:
            time = shape.counts[:, shape.body] @ entries.recompute[kind][shape.body]
        fails = least > job.budget
        np.copyto(time, np.inf, where=fails & binds if recompute.partial else fails)
        np.minimum(added, time, out=added)
        memory = np.minimum(memory, least)
    return added, np.asarray(memory.max(axis=0))
