"""Paths through a schedule's graph as counts: exact where they are longest, a lower bound everywhere else.

A path's length is (how often each forward, backward and link delay lies on it) times (durations), and any path to the
last action of a rank is a lower bound of that rank's finish, whatever the durations. So a critical path found for one
plan bounds all plans of the same schedule shape by a dot product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.order import Order
from planner.schedule import ScheduleName, check_shape
from planner.simulator import Timeline, simulate

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathCounts:
    """How often each duration lies on a path that ends with the last action of a rank."""

    forward: Ints
    """``[V]``"""
    backward: Ints
    """``[V]``"""
    link_forward: Ints
    """``[V - 1]``"""
    link_backward: Ints
    """``[V - 1]``"""
    end_rank: int

    @property
    def counts(self) -> Ints:
        """All counts in the order of `stack_durations`, ``[4 V - 2]``."""
        return np.concatenate([self.forward, self.backward, self.link_forward, self.link_backward])


class PathTable(NamedTuple):
    """Several paths of one schedule shape: ``counts @ stack_durations(...)`` bounds the finish of ``end_rank``."""

    counts: Ints
    """``[path, 4 V - 2]``"""
    end_rank: Ints
    """``[path]``"""


def stack_durations(
    forward: ArrayLike, backward: ArrayLike, link_forward: ArrayLike, link_backward: ArrayLike
) -> NDArray[np.int64] | NDArray[np.float64]:
    """Durations in the order of a path's counts, ``[..., 4 V - 2]``."""
    parts = [np.asarray(part) for part in (forward, backward, link_forward, link_backward)]
    return np.concatenate([part for part in parts if part.shape[-1]], axis=-1)


def critical_path(
    order: Order,
    forward: ArrayLike,
    backward: ArrayLike,
    link_forward: ArrayLike,
    link_backward: ArrayLike,
    *,
    end_rank: int | None = None,
    tail: ArrayLike | None = None,
) -> PathCounts:
    """The longest path to the last action of a rank.

    Parameters
    ----------
    order, forward, backward, link_forward, link_backward
        As of `planner.simulator.simulate`.
    end_rank
        The rank; by default the first of those with the largest ``rank_finish + tail``.
    tail
        What each rank does afterwards, ``[num_ranks]`` [ticks]; default 0.

    Returns
    -------
    PathCounts
        Its counts times these durations are the rank's finish; times any others, at most the rank's finish. Between
        equally long paths, the one that stays on its rank is taken.
    """
    timeline = simulate(order, forward, backward, link_forward, link_backward, every_action=True)
    if end_rank is None:
        end_rank = int(np.argmax(timeline.rank_finish + (0 if tail is None else np.asarray(tail))))
    elif tail is not None:
        raise ValueError("give end_rank or tail, not both")
    return path_to_rank(timeline, end_rank)


def path_to_rank(timeline: Timeline, end_rank: int) -> PathCounts:
    """The longest path to the last action of a rank, followed back through a timeline."""
    order, end = timeline.order, timeline.end
    stays = end[order.before] >= end[order.source] + timeline.table[1, order.key]
    stays &= order.before > 0
    parents = np.where(stays, order.before, order.source).tolist()
    position = int(order.last[end_rank])
    path = []
    while position:
        path.append(position)
        position = parents[position]
    actions = np.array(path)
    messages = actions[~stays[actions] & (order.source[actions] > 0)]
    num_stages = order.num_stages
    counts = np.bincount(order.key[actions], minlength=2 * num_stages)
    links = np.bincount(order.key[messages], minlength=2 * num_stages)
    return PathCounts(
        forward=counts[:num_stages],
        backward=counts[num_stages:],
        link_forward=links[1:num_stages],
        link_backward=links[num_stages:-1],
        end_rank=end_rank,
    )


def chain_paths(name: ScheduleName, num_ranks: int, num_chunks: int, num_microbatches: int) -> PathTable:
    """Paths in closed form: fill the pipeline down to rank r, do all of its actions, and drain it or not.

    Returns
    -------
    PathTable
        Path r ends on rank r (not drained), path p + r on rank 0 (drained): 2 p paths, of which 0 and p are equal.

    Notes
    -----
    In both schedules, a rank begins with the forward of its first stage and ends with the backward of it. Before lie
    one forward and one delay of each stage above, behind one backward and one delay of each.
    """
    check_shape(name, num_ranks, num_chunks, num_microbatches)
    num_stages = num_ranks * num_chunks
    rank, stage = np.arange(num_ranks)[:, None], np.arange(num_stages)
    own = num_microbatches * (stage % num_ranks == rank)
    above = (stage < rank).astype(np.int64)
    none = np.zeros_like(above)
    links, no_links = above[:, :-1], none[:, :-1]
    counts = np.concatenate(
        [
            np.concatenate([own + above, own, links, no_links], axis=1),
            np.concatenate([own + above, own + above, links, links], axis=1),
        ]
    )
    return PathTable(counts, np.concatenate([rank[:, 0], none[:, 0]]))
