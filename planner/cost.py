"""compose(): table entries become layer, stage and step costs. The same functions give estimates and bounds.

An estimate passes the entries of the chosen strategy and the layer counts of its stages; a bound passes the least
entries and counts over the choices still open. Every function here is non-decreasing in every entry and count, so a
bound cannot exceed an estimate. What overlaps what is decided in this file, and nowhere else:

- ring context parallelism hides behind attention and behind waiting for launches;
- ZeRO-3 gathers and ZeRO-2/3 reductions of a layer hide behind `overlap` times that layer's own compute;
- the reduction of gradients at the end of a step hides behind `overlap` times the rank's last backward;
- tensor- and expert-parallel collectives, optimizer step and weight gathers after it hide behind nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from costmodels.collectives import Affine, affine_time
from costmodels.compute import optimizer_time
from costmodels.memory import StateBytes, ceil_div, state_bytes
from hardware import Cluster
from planner.layer_costs import CP_KINDS, Floats, Ints
from planner.tables import LayerTable
from planner.workload import Workload

Number: TypeAlias = Any
"""A number or a numpy array."""

ANY_CP_KIND = len(CP_KINDS)
"""Index of the least entries over the kinds of context parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTimes:
    """Layer costs after overlap inside the layer, for each kind of context parallelism and the least over them.

    Bytes and weights are whole numbers in floats, exact below 2**53, so that they can be summed by matrix products.
    """

    forward: Floats
    """[type, cp kind, key] [s]"""
    backward: Floats
    """Without recomputation. [type, cp kind, key] [s]"""
    recompute: Floats
    """Added to the backward pass. [kind, type, cp kind, key] [s]"""
    saved: Floats
    """[kind, type, cp kind, key] [bytes]"""
    transient: Floats
    """[kind, type, cp kind, key] [bytes]"""
    price: Floats
    """Least recomputation time per byte freed over the types that may recompute; infinite where nothing is freed.
    [kind, cp kind, key] [s/byte]"""
    dense_parameters: Floats
    """[type, key]"""
    expert_parameters: Floats
    """[type, key]"""


def compose_layers(table: LayerTable, body: Sequence[bool]) -> LayerTimes:
    """Layer costs from raw table columns, with the overlap of context parallelism decided.

    `body` says which layer types may recompute: all but embedding and head. [type]
    """
    by_kind = [[table.costs[kind, name] for name in table.layer_types] for kind in CP_KINDS]
    recompute = _by_kind_and_type([[cost.recompute for cost in costs] for costs in by_kind])
    saved = _by_kind_and_type([[cost.saved for cost in costs] for costs in by_kind])
    transient = _by_kind_and_type([[cost.transient for cost in costs] for costs in by_kind])
    edges = ~np.asarray(body)
    for memory in (saved, transient):
        memory[:, edges] = memory[0, edges]  # they never recompute
    return LayerTimes(
        forward=_by_type([[_forward_time(cost) for cost in costs] for costs in by_kind]),
        backward=_by_type([[_backward_time(cost) for cost in costs] for costs in by_kind]),
        recompute=recompute,
        saved=saved,
        transient=transient,
        price=_least_price(recompute, saved, body),
        dense_parameters=np.stack([cost.dense_parameters.astype(np.float64) for cost in by_kind[0]]),
        expert_parameters=np.stack([cost.expert_parameters.astype(np.float64) for cost in by_kind[0]]),
    )


def _by_type(values: Sequence[Sequence[Any]]) -> Floats:
    """[cp kind][type] of [key] -> [type, cp kind and the least, key]"""
    array = np.stack([np.stack(row) for row in values], axis=1).astype(np.float64)
    return np.ascontiguousarray(np.concatenate([array, array.min(axis=1, keepdims=True)], axis=1))


def _by_kind_and_type(values: Sequence[Sequence[Any]]) -> Floats:
    """[cp kind][type] of [kind, key] -> [kind, type, cp kind and the least, key]"""
    array = np.stack([np.stack(row, axis=1) for row in values], axis=2).astype(np.float64)
    return np.ascontiguousarray(np.concatenate([array, array.min(axis=2, keepdims=True)], axis=2))


def _least_price(recompute: Floats, saved: Floats, body: Sequence[bool]) -> Floats:
    price = np.full((recompute.shape[0], *recompute.shape[2:]), np.inf)
    for index in np.flatnonzero(np.asarray(body)):
        freed = saved[0, index] - saved[:, index]
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(freed > 0, recompute[:, index] / freed, np.inf)
        price = np.minimum(price, each)
    price[:, -1] = price[:, :-1].min(axis=1)  # least entries: not the ratio of the least
    return price


