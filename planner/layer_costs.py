"""What one layer of a type costs, from its ops: times, bytes kept and weights, for many splits at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels import collectives
from costmodels.compute import kernel_time, memory_time
from costmodels.kernels import Engine, Kernel, kernel_for
from costmodels.stacks import Stack
from hardware import Cluster
from planner.flops import attention_flops_per_pair, mean_context
from planner.graph import Layer, Op, OpKind
from planner.placement import ranks_by_level
from planner.sharding import (
    Exchange,
    Region,
    Shards,
    is_expert,
    layer_exchanges,
    local_size,
    op_region,
    parameter_elements,
    row_elements,
    tensor_region,
)
from planner.strategy import SELECTIVE_MODULES, CpKind
from planner.workload import Attention, Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CP_KINDS = (CpKind.RING, CpKind.ULYSSES)
"""Order of the context-parallel axis of a table."""

MERGE_BYTES = 12
"""Traffic of adding one element to an fp32 sum: two reads and a write."""

EXACT_BYTES = 2**62
"""Above this, int64 bytes would wrap around."""

MOST_BYTES_PER_ELEMENT = 16
"""At least what any op keeps and works with per element of its inputs and output: sums of it stay below 2**63."""


class Kind(IntEnum):
    """Index of a kind of recomputation in table arrays."""

    NONE = 0
    SELECTIVE = 1
    FULL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """Raw costs of one layer type under one kind of context parallelism. [key] unless said otherwise."""

    forward: Floats
    """Compute of the forward pass [s]."""
    input_grad: Floats
    """Compute of the gradient of the inputs [s]."""
    weight_grad: Floats
    """Compute of the gradient of the weights [s]."""
    tp_forward: Floats
    """Tensor-parallel collectives of the forward pass [s]."""
    tp_backward: Floats
    """And of the backward pass [s]."""
    ep_forward: Floats
    """Expert-parallel collectives of the forward pass; the backward pass repeats them [s]."""
    cp_forward: Floats
    """Context-parallel communication of the forward pass [s]."""
    cp_backward: Floats
    """And of the backward pass [s]."""
    attention_forward: Floats
    """Attention, and the device's waiting for launches, that hide a ring's forward communication; 0 where nothing
    hides it [s]."""
    attention_backward: Floats
    """And the backward one [s]."""
    recompute: Floats
    """Forward work repeated, its collectives included. [kind, key] [s]"""
    saved: Ints
    """Bytes kept per microbatch. [kind, key]"""
    transient: Ints
    """Working memory above what is kept. [kind, key] [bytes]"""
    dense_parameters: Ints
    """Weights on a rank outside the experts."""
    expert_parameters: Ints
    """Weights on a rank in the experts."""

    def take(self, index: Ints) -> LayerCosts:
        """Some of the keys."""
        return LayerCosts(**{name: getattr(self, name)[..., index] for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """The combinations a table has rows for. Each [key]."""

    tp: Ints
    cp: Ints
    ep: Ints
    etp: Ints
    microbatch_size: Ints

    def shards(self, workload: Workload, sequence_parallel: bool) -> Shards:
        """Degrees for the sharding rules."""
        return Shards(
            tp=self.tp,
            cp=self.cp,
            ep=self.ep,
            etp=self.etp,
            microbatch_size=self.microbatch_size,
            seq_len=workload.seq_len,
            sequence_parallel=sequence_parallel,
        )


def analytic_costs(
    layer: Layer, keys: Keys, cluster: Cluster, workload: Workload, stack: Stack, sequence_parallel: bool
) -> dict[CpKind, LayerCosts]:
    """Costs of one layer type by kind of context parallelism.

    A layer without experts does not depend on ep and etp: it is costed once for each of the other combinations.
    """
    if layer.is_moe:
        return LayerCoster(layer, keys.shards(workload, sequence_parallel), cluster, workload, stack).costs()
    first, inverse = distinct_rows(keys.tp, keys.cp, keys.microbatch_size)
    one = np.ones(len(first), dtype=np.int64)
    plain = Keys(tp=keys.tp[first], cp=keys.cp[first], ep=one, etp=one, microbatch_size=keys.microbatch_size[first])
    shards = plain.shards(workload, sequence_parallel)
    costs = LayerCoster(layer, shards, cluster, workload, stack).costs()
    return {kind: cost.take(inverse) for kind, cost in costs.items()}


def distinct_rows(*columns: Ints) -> tuple[Ints, Ints]:
    """Where each distinct combination of columns first stands, in increasing order, and which one each row is."""
    packed = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        packed = packed * len(values) + codes  # below the product of the distinct counts, far from 2**63
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    return first, inverse


def check_sizes(layer: Layer, keys: Keys, workload: Workload, sequence_parallel: bool) -> None:
    """Raise where integer sums over the layer could wrap around: the same sums in floats, which cannot."""
    degrees = {name: getattr(keys, name).astype(np.float64) for name in Keys.__slots__}
    shards = Keys(**degrees).shards(workload, sequence_parallel)
    rows: Any = np.zeros(len(keys.tp))
    weights: Any = np.ceil(layer.opaque_parameters / shards.tp)
    scores: Any = np.zeros(len(keys.tp))
    for op in layer.ops:
        for name in (*op.inputs, op.output):
            rows = rows + row_elements(layer, layer.tensors[name].dims, shards)
        for parameter in op.parameters:
            weights = weights + parameter_elements(layer, parameter, shards)
        if op.kind is OpKind.ATTENTION:
            heads = row_elements(layer, layer.tensors[op.inputs[0]].dims[:-1], shards)
            scores = scores + heads * float(workload.seq_len)
    if layer.opaque and layer.input:
        rows = rows + row_elements(layer, layer.tensors[layer.input].dims, shards)
    tokens = np.maximum(shards.num_tokens(Region.TENSOR), shards.num_tokens(Region.EXPERT))
    largest = float(np.max(MOST_BYTES_PER_ELEMENT * (tokens * (rows + scores) + weights), initial=0.0))
    if not largest <= EXACT_BYTES:
        raise ValueError(_too_large(layer))


def _too_large(layer: Layer) -> str:
    return f"layer {layer.name}: more than {EXACT_BYTES:.1e} bytes on one rank; sizes are too large"


class LayerCoster:
    """Adds up the ops of one layer type for all keys at once."""

    def __init__(
        self,
        layer: Layer,
        shards: Shards,
        cluster: Cluster,
        workload: Workload,
        stack: Stack,
    ) -> None:
        self.layer, self.shards = layer, shards
        self.cluster, self.workload, self.stack = cluster, workload, stack
        self.links = [level.link for level in cluster.levels]
        self.zero = np.zeros(len(np.atleast_1d(shards.tp)))
        self._sizes: dict[tuple[tuple[str, ...], Region], Any] = {}
        self._tokens: dict[Region, Any] = {}
        self.cheap = set(SELECTIVE_MODULES) | ({"core_attn"} if workload.attention is Attention.UNFUSED else set())

    def costs(self) -> dict[CpKind, LayerCosts]:
        """Costs by kind of context parallelism."""
        forward, input_grad, weight_grad, cheap = self.zero, self.zero, self.zero, self.zero
        attention = [self.zero, self.zero]
        for op in self.layer.ops:
            time = self.op_time(op)
            kernel = self.kernel(op)
            halves = time if kernel.engine is Engine.GEMM else self.zero
            forward = forward + time
            weight_grad = weight_grad + halves
            input_grad = input_grad + kernel.backward * time - halves
            if op.module in self.cheap:
                cheap = cheap + time
            if op.kind is OpKind.ATTENTION:
                attention = [attention[0] + time, attention[1] + kernel.backward * time]
        idle_forward = np.maximum(0.0, len(self.layer.ops) * self.stack.launch_floor_forward - forward)
        least = len(self.layer.ops) * self.stack.launch_floor_backward
        idle_backward = np.maximum(0.0, least - weight_grad - input_grad)
        forward, input_grad = forward + idle_forward, input_grad + idle_backward
        tp_forward, tp_backward, tp_cheap = self.tensor_parallel_times()
        ep_forward = self.expert_parallel_time()
        saved = np.stack([self.saved(Kind.NONE), self.saved(Kind.SELECTIVE), self.saved(Kind.FULL)])
        transient = self.transients(saved[Kind.NONE])
        dense, expert = self.parameters()
        costs = {}
        for kind in CP_KINDS:
            cp_forward, cp_backward = self.context_parallel_times(kind)
            merge_forward, merge_backward = self.ring_merge_times(kind)
            hides = 1.0 if kind is CpKind.RING else 0.0
            work = forward + merge_forward
            full = work + tp_forward + ep_forward + np.maximum(0.0, cp_forward - hides * (attention[0] + idle_forward))
            costs[kind] = LayerCosts(
                forward=work,
                input_grad=input_grad + merge_backward,
                weight_grad=weight_grad,
                tp_forward=tp_forward,
                tp_backward=tp_backward,
                ep_forward=ep_forward,
                cp_forward=cp_forward,
                cp_backward=cp_backward,
                attention_forward=hides * (attention[0] + idle_forward),
                attention_backward=hides * (attention[1] + idle_backward),
                recompute=np.stack([self.zero, cheap + tp_cheap, full]),
                saved=saved,
                transient=transient,
                dense_parameters=dense,
                expert_parameters=expert,
            )
        return costs

    def kernel(self, op: Op) -> Kernel:
        return kernel_for(op.kind.value, self.workload.attention.value)

    def elements(self, dims: tuple[str, ...], region: Region | None = None) -> Any:
        region = tensor_region(self.layer, dims) if region is None else region
        if (dims, region) not in self._sizes:
            self._sizes[dims, region] = self.tokens(region) * row_elements(self.layer, dims, self.shards)
        return self._sizes[dims, region]

    def tokens(self, region: Region) -> Any:
        if region not in self._tokens:
            self._tokens[region] = self.shards.num_tokens(region)
        return self._tokens[region]

    def tensor_elements(self, name: str, region: Region | None = None) -> Any:
        return self.elements(self.layer.tensors[name].dims, region)

    def op_time(self, op: Op) -> Floats:
        """Forward time of one op [s]."""
        region, kernel, device = op_region(self.layer, op), self.kernel(op), self.cluster.device
        size = self.workload.element_bytes
        inputs: Any = 0
        for name in op.inputs:
            dims = self.layer.tensors[name].dims
            own = tensor_region(self.layer, dims)
            inputs = inputs + self.elements(dims, region if own is Region.SEQUENCE else own)
        output_region = region if op.kind is not OpKind.EMBEDDING else Region.TENSOR
        output = self.elements(self.layer.tensors[op.output].dims, output_region)
        weights: Any = 0
        if kernel.engine is Engine.GEMM:
            for parameter in op.parameters:
                weights = weights + parameter_elements(self.layer, parameter, self.shards)
        moved = size * np.asarray(inputs + output + weights, dtype=np.float64)
        if kernel.score_traffic:
            moved = moved + kernel.score_traffic * self.full_scores(op).astype(np.float64)
        if kernel.engine is Engine.MEMORY:
            return np.asarray(memory_time(moved, device)) + self.zero
        precision = self.workload.precision.value
        return np.asarray(kernel_time(self.flops(op, output), moved, device, kernel.engine, precision)) + self.zero

    def flops(self, op: Op, output: Any) -> Any:
        """FLOPs of a matrix product or attention on one rank."""
        if op.kind is OpKind.ATTENTION:
            pairs = self.full_scores(op) if self.kernel(op).score_traffic else self.scores(op)
            return pairs.astype(np.float64) * attention_flops_per_pair(self.layer, op)
        flops = 2.0 * np.asarray(output, dtype=np.float64)
        for name in op.sums:
            flops = flops * local_size(self.layer.dims[name], self.shards)
        if op.kind is OpKind.GROUPED_LINEAR:
            flops = flops * self.workload.expert_imbalance
        return flops

    def scores(self, op: Op) -> Any:
        """Query-key pairs of an attention op on one rank that are not masked."""
        query = self.layer.tensors[op.inputs[0]]
        heads = row_elements(self.layer, query.dims[:-1], self.shards)
        tokens = self.tokens(Region.TENSOR)
        return np.asarray(tokens * heads, dtype=np.float64) * mean_context(op, self.workload.seq_len)

    def level_ranks(self, size: Any, stride: Any) -> Sequence[Any]:
        return ranks_by_level([(size, stride)], self.cluster)

    def tensor_parallel_times(self) -> tuple[Floats, Floats, Floats]:
        """Forward, backward, and the part of forward that selective recomputation repeats [s]."""
        forward, backward, cheap = self.zero, self.zero, self.zero
        ranks = self.level_ranks(self.shards.tp, 1)
        sequence_parallel = self.shards.sequence_parallel
        for exchange, op, dims in layer_exchanges(self.layer):
            if exchange not in (Exchange.TP_GATHER, Exchange.TP_REDUCE):
                continue
            num_bytes = self.workload.element_bytes * self.elements(dims, Region.TENSOR)
            half = collectives.reduce_scatter_time(num_bytes, ranks, self.links)
            ahead = half if sequence_parallel else (2 * half if exchange is Exchange.TP_REDUCE else self.zero)
            forward = forward + ahead
            backward = backward + (half if sequence_parallel else 2 * half - ahead)
            if op.module in self.cheap:
                cheap = cheap + ahead
        return forward, backward, cheap

    def expert_parallel_time(self) -> Floats:
        """All-to-alls over ep and exchanges over etp in one forward pass [s]."""
        total = self.zero
        for exchange, _, dims in layer_exchanges(self.layer):
            if exchange is Exchange.EP_ALL_TO_ALL:
                num_bytes = self.workload.element_bytes * self.elements(dims, Region.EXPERT) / self.shards.etp
                num_bytes = num_bytes * self.workload.expert_imbalance
                ranks = self.level_ranks(self.shards.ep, self.shards.etp)
                total = total + collectives.all_to_all_time(num_bytes, ranks, self.links)
            elif exchange is Exchange.ETP_EXCHANGE:
                num_bytes = self.workload.element_bytes * self.elements(dims, Region.EXPERT)
                ranks = self.level_ranks(self.shards.etp, 1)
                total = total + collectives.all_gather_time(num_bytes, ranks, self.links)
        return total

    def context_parallel_times(self, kind: CpKind) -> tuple[Floats, Floats]:
        """Forward and backward communication of attention over context shards [s]."""
        forward, backward = self.zero, self.zero
        ranks = self.level_ranks(self.shards.cp, self.shards.tp)
        size = self.workload.element_bytes
        for op in self.layer.ops:
            if op.kind is not OpKind.ATTENTION:
                continue
            keys_values = size * (self.tensor_elements(op.inputs[1]) + self.tensor_elements(op.inputs[2]))
            if kind is CpKind.RING:
                once = collectives.ring_exchange_time(keys_values, ranks, self.links)
                forward, backward = forward + once, backward + 2 * once
            else:
                swapped = [size * self.tensor_elements(name) for name in (*op.inputs, op.output)]
                once = sum(collectives.all_to_all_time(part, ranks, self.links) for part in swapped)
                forward, backward = forward + once, backward + once
        return forward, backward

    def ring_merge_times(self, kind: CpKind) -> tuple[Floats, Floats]:
        """Compute that a ring adds: each step's part is merged into fp32 sums, forward and backward [s].

        ``(cp - 1)`` steps; forward the output, backward the gradients of query, key and value are read, added to and
        written.
        """
        forward, backward = self.zero, self.zero
        if kind is not CpKind.RING:
            return forward, backward
        for op in self.layer.ops:
            if op.kind is OpKind.ATTENTION:
                output = self.tensor_elements(op.output)
                inputs = sum(self.tensor_elements(name) for name in op.inputs)
                steps = self.shards.cp - 1
                forward = forward + steps * memory_time(MERGE_BYTES * output, self.cluster.device)
                backward = backward + steps * memory_time(MERGE_BYTES * inputs, self.cluster.device)
        return forward, backward

    def saved(self, kind: Kind) -> Ints:
        """Bytes kept from the forward to the backward pass of one microbatch."""
        size = self.workload.element_bytes
        if kind is Kind.FULL or self.layer.opaque:
            total = size * self.tensor_elements(self.layer.input) if self.layer.input else 0
            return self.exact(total)
        kept: set[str] = set()
        total = 0
        freed = self.freed() if kind is Kind.SELECTIVE else set()
        for op in self.layer.ops:
            kernel = self.kernel(op)
            if kernel.saves_inputs:
                kept.update(op.inputs)
            if kernel.saves_output:
                kept.add(op.output)
            if kind is Kind.SELECTIVE and op.module in self.cheap:
                continue
            dims = self.layer.tensors[op.output].dims
            total = total + kernel.element_bytes * self.elements(dims)
            total = total + kernel.row_bytes * self.elements(dims[:-1], tensor_region(self.layer, dims))
            if kernel.input_bytes:
                total = total + kernel.input_bytes * self.tensor_elements(op.inputs[0])
            if kernel.score_bytes:
                total = total + kernel.score_bytes * self.full_scores(op)
        for name in sorted(kept - freed):
            total = total + size * self.tensor_elements(name)
        return self.exact(total)

    def full_scores(self, op: Op) -> Any:
        """Elements of the score matrix that an unfused kernel materialises (masked ones too)."""
        query = self.layer.tensors[op.inputs[0]]
        heads = row_elements(self.layer, query.dims[:-1], self.shards)
        return self.tokens(Region.TENSOR) * heads * self.workload.seq_len

    def freed(self) -> set[str]:
        """Tensors that selective recomputation does not keep. Core attention keeps its output: it is made again for its
        scores, and the projection behind it needs the output too."""
        cheap = {op.output for op in self.layer.ops if op.module in self.cheap and op.kind is not OpKind.ATTENTION}
        return cheap - {self.layer.input}

    def transients(self, saved: Ints) -> Ints:
        """Working memory by kind of recomputation: gathered inputs, and gradients of an op's inputs and output."""
        size = self.workload.element_bytes
        largest: Any = self.exact(0)
        for op in self.layer.ops:
            region = op_region(self.layer, op)
            total: Any = self.tensor_elements(op.output)
            for name in op.inputs:
                own = tensor_region(self.layer, self.layer.tensors[name].dims)
                gathered = own is Region.SEQUENCE and region is Region.TENSOR
                total = total + self.tensor_elements(name, region if gathered else own) * (2 if gathered else 1)
            largest = np.maximum(largest, size * total)
        freed: Any = self.exact(0)
        for name in sorted(self.freed()):
            freed = np.maximum(freed, size * self.tensor_elements(name))
        return np.stack([self.exact(largest), self.exact(largest + freed), self.exact(largest + saved)])

    def parameters(self) -> tuple[Ints, Ints]:
        """Weights on one rank: outside the experts, in the experts."""
        dense: Any = -(-self.layer.opaque_parameters // self.shards.tp)
        expert: Any = 0
        for op in self.layer.ops:
            for parameter in op.parameters:
                size = parameter_elements(self.layer, parameter, self.shards)
                if is_expert(self.layer, parameter):
                    expert = expert + size
                else:
                    dense = dense + size
        return self.exact(dense), self.exact(expert)

    def exact(self, value: Any) -> Ints:
        """The value for every key as int64; a ValueError where it could have wrapped around."""
        array = np.asarray(value) + np.zeros(len(self.zero), dtype=np.int64)
        if array.dtype != np.int64 or (array.size and (array.min() < 0 or array.max() > EXACT_BYTES)):
            raise ValueError(_too_large(self.layer))
        return array
