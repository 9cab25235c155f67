"""Table entries of core and outer rows: the least ones over open choices, or the chosen ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodels.collectives import all_reduce_time, point_to_point_time, shard_exchange
from hardware import Cluster
from planner.cost import ANY_CP_KIND, FREE, Entries, Group, LayerTimes
from planner.placement import boundary_levels, data_stride, pipeline_stride, ranks_by_level
from planner.solvers.space import MeshRows, OuterChoices, RecomputeChoice
from planner.strategy import RankOrder
from planner.tables import LayerTable

Ints = NDArray[np.int64]

Buffers: TypeAlias = dict[str, NDArray[np.float64]]
"""Memory for gathered entries by field, used again and again: fresh pages cost more than the gathering."""

ORDERS = (RankOrder.PP_OUTER, RankOrder.DP_OUTER)
"""Rank orders by index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterRows:
    """Full outer rows of one pp. Each [row]."""

    mesh: MeshRows
    """The core row of each."""
    cp_kind: Ints
    zero_stage: Ints
    dp_shard: Ints
    dp_replicate: Ints
    rank_order: Ints

    def __len__(self) -> int:
        return len(self.cp_kind)

    def take(self, index: Any) -> OuterRows:
        """Some of the rows."""
        return OuterRows(
            mesh=self.mesh.take(index),
            cp_kind=self.cp_kind[index],
            zero_stage=self.zero_stage[index],
            dp_shard=self.dp_shard[index],
            dp_replicate=self.dp_replicate[index],
            rank_order=self.rank_order[index],
        )


def expand(mesh: MeshRows, choices: Sequence[OuterChoices]) -> tuple[OuterRows, Ints]:
    """All outer rows below some core rows, and the core row (index) of each."""
    sizes = np.asarray([len(choice) for choice in choices], dtype=np.int64)
    parent = np.repeat(np.arange(len(mesh)), sizes)
    columns = {
        name: np.concatenate([getattr(choice, name) for choice in choices])
        for name in ("cp_kind", "zero_stage", "dp_shard", "dp_replicate", "rank_order")
    }
    return OuterRows(mesh=mesh.take(parent), **columns), parent


