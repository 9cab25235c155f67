"""The join of a model with a device: what one layer of each type costs under each split, as arrays.

A `LayerTable` row is one combination of (tp, cp, ep, etp, microbatch size); its columns are layer types and kinds of
context parallelism. Times are raw: what overlaps what is decided in ``planner.cost`` alone. Measured rows of the model
graph win over the analytic ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.stacks import Stack
from hardware import Cluster
from planner.graph import ModelGraph
from planner.layer_costs import Ints, Keys, LayerCosts, analytic_costs, check_sizes
from planner.measured_costs import with_measurements
from planner.sharding import (
    Shards,
    local_elements,
    parameter_elements,
    tensor_region,
)
from planner.strategy import CpKind
from planner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTable:
    """Costs of every layer type for every key."""

    layer_types: tuple[str, ...]
    """Layer types in order of first use: the index of arrays that say [type]."""
    keys: Keys
    """The rows."""
    costs: dict[tuple[CpKind, str], LayerCosts]
    """By kind of context parallelism and layer type."""
    shared_parameters: Ints
    """Weights of one rank that a later layer type shares with an earlier one (tied embeddings). [key]"""
    boundary_bytes: Ints
    """Bytes between neighbouring stages per microbatch. [key]"""
    valid: NDArray[np.bool_]
    """Whether every layer type has a cost: opaque ones only where measured. [key]"""
    sources: tuple[str, ...]
    """Kinds of figures that the table holds, the best first."""


def build_table(
    graph: ModelGraph, cluster: Cluster, workload: Workload, stack: Stack, keys: Keys, sequence_parallel: bool
) -> LayerTable:
    """The table of a model on a cluster.

    Raises
    ------
    ValueError
        If a tensor or weight has too many bytes for exact integers.
    """
    shards = keys.shards(workload, sequence_parallel)
    names = tuple(dict.fromkeys(block.layer_type for block in graph.blocks))
    for name in names:
        check_sizes(graph.layer_types[name], keys, workload, sequence_parallel)
    costs: dict[tuple[CpKind, str], LayerCosts] = {}
    valid = np.ones(len(keys.tp), dtype=bool)
    measured_types = set()
    for name in names:
        layer = graph.layer_types[name]
        rows = [row for row in graph.measurements if row.layer_type == name and row.device == cluster.device.name]
        for kind, analytic in analytic_costs(layer, keys, cluster, workload, stack, sequence_parallel).items():
            costs[kind, name], known = with_measurements(analytic, rows, keys, workload) if rows else (analytic, None)
        if layer.opaque:
            valid &= False if known is None else known
        if rows:
            measured_types.add(name)
    sources = (("measured",) if measured_types else ()) + (("fitted",) if len(measured_types) < len(names) else ())
    return LayerTable(
        layer_types=names,
        keys=keys,
        costs=costs,
        shared_parameters=_shared_parameters(graph, shards),
        boundary_bytes=_boundary_bytes(graph, shards, workload),
        valid=valid,
        sources=sources,
    )


def _shared_parameters(graph: ModelGraph, shards: Shards) -> Ints:
    total: Any = np.zeros(len(np.atleast_1d(shards.tp)), dtype=np.int64)
    for shared in graph.shared_parameters:
        for name in shared.layer_types[1:]:
            layer = graph.layer_types[name]
            weights = [parameter for parameter in layer.parameters if parameter.name == shared.name]
            total = total + sum(parameter_elements(layer, parameter, shards) for parameter in weights)
    return np.asarray(total, dtype=np.int64)


def _boundary_bytes(graph: ModelGraph, shards: Shards, workload: Workload) -> Ints:
    """Bytes of the tensor between two layers, at its largest over the layer types."""
    largest: Any = np.zeros(len(np.atleast_1d(shards.tp)), dtype=np.int64)
    for block in graph.blocks:
        layer = graph.layer_types[block.layer_type]
        dims = layer.tensors[layer.input].dims if layer.input else ()
        if dims:
            size = local_elements(layer, dims, tensor_region(layer, dims), shards) * workload.element_bytes
            largest = np.maximum(largest, size)
    return np.asarray(largest, dtype=np.int64)