def _forward_time(cost: Any) -> Floats:
    ring = np.maximum(0.0, cost.cp_forward - cost.attention_forward)
    return np.asarray(cost.forward + cost.tp_forward + cost.ep_forward + ring)


def _backward_time(cost: Any) -> Floats:
    ring = np.maximum(0.0, cost.cp_backward - cost.attention_backward)
    return np.asarray(cost.input_grad + cost.weight_grad + cost.tp_backward + cost.ep_forward + ring)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Communication of one sharding or replication group: affine times of a shard exchange by algorithm."""

    algorithms: tuple[Affine, ...]
    """(latency [s], time per byte [s/byte]) each. [row]"""

    def exchange_time(self, num_bytes: Number) -> Number:
        """Reduce-scatter or all-gather of a buffer [s]."""
        return affine_time(self.algorithms, num_bytes)

    def take(self, index: Any) -> Group:
        """Some of the rows."""
        return Group(algorithms=tuple((latency[index], slope[index]) for latency, slope in self.algorithms))


FREE = Group(algorithms=((0.0, 0.0),))
"""The least entry of a group while its choice is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """Table entries of a batch of outer rows: chosen ones, or the least ones over open choices."""

    forward: Floats
    """[type, row] [s]"""
    backward: Floats
    """[type, row] [s]"""
    recompute: Floats
    """[kind, type, row] [s]"""
    saved: Floats
    """[kind, type, row] [bytes]"""
    transient: Floats
    """[kind, type, row] [bytes]; bounds need no kind but NONE."""
    price: Floats
    """Least recomputation time per byte freed. [kind, row] [s/byte]"""
    dense_parameters: Floats
    """[type, row]"""
    expert_parameters: Floats
    """[type, row]"""
    num_microbatches: Ints
    """[row]"""
    zero_stage: Any
    """[row], or one for all rows: 3 while it is open, with free groups."""
    dense_shards: Ints
    """[row]"""
    expert_shards: Ints
    """[row]"""
    dense_shard_group: Group
    """Over which dense states are sharded."""
    dense_replica_group: Group
    """Over which dense gradients are reduced beside sharding."""
    expert_shard_group: Group
    """Over which expert states are sharded."""
    expert_replica_group: Group
    """Over which expert gradients are reduced beside sharding."""
    link_time: Floats
    """Message from a pipeline rank to the next, the last one to the first. [rank, row] [s]"""
    shared_time: Floats
    """All-reduce of shared weights between the first and the last stage. [row] [s]"""
    shared_parameters: Ints
    """Weights that are held once where first and last stage are the same rank. [row]"""

    @property
    def open(self) -> bool:
        """Whether sharding and placement are still open: nothing of data parallelism costs time."""
        return self.dense_shard_group is FREE

    def take(self, index: Any) -> Entries:
        """Some of the rows."""
        values: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            values[name] = value.take(index) if isinstance(value, Group) else value[..., index]
        return Entries(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCosts:
    """What is equal for all rows: bytes per element, overlap and memory of the job."""

    weight_bytes: int
    """[bytes per parameter]"""
    gradient_bytes: int
    """[bytes per parameter]"""
    optimizer_bytes: int
    """[bytes per parameter]"""
    overlap: float
    """Share of a window that hides data-parallel communication."""
    runtime: int
    """Context and communicators of a process [bytes]."""
    budget: int
    """Memory that a plan may use on a device, runtime included [bytes]."""
    cluster: Cluster
    """Where the job runs."""


def job_costs(cluster: Cluster, workload: Workload, overlap: float, headroom: float) -> JobCosts:
    """The constants of a job."""
    device = cluster.device
    return JobCosts(
        weight_bytes=workload.element_bytes,
        gradient_bytes=workload.gradient_bytes,
        optimizer_bytes=workload.optimizer_bytes,
        overlap=overlap,
        runtime=device.runtime_memory(cluster.num_devices),
        budget=int(device.memory * (1 - headroom)) - cluster.reserve,
        cluster=cluster,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTimes:
    """Forward and backward of a layer of each type, data-parallel communication of its own included. [type, row]"""

    forward: Floats
    backward: Floats

    def take(self, index: Any) -> RowTimes:
        """Some of the rows."""
        return RowTimes(forward=self.forward[:, index], backward=self.backward[:, index])


def compose(entries: Entries, job: JobCosts) -> RowTimes:
    """Layer times of outer rows: table times plus what ZeRO-2/3 communication does not hide."""
    if entries.open or not np.any(entries.zero_stage >= 2):
        return RowTimes(forward=entries.forward, backward=entries.backward)
    gather = (entries.zero_stage >= 3) * _exchange(entries, job.weight_bytes)
    reduce = (entries.zero_stage >= 2) * _exchange(entries, job.gradient_bytes)
    hidden = job.overlap
    return RowTimes(
        forward=entries.forward + np.maximum(0.0, gather - hidden * entries.forward),
        backward=entries.backward + np.maximum(0.0, gather + reduce - hidden * entries.backward),
    )


def _exchange(entries: Entries, element_bytes: int) -> Floats:
    """Exchange of one layer's weights or gradients over its sharding groups. [type, row] [s]"""
    dense = entries.dense_shard_group.exchange_time(element_bytes * entries.dense_parameters)
    expert = entries.expert_shard_group.exchange_time(element_bytes * entries.expert_parameters)
    return np.asarray((entries.dense_parameters > 0) * dense + (entries.expert_parameters > 0) * expert)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTails:
    """What a rank does after its last backward, from its weights. Shapes follow the weights."""

    reduction: Floats
    """Gradient reduction at the end of the step, before overlap [s]."""
    optimizer: Floats
    """Optimizer step [s]."""
    gather: Floats
    """Gather of the new weights [s]."""

    @property
    def update(self) -> Floats:
        """Optimizer step and gather [s]."""
        return self.optimizer + self.gather


def rank_tails(dense: Number, expert: Number, entries: Entries, job: JobCosts, *, whole: bool = True) -> RankTails:
    """End of the step on a rank that holds so many weights (last axis: row); `whole` as in `rank_states`."""
    split = ceil_div if whole else operator.truediv
    owned = split(dense, entries.dense_shards) + split(expert, entries.expert_shards)
    step = optimizer_time(
        (job.optimizer_bytes + job.weight_bytes) * owned, job.gradient_bytes * owned, job.cluster.device
    )
    if entries.open:
        nothing = np.zeros_like(owned)
        return RankTails(reduction=nothing, optimizer=np.asarray(step), gather=nothing)
    zero, shards = entries.zero_stage, entries.dense_shards
    reduction = _reduction(dense, shards, zero, entries.dense_shard_group, entries.dense_replica_group, job)
    reduction = reduction + _reduction(
        expert, entries.expert_shards, zero, entries.expert_shard_group, entries.expert_replica_group, job
    )
    gathers = (zero == 1) | (zero == 2)
    gather = gathers * (
        (dense > 0) * entries.dense_shard_group.exchange_time(job.weight_bytes * dense)
        + (expert > 0) * entries.expert_shard_group.exchange_time(job.weight_bytes * expert)
    )
    return RankTails(reduction=np.asarray(reduction), optimizer=np.asarray(step), gather=np.asarray(gather))


def _reduction(
    weights: Number, shards: Number, zero: Number, shard_group: Group, replica_group: Group, job: JobCosts
) -> Number:
    """Reduction of a rank's gradients: to the shards (ZeRO-1, before that inside the step), then over replicas."""
    num_bytes = job.gradient_bytes * weights
    scattered = (zero == 1) * shard_group.exchange_time(num_bytes)
    replicated = 2 * replica_group.exchange_time(num_bytes / shards)
    return (weights > 0) * (scattered + replicated)


def exposed_reduction(reduction: Number, last_backward: Number, job: JobCosts) -> Number:
    """What the rank's last backward does not hide of its gradient reduction [s]."""
    return np.maximum(0.0, reduction - job.overlap * last_backward)


def rank_states(
    dense: Number, expert: Number, entries: Entries, job: JobCosts, *, whole: bool = True
) -> tuple[StateBytes, StateBytes]:
    """States of a rank that holds so many dense and expert weights (last axis: row).

    A shard is a whole number of weights; a bound may leave out the rounding up (`whole` false), which is slow in bulk.
    """
    split = ceil_div if whole else operator.truediv
    sizes = {
        "weight_bytes": job.weight_bytes,
        "gradient_bytes": job.gradient_bytes,
        "optimizer_bytes": job.optimizer_bytes,
    }
    return (
        state_bytes(dense, split(dense, entries.dense_shards), entries.zero_stage, **sizes),
        state_bytes(expert, split(expert, entries.expert_shards), entries.zero_stage, **sizes),
    )


def gathered_bytes(dense_layer: Number, expert_layer: Number, entries: Entries, job: JobCosts) -> Number:
    """Unsharded weights and gradients that ZeRO holds for a moment, from the largest layer of a rank [bytes].

    ZeRO-3 holds two layers' weights (the one at work and the next); ZeRO-2/3 one layer's whole gradients.
    """
    layer = dense_layer + expert_layer
    zero = entries.zero_stage
    return ((zero >= 3) * 2 * job.weight_bytes + (zero >= 2) * job.gradient_bytes) * layer