def core_entries(
    mesh: MeshRows,
    times: LayerTimes,
    table: LayerTable,
    cluster: Cluster,
    recompute: RecomputeChoice,
    buffers: Buffers | None = None,
) -> Entries:
    """The least entries over everything below each core row: best kind of cp, states fully sharded, free groups.

    With buffers, the arrays live in them until the next call.
    """
    key = mesh.key
    boundary = table.boundary_bytes[key]
    links = np.stack([np.asarray(point_to_point_time(boundary, level.link)) for level in cluster.levels])
    return Entries(
        **_gathered(times, ANY_CP_KIND, key, recompute, buffers),
        num_microbatches=mesh.num_microbatches,
        zero_stage=3,
        dense_shards=mesh.dp * mesh.cp,
        expert_shards=mesh.expert_axis,
        dense_shard_group=FREE,
        dense_replica_group=FREE,
        expert_shard_group=FREE,
        expert_replica_group=FREE,
        link_time=np.broadcast_to(links.min(axis=0), (max(mesh.pp, 1), len(mesh))),
        shared_time=np.zeros(len(mesh)),
        shared_parameters=table.shared_parameters[key],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sharding:
    """Sizes of the groups that states are sharded and replicated over. Each [row]"""

    context: Ints
    """Context-parallel ranks among the dense shards."""
    replicas: Ints
    """Data-parallel replicas of a shard group."""
    dense_shards: Ints
    expert_axis: Ints
    """Ranks with the same expert weights."""
    expert_shards: Ints


def _sharding(rows: OuterRows) -> _Sharding:
    mesh = rows.mesh
    sharded = rows.zero_stage > 0
    replicas = rows.dp_replicate
    context = np.where(sharded, mesh.cp, 1)
    expert_axis = mesh.expert_axis
    expert_shards = np.where(sharded, np.maximum(1, expert_axis // replicas), 1)
    return _Sharding(
        context=context,
        replicas=replicas,
        dense_shards=rows.dp_shard * context,
        expert_axis=expert_axis,
        expert_shards=expert_shards,
    )


def state_entries(
    rows: OuterRows,
    times: LayerTimes,
    table: LayerTable,
    recompute: RecomputeChoice,
    buffers: Buffers | None = None,
) -> Entries:
    """Entries of outer rows with their sharding of states and kind of cp, and communication still open."""
    mesh, key, sharding = rows.mesh, rows.mesh.key, _sharding(rows)
    return Entries(
        **_gathered(times, rows.cp_kind, key, recompute, buffers),
        num_microbatches=mesh.num_microbatches,
        zero_stage=rows.zero_stage,
        dense_shards=sharding.dense_shards,
        expert_shards=sharding.expert_shards,
        dense_shard_group=FREE,
        dense_replica_group=FREE,
        expert_shard_group=FREE,
        expert_replica_group=FREE,
        link_time=np.broadcast_to(0.0, (mesh.pp, len(rows))),
        shared_time=np.zeros(len(rows)),
        shared_parameters=table.shared_parameters[key],
    )


def outer_entries(
    rows: OuterRows,
    times: LayerTimes,
    table: LayerTable,
    cluster: Cluster,
    gradient_bytes: int,
    recompute: RecomputeChoice | None = None,
) -> Entries:
    """The chosen entries of outer rows; with a choice of recomputation only those that a bound under it reads."""
    mesh, key, sharding = rows.mesh, rows.mesh.key, _sharding(rows)
    context, replicas = sharding.context, sharding.replicas
    expert_axis, expert_shards = sharding.expert_axis, sharding.expert_shards
    stride: Any = np.where(
        rows.rank_order == 0,
        pipeline_stride(mesh.tp, mesh.cp, mesh.dp, ORDERS[0]),
        pipeline_stride(mesh.tp, mesh.cp, mesh.dp, ORDERS[1]),
    )
    data: Any = np.where(
        rows.rank_order == 0,
        data_stride(mesh.tp, mesh.cp, mesh.pp, ORDERS[0]),
        data_stride(mesh.tp, mesh.cp, mesh.pp, ORDERS[1]),
    )
    expert = np.where(rows.rank_order == 0, mesh.ep * mesh.etp, mesh.ep * mesh.etp * mesh.pp)
    links = boundary_times(table.boundary_bytes[key], stride, mesh.pp, cluster)
    shared = table.shared_parameters[key]
    return Entries(
        **_gathered(times, rows.cp_kind, key, recompute),
        num_microbatches=mesh.num_microbatches,
        zero_stage=rows.zero_stage,
        dense_shards=sharding.dense_shards,
        expert_shards=expert_shards,
        dense_shard_group=_group([(context, mesh.tp), (rows.dp_shard, data)], cluster),
        dense_replica_group=_group([(mesh.cp // context, mesh.tp), (replicas, data * rows.dp_shard)], cluster),
        expert_shard_group=_group([(expert_shards, expert)], cluster),
        expert_replica_group=_group([(expert_axis // expert_shards, expert * expert_shards)], cluster),
        link_time=links,
        shared_time=shared_reduction(gradient_bytes * shared, stride, mesh.pp, cluster),
        shared_parameters=shared,
    )


def _gathered(
    times: LayerTimes, cp_kind: Any, key: Ints, recompute: RecomputeChoice | None, buffers: Buffers | None = None
) -> dict[str, Any]:
    """Layer entries of rows; for a bound under a choice of recomputation only those that it reads.

    Arrays end in [cp kind, key]; they are read as one axis.
    """
    flat = cp_kind * times.forward.shape[-1] + key
    sources: dict[str, Any] = {name: getattr(times, name) for name in ("forward", "backward", "saved", "price")}
    sources["transient"] = times.transient if recompute is None else times.transient[:1]
    if recompute is None or not recompute.partial:
        sources["recompute"] = times.recompute
    values = {name: _take(name, _one_axis(array), flat, buffers) for name, array in sources.items()}
    values.setdefault("recompute", _UNREAD)
    for name in ("dense_parameters", "expert_parameters"):
        values[name] = _take(name, getattr(times, name), key, buffers)
    return values


_UNREAD = np.zeros((0, 0, 0))


def _one_axis(array: Any) -> Any:
    return array.reshape(*array.shape[:-2], -1)


def _take(name: str, array: Any, index: Ints, buffers: Buffers | None) -> Any:
    if buffers is None:
        return np.take(array, index, axis=-1)
    size = array.size // array.shape[-1] * len(index)
    if name not in buffers or buffers[name].size < size:
        buffers[name] = np.empty(size)
    out = buffers[name][:size].reshape(*array.shape[:-1], len(index))
    return np.take(array, index, axis=-1, out=out, mode="clip")  # keys are in range; other modes copy `out`


def _group(axes: Sequence[tuple[Any, Any]], cluster: Cluster) -> Group:
    links = [level.link for level in cluster.levels]
    return Group(algorithms=shard_exchange(ranks_by_level(axes, cluster), links))


def boundary_times(num_bytes: Ints, stride: Ints, pp: int, cluster: Cluster) -> Any:
    """Message time from each pipeline rank to the next, the last one to the first. [rank, row] [s]"""
    if pp == 1:
        return np.zeros((1, len(stride)))
    by_level = np.stack([np.asarray(point_to_point_time(num_bytes, level.link)) for level in cluster.levels])
    values, inverse = np.unique(stride, return_inverse=True)
    levels = np.asarray([boundary_levels(int(value), pp, cluster) for value in values])  # [stride, rank]
    return by_level[levels[inverse].T, np.arange(len(stride))]


def shared_reduction(num_bytes: Ints, stride: Ints, pp: int, cluster: Cluster) -> Any:
    """All-reduce of weights that the first and the last pipeline rank share. [row] [s]"""
    if pp == 1 or not num_bytes.any():
        return np.zeros(len(stride))
    values, inverse = np.unique(stride, return_inverse=True)
    last = np.asarray([boundary_levels(int(value), pp, cluster)[-1] for value in values])[inverse]
    ranks = [np.where(last == level, 2, 1) for level in range(len(cluster.levels))]
    return np.asarray(all_reduce_time(num_bytes, ranks, [level.link for level in cluster.levels]))
