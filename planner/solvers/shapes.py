"""Facts of a pipeline shape (pp, vpp, microbatches in flight) that bounds need, least over a family of layouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.order import compile_order, in_flight_counts
from planner.schedule import ScheduleName
from planner.solvers.layouts import Layouts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PERIODS_IN_FLIGHT = 4
"""Groups of pp microbatches after which the set of in-flight counts no longer grows."""


def capped_microbatches(num_microbatches: Ints, pp: int) -> Ints:
    """The number of microbatches as far as it decides what is in flight after the warm-up."""
    return np.minimum(num_microbatches, 2 * pp)


def schedule_name(vpp: int) -> ScheduleName:
    """The schedule family of a number of virtual stages per rank."""
    return ScheduleName.INTERLEAVED_ONE_F_ONE_B if vpp > 1 else ScheduleName.ONE_F_ONE_B


def in_flight(pp: int, vpp: int, num_microbatches: int) -> list[Ints]:
    """For each rank, the Pareto-largest counts of microbatches in flight by local chunk. rank -> [vector, chunk]"""
    if vpp == 1:
        return [np.array([[min(num_microbatches, pp - rank)]], dtype=np.int64) for rank in range(pp)]
    capped = min(num_microbatches, PERIODS_IN_FLIGHT * pp)
    return [np.asarray(rows) for rows in in_flight_counts(compile_order(schedule_name(vpp), pp, vpp, capped))]


def warm_up_counts(rank: int, pp: int, vpp: int, num_microbatches: int) -> Ints:
    """Microbatches in flight by local chunk when a rank ends the first forward after its warm-up. [chunk]

    One moment of the schedule, in closed form: forwards come in groups of pp microbatches per chunk.
    """
    warm_up = pp - 1 - rank if vpp == 1 else 2 * (pp - rank - 1) + (vpp - 1) * pp
    forwards = min(warm_up + 1, num_microbatches * vpp)
    if vpp == 1:
        return np.array([forwards], dtype=np.int64)
    full, rest = divmod(forwards, pp * vpp)
    return full * pp + np.clip(rest - pp * np.arange(vpp), 0, pp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a bound knows of every layout of a family before one is chosen, on some representative ranks."""

    layouts: Layouts
    ranks: tuple[int, ...]
    """Ranks that the bound looks at."""
    counts: Floats
    """Least layers by type on each of these ranks. [rank, type]"""
    fill: Floats
    """Least layers by type on the stages before the rank's first one. [rank, type]"""
    last_backward: Floats
    """Most layers by type on the first stage, whose backward ends the schedule and hides a reduction. [type]"""
    held: Floats
    """Least layer-microbatches in flight by type at one moment. [rank, type]"""
    body: NDArray[np.bool_]
    """Types whose layers may recompute: all but embedding and head. [type]"""
    most_in_flight: Floats
    """Most microbatches in flight of any chunk at that moment. [rank]"""


def make_shape(layouts: Layouts, num_microbatches: int) -> Shape:
    """The shape facts of a family for a number of microbatches."""
    pp, vpp = layouts.pp, layouts.vpp
    ranks = tuple(sorted({0, min(1, pp - 1), max(pp - 2, 0), pp - 1}))
    per_rank = layouts.rank_counts()
    stages = layouts.counts
    held, most = [], []
    for rank in ranks:
        flying = warm_up_counts(rank, pp, vpp, num_microbatches)
        held.append(np.tensordot(flying, stages[:, rank::pp, :], axes=([0], [1])).min(axis=0))
        most.append(flying.max())
    fill = np.concatenate([np.zeros_like(stages[:, :1]), np.cumsum(stages[:, :pp], axis=1)], axis=1)
    return Shape(
        layouts=layouts,
        ranks=ranks,
        counts=per_rank[:, list(ranks)].min(axis=0).astype(np.float64),
        fill=fill[:, list(ranks)].min(axis=0).astype(np.float64),
        last_backward=stages[:, 0].max(axis=0).astype(np.float64),
        held=np.asarray(held, dtype=np.float64),
        body=np.isin(np.arange(layouts.chain.num_types), layouts.chain.types),
        most_in_flight=np.asarray(most, dtype=np.float64),
    )


def least_shape(shapes: Sequence[Shape]) -> Shape:
    """Shape facts of a pp while vpp is open: the least of each (the most in flight)."""
    first = shapes[0]
    return Shape(
        layouts=first.layouts,
        ranks=first.ranks,
        counts=np.minimum.reduce([shape.counts for shape in shapes]),
        fill=np.minimum.reduce([shape.fill for shape in shapes]),
        last_backward=np.maximum.reduce([shape.last_backward for shape in shapes]),
        held=np.minimum.reduce([shape.held for shape in shapes]),
        body=first.body,
        most_in_flight=np.maximum.reduce([shape.most_in_flight for shape in shapes]),
    )
