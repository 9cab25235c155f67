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

from planner.cost import Entries, JobCosts, compose, exposed_reduction, gathered_bytes, rank_states, rank_tails
from planner.solvers.shapes import Shape
from planner.strategy import Recompute
from planner.tables import Kind

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SAFETY = 1 - 1e-12
"""Taken off bounds: they are summed in another order than estimates, and rounding must not lift one over the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeChoice:
    """Which recomputation is open."""

    kinds: tuple[Recompute, ...]
    """Kinds that may be used."""
    partial: bool
    """Whether only some layers of a stage may recompute; false where the user fixed the kind."""
    uniform: bool
    """Whether all stages recompute the same number of layers, and selective means all layers (a target's rule)."""


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
    num_rows = both.shape[1]
    layer_time = shape.counts @ both  # [rank, row]
    fill_time = shape.fill @ both
    dense = (shape.counts @ entries.dense_parameters).astype(np.int64)
    expert = (shape.counts @ entries.expert_parameters).astype(np.int64)
    if shape.layouts.pp == 1:
        dense = dense - entries.shared_parameters
    static = _static_bytes(dense, expert, entries, shape, job)
    added, memory = _forced_recompute(entries, shape, job, recompute, static)
    tails = rank_tails(dense, expert, entries, job)
    least_link = entries.link_time[:-1].min(axis=0) if shape.layouts.pp > 1 else np.zeros(num_rows)
    hops = np.asarray(shape.ranks, dtype=np.float64)[:, None]
    path = fill_time + 2 * hops * least_link + entries.num_microbatches * (layer_time + added)
    first_backward = shape.first_counts[0] @ times.backward
    reduction = tails.reduction[0] + entries.shared_time
    drained = path.max(axis=0) + exposed_reduction(reduction, first_backward, job)
    total = drained + tails.update.max(axis=0)
    return Bound(time=np.asarray(total * SAFETY), memory=memory)


def _static_bytes(dense: Any, expert: Any, entries: Entries, shape: Shape, job: JobCosts) -> Floats:
    """States, gathered weights and runtime of each looked-at rank. [rank, row] [bytes]"""
    states = rank_states(dense, expert, entries, job)
    total = states[0].total + states[1].total + job.runtime
    present = (shape.counts > 0)[:, :, None]
    layer_dense = (present * entries.dense_parameters).max(axis=1)
    layer_expert = (present * entries.expert_parameters).max(axis=1)
    return np.asarray(total + gathered_bytes(layer_dense, layer_expert, entries, job), dtype=np.float64)


def _forced_recompute(
    entries: Entries, shape: Shape, job: JobCosts, recompute: RecomputeChoice, static: Floats
) -> tuple[Floats, Floats]:
    """Least recomputation time per microbatch that memory forces on each rank, and the least memory of the row.

    A layer that recomputes frees at most ``in flight x (saved without - saved with)`` and adds its recompute time, so
    freeing `need` bytes adds at least ``need x min over types of time / bytes freed``.
    """
    body = shape.body[:, None]
    present = (shape.counts > 0)[:, :, None]
    plain = static + shape.held @ entries.saved[Kind.NONE] + (present * entries.transient[Kind.NONE]).max(axis=1)
    need = np.maximum(0.0, plain - job.budget)
    added = np.where(need > 0, np.inf, 0.0) if Recompute.NONE in recompute.kinds else np.full(need.shape, np.inf)
    memory = plain if Recompute.NONE in recompute.kinds else np.full(need.shape, np.inf)
    for kind in (Kind.SELECTIVE, Kind.FULL):
        if Recompute[kind.name] not in recompute.kinds:
            continue
        saved = np.where(body, np.minimum(entries.saved[kind], entries.saved[Kind.NONE]), entries.saved[Kind.NONE])
        least = static + shape.held @ saved
        if recompute.partial:
            freed = np.where(body, entries.saved[Kind.NONE] - saved, 0).astype(np.float64)
            with np.errstate(divide="ignore", invalid="ignore"):
                price = np.where(freed > 0, entries.recompute[kind] / freed, np.inf).min(axis=0)  # [row]
                time = np.where(need > 0, need * price / shape.most_in_flight[:, None], 0.0)
        else:
            time = shape.counts @ np.where(body, entries.recompute[kind], 0.0)
        added = np.minimum(added, np.where(least > job.budget, np.inf, time))
        memory = np.minimum(memory, least)
    return added, np.asarray(memory.max(axis=0))
