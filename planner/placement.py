"""Where the groups of a mesh lie on the cluster: ranks, strides, and the levels that a group crosses.

Ranks are numbered node by node. The mesh of the dense layers has the axes tp, cp, dp (shard inside, replicate outside)
and pp; the experts' mesh etp, ep, edp and pp on the same devices. An axis of size n and stride s joins the ranks r,
r + s, ..., r + (n - 1) s. All functions take ints or integer arrays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from hardware import Cluster
from planner.strategy import RankOrder

Integer: TypeAlias = Any
"""An int or a numpy array of ints."""


def ranks_inside(size: Integer, stride: Integer, num_devices: int) -> Integer:
    """How many ranks of a group share a unit of `num_devices` devices, in the worst placed group.

    Notes
    -----
    Exact where strides and units divide each other; a group that straddles units unevenly (6 ranks on nodes of 8) is
    taken as split into the largest equal parts that fit.
    """
    stride = np.asarray(stride)
    fits = (stride < num_devices) & (num_devices % np.maximum(stride, 1) == 0)
    return np.where(fits, np.gcd(size, np.maximum(num_devices // np.maximum(stride, 1), 1)), 1)


def ranks_by_level(axes: Sequence[tuple[Integer, Integer]], cluster: Cluster) -> list[Integer]:
    """Factor by which each level multiplies a group made of the axes (size, stride), innermost level first.

    The product over the levels is the product of the sizes.
    """
    size: Integer = 1
    for axis_size, _ in axes:
        size = size * axis_size
    factors = []
    below: Integer = 1
    for level in cluster.levels[:-1]:
        inside: Integer = 1
        for axis_size, stride in axes:
            inside = inside * ranks_inside(axis_size, stride, level.num_devices)
        factors.append(inside // below)
        below = inside
    factors.append(size // below)
    return factors


def pipeline_stride(tp: Integer, cp: Integer, dp: Integer, order: RankOrder) -> Integer:
    """Distance in ranks between neighbouring pipeline stages."""
    return tp * cp if order is RankOrder.DP_OUTER else tp * cp * dp


def data_stride(tp: Integer, cp: Integer, pp: Integer, order: RankOrder) -> Integer:
    """Distance in ranks between neighbours of the data-parallel axis."""
    return tp * cp * pp if order is RankOrder.DP_OUTER else tp * cp


def boundary_levels(stride: int, pp: int, cluster: Cluster) -> list[int]:
    """The level whose link carries the message from pipeline rank r to rank (r + 1) mod pp, for each r.

    Notes
    -----
    The outermost over all pipelines: they begin at multiples of ``stride pp``, which need not be the begin of a unit.
    Strides that do not divide a unit count as crossing it.
    """
    length = stride * pp
    levels = []
    for rank in range(pp):
        here, there = rank * stride, ((rank + 1) % pp) * stride
        level = 0
        while level < len(cluster.levels) - 1:
            unit = cluster.levels[level].num_devices
            begins = range(0, unit // math.gcd(unit, length) * length, length)
            if unit % stride == 0 and all((begin + here) // unit == (begin + there) // unit for begin in begins):
                break
            level += 1
        levels.append(level)
    return levels
