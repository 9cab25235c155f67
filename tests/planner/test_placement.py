"""Placement: how many ranks of a group each level joins, against a count over all groups."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware import Cluster, Level, Link, build_cluster, load_node
from planner.placement import boundary_levels, data_stride, pipeline_stride, ranks_by_level, ranks_inside
from planner.strategy import RankOrder

LINK = Link(bandwidth=1e9, latency=1e-6)
DEVICE = load_node("dgx-a100-80gb").device


def cluster_of(*units: int) -> Cluster:
    """A cluster with levels of so many devices."""
    levels = tuple(Level(name=f"level-{size}", num_devices=size, link=LINK) for size in units)
    return Cluster(name="test", device=DEVICE, num_devices=units[-1], devices_per_node=units[0], levels=levels)


def groups_of(axes: list[tuple[int, int]], num_devices: int) -> list[list[int]]:
    """All groups of the axes: the ranks reached from each rank whose coordinate on every axis is 0."""
    starts = [rank for rank in range(num_devices) if all(rank // stride % size == 0 for size, stride in axes)]
    steps = [[index * stride for index in range(size)] for size, stride in axes]
    return [[start + sum(move) for move in itertools.product(*steps)] for start in starts]


def worst_counts(axes: list[tuple[int, int]], cluster: Cluster) -> list[int]:
    """For each level, the least number of ranks of a group that share a unit with each of its members."""
    counts = []
    for level in cluster.levels:
        fewest = math.prod(size for size, _ in axes)
        for group in groups_of(axes, cluster.num_devices):
            units = [rank // level.num_devices for rank in group]
            fewest = min(fewest, *(units.count(unit) for unit in set(units)))
        counts.append(fewest)
    return counts


def factors(axes: list[tuple[int, int]], cluster: Cluster) -> list[int]:
    return [int(factor) for factor in ranks_by_level(axes, cluster)]


def test_by_hand() -> None:
    cluster = cluster_of(8, 32)
    assert factors([(8, 1)], cluster) == [8, 1]  # tp in the node
    assert factors([(16, 1)], cluster) == [8, 2]  # tp over two nodes
    assert factors([(4, 8)], cluster) == [1, 4]  # dp over tp 8: one rank a node
    assert factors([(8, 4)], cluster) == [2, 4]  # dp over tp 4: two ranks a node
    assert factors([(2, 4), (4, 8)], cluster) == [2, 4]  # cp 2 over tp 4, and dp
    assert factors([(1, 1)], cluster) == [1, 1]


DIVIDING = [(units, axes) for units in ((8, 32), (4, 16, 64), (72, 144), (8,), (6, 24)) for axes in (
    [(size, stride)]
    for size in (1, 2, 3, 4, 8, 16)
    for stride in (1, 2, 3, 4, 8, 16)
    if units[-1] % (size * stride) == 0
    and all(unit % stride == 0 or stride % unit == 0 for unit in units)
    and all(unit % (size * stride) == 0 or (size * stride) % unit == 0 for unit in units)
)]  # fmt: skip


@pytest.mark.parametrize(("units", "axes"), DIVIDING)
def test_dividing_groups_are_counted_exactly(units: tuple[int, ...], axes: list[tuple[int, int]]) -> None:
    cluster = cluster_of(*units)
    counted = worst_counts(axes, cluster)
    assert list(itertools.accumulate(factors(axes, cluster), lambda a, b: a * b)) == counted


POWER = st.integers(0, 3).map(lambda exponent: 2**exponent)


@given(POWER, POWER, POWER, POWER)
def test_two_axes_are_counted_exactly(tp: int, cp: int, dp: int, pp: int) -> None:
    # The shard group of ZeRO: context ranks beside tp, then data-parallel ranks, in both rank orders.
    world = tp * cp * dp * pp
    units = [size for size in (8, 64) if size < world and world % size == 0]
    cluster = cluster_of(*units, world)
    for order in RankOrder:
        axes = [(cp, tp), (dp, data_stride(tp, cp, pp, order))]
        counted = worst_counts(axes, cluster)
        assert list(itertools.accumulate(factors(axes, cluster), lambda a, b: a * b)) == counted


@given(st.integers(1, 40), st.integers(1, 40))
def test_the_factors_multiply_to_the_size(size: int, stride: int) -> None:
    cluster = cluster_of(8, 32, 96)
    assert math.prod(factors([(size, stride)], cluster)) == size


@given(st.integers(1, 12), st.sampled_from([1, 2, 3, 4, 6, 8, 12]))
def test_a_group_that_does_not_divide_is_never_taken_for_better_placed(size: int, stride: int) -> None:
    # The worst group's ranks in a unit are never overstated, so its traffic over the network is never understated.
    cluster = cluster_of(8, 96)
    if cluster.num_devices % (size * stride):
        return
    axes = [(size, stride)]
    least = min(math.ceil(size / len({rank // 8 for rank in group})) for group in groups_of(axes, cluster.num_devices))
    assert factors(axes, cluster)[0] <= least


def test_uneven_groups_split_into_equal_parts() -> None:
    # 6 ranks on nodes of 8: some group lies 4 + 2, so parts of 2.
    assert int(ranks_inside(6, 1, 8)) == 2
    assert int(ranks_inside(6, 3, 8)) == 1


def test_arrays_give_what_numbers_give() -> None:
    cluster = cluster_of(8, 32)
    sizes, strides = np.array([1, 8, 16, 4, 8]), np.array([1, 1, 1, 8, 4])
    rows = ranks_by_level([(sizes, strides)], cluster)
    for index in range(len(sizes)):
        assert [int(row[index]) for row in rows] == factors([(int(sizes[index]), int(strides[index]))], cluster)


def test_strides_of_both_orders() -> None:
    # tp 2, cp 3, dp 5, pp 7.
    assert pipeline_stride(2, 3, 5, RankOrder.PP_OUTER) == 30
    assert pipeline_stride(2, 3, 5, RankOrder.DP_OUTER) == 6
    assert data_stride(2, 3, 7, RankOrder.PP_OUTER) == 6
    assert data_stride(2, 3, 7, RankOrder.DP_OUTER) == 42


def test_boundaries_by_hand() -> None:
    cluster = build_cluster(load_node("dgx-a100-80gb"), 4)
    assert boundary_levels(8, 4, cluster) == [1, 1, 1, 1]  # a node a stage: all over the network
    assert boundary_levels(1, 8, cluster) == [0] * 8  # in one node, and the way back too
    assert boundary_levels(4, 4, cluster) == [0, 1, 0, 1]  # two stages a node
    assert boundary_levels(2, 8, cluster) == [0, 0, 0, 1, 0, 0, 0, 1]


@given(POWER, POWER, st.sampled_from([2, 4, 8]))
def test_boundaries_are_those_of_every_pipeline(tp: int, dp: int, pp: int) -> None:
    world = tp * dp * pp
    units = [size for size in (8, 64) if size < world and world % size == 0]
    cluster = cluster_of(*units, world)
    for order in RankOrder:
        stride = pipeline_stride(tp, 1, dp, order)
        levels = boundary_levels(stride, pp, cluster)
        for group in groups_of([(pp, stride)], world):
            for rank in range(pp):
                ends = (group[rank], group[(rank + 1) % pp])
                joined = next(
                    index
                    for index, level in enumerate(cluster.levels)
                    if len({end // level.num_devices for end in ends}) == 1
                )
                assert levels[rank] == joined
