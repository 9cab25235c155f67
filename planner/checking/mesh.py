"""Where groups of ranks lie: ranks are numbered node by node, the innermost axis first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from costmodels.collectives import affine_time, all_reduce_time, point_to_point_time, shard_exchange
from hardware import Cluster
from planner.plan import Plan
from planner.strategy import RankOrder


def group_by_level(axes: Sequence[tuple[int, int]], cluster: Cluster) -> list[int]:
    """By how much each level multiplies the group of some axes (size, stride); the product is the group's size.

    Members inside a unit of n devices: the largest equal parts that n / stride places hold, if the stride divides n.
    """
    inside = [1]
    for level in cluster.levels[:-1]:
        together = 1
        for size, stride in axes:
            places = level.num_devices // stride if level.num_devices % stride == 0 else 1
            together *= math.gcd(size, places)
        inside.append(together)
    inside.append(math.prod(size for size, _ in axes))
    return [after // before for before, after in itertools.pairwise(inside)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that share out or copy the states of a layer."""

    size: int
    """Ranks in it."""
    by_level: tuple[int, ...]
    """Factor of each level."""
    cluster: Cluster
    """Where it lies."""

    def exchange_time(self, num_bytes: float) -> float:
        """Reduce-scatter or all-gather of a buffer [s]."""
        links = [level.link for level in self.cluster.levels]
        return float(affine_time(shard_exchange(self.by_level, links), num_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Groups and links of a plan."""

    dense_shards: Group
    """Ranks that share out states of dense layers."""
    dense_copies: Group
    """Ranks that hold copies of them."""
    expert_shards: Group
    expert_copies: Group
    boundary_level: tuple[int, ...]
    """Level of the link from each pipeline rank to the next, the last one to the first."""
    cluster: Cluster

    def message_time(self, rank: int, num_bytes: int) -> float:
        """Message from a pipeline rank to the next [s]."""
        return float(point_to_point_time(num_bytes, self.cluster.levels[self.boundary_level[rank]].link))

    def pair_reduction_time(self, num_bytes: int) -> float:
        """All-reduce between the last and the first pipeline rank [s]."""
        ranks = [2 if level == self.boundary_level[-1] else 1 for level in range(len(self.cluster.levels))]
        return float(all_reduce_time(num_bytes, ranks, [level.link for level in self.cluster.levels]))


def make_mesh(plan: Plan) -> Mesh:
    """The groups of a plan.

    Dense ranks are tp, cp, dp (shards inside copies) and pp, experts' ranks etp, ep, data-parallel and pp; pp lies
    outside all of them or just inside dp. Without ZeRO, context-parallel ranks hold copies; with it they hold shards.
    """
    strategy, cluster = plan.strategy, plan.cluster
    tp, cp, pp = strategy.tp, strategy.cp, strategy.pp
    experts = strategy.ep * strategy.etp
    if strategy.rank_order is RankOrder.DP_OUTER:
        pp_stride, dp_stride, expert_stride = tp * cp, tp * cp * pp, experts * pp
    else:
        pp_stride, dp_stride, expert_stride = tp * cp * strategy.dp, tp * cp, experts
    expert_ranks = strategy.dp * cp * tp // experts
    expert_shards = max(1, expert_ranks // strategy.dp_replicate) if strategy.zero_stage else 1

    def group(*axes: tuple[int, int]) -> Group:
        size = math.prod(axis[0] for axis in axes)
        return Group(size=size, by_level=tuple(group_by_level(axes, cluster)), cluster=cluster)

    sharded, copied = (cp, 1) if strategy.zero_stage else (1, cp)
    return Mesh(
        dense_shards=group((sharded, tp), (strategy.dp_shard, dp_stride)),
        dense_copies=group((copied, tp), (strategy.dp_replicate, dp_stride * strategy.dp_shard)),
        expert_shards=group((expert_shards, expert_stride)),
        expert_copies=group((expert_ranks // expert_shards, expert_stride * expert_shards)),
        boundary_level=tuple(_boundary_level(rank, pp, pp_stride, cluster) for rank in range(pp)),
        cluster=cluster,
    )


def _boundary_level(rank: int, pp: int, stride: int, cluster: Cluster) -> int:
    """The innermost level with a unit that holds both ends, in every pipeline: they follow one another."""
    for index, level in enumerate(cluster.levels[:-1]):
        unit = level.num_devices
        ends = [
            (pipeline * pp * stride + rank * stride, pipeline * pp * stride + (rank + 1) % pp * stride)
            for pipeline in range(unit)  # their places in a unit repeat after so many at the latest
        ]
        if unit % stride == 0 and all(here // unit == there // unit for here, there in ends):
            return index
    return len(cluster.levels) - 1
