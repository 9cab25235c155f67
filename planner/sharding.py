"""How named dims are split over mesh axes: local sizes, regions, and the collectives between ops.

A tensor lives in one of three regions. *Tensor region*: it has a dim that tp splits, so every tensor-parallel rank
holds all tokens of its context shard. *Expert region*: it has ``choices``; tokens lie on the expert mesh. *Sequence
region*: anything else; sequence parallelism splits its tokens over tp as well. An op that reads a tensor of another
region, or sums over a dim that is split, costs a collective; its adjoint is the collective of the backward pass. Column
and row tensor parallelism, sequence, vocabulary and expert parallelism all follow from that. All sizes may be ints or
arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from planner.graph import BATCH, CHOICES, SEQ, Axis, Dim, Layer, Op, Parameter

Integer: TypeAlias = Any
"""An int or a numpy array of ints."""


class Region(StrEnum):
    """Where the tokens of a tensor are."""

    SEQUENCE = "sequence"
    TENSOR = "tensor"
    EXPERT = "expert"


class Exchange(StrEnum):
    """A collective that sharding makes necessary; the forward one, its adjoint runs backward."""

    TP_GATHER = "tp_gather"
    """Tokens gathered before a tensor region; backward a reduction. Without sequence parallelism only the latter."""
    TP_REDUCE = "tp_reduce"
    """Partial sums reduced after a tensor region; backward a gather. Without sequence parallelism only the former."""
    EP_ALL_TO_ALL = "ep_all_to_all"
    """Tokens sent to their experts or back, and the same backward."""
    ETP_EXCHANGE = "etp_exchange"
    """Tokens of an expert gathered over (or reduced back from) the ranks that share the expert."""
    CP_ATTENTION = "cp_attention"
    """Keys and values of the other context shards, by ring or all-to-all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """Degrees that decide local sizes; ints, or arrays of one shape for many strategies at once."""

    tp: Integer
    cp: Integer
    ep: Integer
    etp: Integer
    microbatch_size: Integer
    seq_len: int
    sequence_parallel: bool

    def degree(self, axis: Axis) -> Integer:
        """Size of a mesh axis."""
        return {Axis.TP: self.tp, Axis.EP: self.ep, Axis.ETP: self.etp}[axis]

    def num_tokens(self, region: Region) -> Integer:
        """Tokens (batch times sequence) that a rank holds in a region.

        Rounded up where a degree does not divide; legal strategies divide.
        """
        tokens = self.microbatch_size * self.seq_len
        if region is Region.TENSOR:
            return -(-tokens // self.cp)
        if region is Region.EXPERT:
            return -(-tokens // (self.cp * self._token_tp)) * self.etp
        return -(-tokens // (self.cp * self._token_tp))

    @property
    def _token_tp(self) -> Integer:
        return self.tp if self.sequence_parallel else 1


def local_size(dim: Dim, shards: Shards) -> Integer:
    """Elements of a dim on one rank: padded, replicated or split as the dim says."""
    if dim.axis is None:
        return dim.size
    degree = shards.degree(dim.axis)
    if dim.padded:
        return -(-dim.size // (dim.granularity * degree)) * dim.granularity
    if dim.replicable:
        return np.maximum(1, dim.size // degree)
    return -(-dim.size // degree)


def has_axis(layer: Layer, dims: tuple[str, ...], axis: Axis) -> bool:
    """Whether any of the dims is split over the axis."""
    return any(name in layer.dims and layer.dims[name].axis is axis for name in dims)


def tensor_region(layer: Layer, dims: tuple[str, ...]) -> Region:
    """Region of a tensor with these dims."""
    if CHOICES in dims:
        return Region.EXPERT
    return Region.TENSOR if has_axis(layer, dims, Axis.TP) else Region.SEQUENCE


def op_region(layer: Layer, op: Op) -> Region:
    """Region an op computes in: where its output and the dims it sums over are, together."""
    if op.kind in ("dispatch", "combine", "router"):
        return Region.EXPERT if op.kind == "dispatch" else Region.SEQUENCE
    return tensor_region(layer, layer.tensors[op.output].dims + op.sums)


def row_elements(layer: Layer, dims: tuple[str, ...], shards: Shards) -> Integer:
    """Elements of one token of a tensor on one rank; ``choices`` counts as a dim."""
    size: Integer = 1
    for name in dims:
        if name not in (BATCH, SEQ):
            size = size * local_size(layer.dims[name], shards)
    return size


def local_elements(layer: Layer, dims: tuple[str, ...], region: Region, shards: Shards) -> Integer:
    """Elements of a tensor on one rank, with the tokens of a region."""
    return shards.num_tokens(region) * row_elements(layer, dims, shards)


def parameter_elements(layer: Layer, parameter: Parameter, shards: Shards) -> Integer:
    """Elements of a weight on one rank, before ZeRO."""
    size: Integer = 1
    for name in parameter.dims:
        size = size * local_size(layer.dims[name], shards)
    return size


def is_expert(layer: Layer, parameter: Parameter) -> bool:
    """Whether a weight is sharded over the experts' mesh."""
    return has_axis(layer, parameter.dims, Axis.EP)


def layer_exchanges(layer: Layer) -> list[tuple[Exchange, Op, tuple[str, ...]]]:
    """Collectives of a layer's forward pass: kind, the op that needs it, and the dims of the tensor that travels.

    A tensor gathered once serves all ops that read it.
    """
    exchanges: list[tuple[Exchange, Op, tuple[str, ...]]] = []
    gathered: set[str] = set()
    for op in layer.ops:
        region = op_region(layer, op)
        if region is Region.TENSOR:
            for name in op.inputs:
                dims = layer.tensors[name].dims
                if tensor_region(layer, dims) is Region.SEQUENCE and name not in gathered:
                    gathered.add(name)
                    exchanges.append((Exchange.TP_GATHER, op, dims))
            if has_axis(layer, op.sums, Axis.TP):
                exchanges.append((Exchange.TP_REDUCE, op, layer.tensors[op.output].dims))
        if op.kind == "attention":
            exchanges.append((Exchange.CP_ATTENTION, op, ()))
        if op.kind == "dispatch":
            dims = layer.tensors[op.output].dims
            exchanges.extend([(Exchange.EP_ALL_TO_ALL, op, dims), (Exchange.ETP_EXCHANGE, op, dims)])
        if op.kind == "combine":
            dims = layer.tensors[op.inputs[0]].dims
            exchanges.extend([(Exchange.ETP_EXCHANGE, op, dims), (Exchange.EP_ALL_TO_ALL, op, dims)])
    return exchanges
