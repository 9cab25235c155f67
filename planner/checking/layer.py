"""What one layer takes on one device under a plan, op by op, in plain numbers.

A tensor's local size is (tokens of its place) x (local widths of its other dims). There are three places: ``split``,
where tokens are shared out over cp and, with sequence parallelism, tp; ``whole``, where a rank has all tokens of its
context shard, for tensors with a dim that tp splits; ``experts``, for tensors of chosen experts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from costmodels import collectives
from costmodels.compute import kernel_time, memory_time
from costmodels.kernels import Engine, Kernel, kernel_for
from costmodels.stacks import Stack
from planner.checking.mesh import group_by_level
from planner.graph import BATCH, CHOICES, SEQ, Axis, Layer, Measurement, ModelGraph, Op, OpKind
from planner.plan import Plan
from planner.strategy import SELECTIVE_MODULES, CpKind, Recompute
from planner.workload import Attention

SPLIT, WHOLE, EXPERTS = "split", "whole", "experts"
"""Places of tokens."""
GATHER, REDUCE, TRAVEL, SPREAD = "gather", "reduce", "travel", "spread"
"""Exchanges: over tp before and after products, over ep, over etp."""

MERGE_BYTES = 12
"""Two reads and a write of an fp32 element, where a ring adds its parts up."""


@dataclass(slots=True, kw_only=True)
class LayerFigures:
    """One layer of a type on one device, for one microbatch."""

    compute_forward: float
    compute_backward: float
    """Both gradients [s]."""
    tp_forward: float
    tp_backward: float
    ep_forward: float
    """The backward pass takes as long again [s]."""
    cp_forward: float
    """What attention does not hide [s]."""
    cp_backward: float
    repeated: dict[Recompute, float]
    """Forward work done again in the backward pass [s]."""
    saved: dict[Recompute, int]
    """Kept for the backward pass [bytes]."""
    working: dict[Recompute, int]
    """Above what is kept [bytes]."""
    dense: int
    """Weights outside the experts."""
    expert: int
    """Weights in the experts."""
    known: bool = True
    """False for an opaque layer without a measurement."""

    @property
    def forward(self) -> float:
        """Forward pass [s]."""
        return math.fsum((self.compute_forward, self.tp_forward, self.ep_forward, self.cp_forward))

    @property
    def backward(self) -> float:
        """Backward pass without recomputation [s]."""
        return math.fsum((self.compute_backward, self.tp_backward, self.ep_forward, self.cp_backward))


def layer_figures(name: str, plan: Plan, stack: Stack) -> LayerFigures:
    """The figures of a layer type: analytic, or measured where the model has rows for this setting."""
    layer = plan.model.layer_types[name]
    figures = _Account(layer, plan, stack).figures()
    rows = [row for row in plan.model.measurements if row.layer_type == name and _is_of_setting(row, plan)]
    for row in rows:
        if row.recompute == "none":
            _use_plain(figures, row)
    for kind in (Recompute.SELECTIVE, Recompute.FULL):
        for row in rows:
            if row.recompute == kind:
                figures.repeated[kind] = max(0.0, row.backward - figures.compute_backward)
                _use_memory(figures, row, kind)
    figures.known = not layer.opaque or any(row.recompute == "none" for row in rows)
    return figures


def _is_of_setting(row: Measurement, plan: Plan) -> bool:
    strategy = plan.strategy
    mine = (strategy.tp, strategy.cp, strategy.ep, strategy.etp, strategy.microbatch_size, plan.workload.seq_len)
    measured = (row.tp, row.cp, row.ep, row.etp, row.microbatch_size, row.seq_len)
    return row.device == plan.cluster.device.name and mine == measured


def _use_plain(figures: LayerFigures, row: Measurement) -> None:
    """A measured run holds the layer's own collectives; half its backward is for weights, the other for inputs."""
    figures.compute_forward, figures.compute_backward = row.forward, row.backward
    figures.tp_forward = figures.tp_backward = figures.ep_forward = figures.cp_forward = figures.cp_backward = 0.0
    figures.repeated[Recompute.FULL] = row.forward
    if row.saved is not None:  # what a kind frees stays as computed; full recomputation holds the measured bytes once
        more = row.saved - figures.saved[Recompute.NONE]
        figures.saved[Recompute.SELECTIVE] = max(0, figures.saved[Recompute.SELECTIVE] + more)
        figures.working[Recompute.FULL] = max(0, figures.working[Recompute.FULL] + more)
    if row.peak is not None:
        above = row.peak - figures.working[Recompute.NONE]
        for kind in (Recompute.SELECTIVE, Recompute.FULL):
            figures.working[kind] = max(0, figures.working[kind] + above)
    _use_memory(figures, row, Recompute.NONE)


def _use_memory(figures: LayerFigures, row: Measurement, kind: Recompute) -> None:
    if row.saved is not None:
        figures.saved[kind] = row.saved
    if row.peak is not None:
        figures.working[kind] = row.peak


def split_size(layer: Layer, dim_name: str, plan: Plan) -> int:
    """Elements of a dim on one rank."""
    dim, strategy = layer.dims[dim_name], plan.strategy
    if dim.axis is None:
        return dim.size
    degree = {Axis.TP: strategy.tp, Axis.EP: strategy.ep, Axis.ETP: strategy.etp}[dim.axis]
    if dim.padded:
        unit = dim.granularity * degree
        return (dim.size + unit - 1) // unit * dim.granularity
    if dim.replicable and degree > dim.size:
        return 1
    return dim.size // degree if dim.replicable else (dim.size + degree - 1) // degree


def num_weights(layer: Layer, dims: Sequence[str], plan: Plan) -> int:
    """Elements of a weight on one rank, before any sharding of states."""
    return math.prod(split_size(layer, name, plan) for name in dims)


class _Account:
    """Reads one layer's ops and adds up."""

    def __init__(self, layer: Layer, plan: Plan, stack: Stack) -> None:
        self.layer, self.plan, self.stack = layer, plan, stack
        self.strategy, self.workload = plan.strategy, plan.workload
        self.device = plan.cluster.device
        self.size = plan.workload.element_bytes
        self.links = [level.link for level in plan.cluster.levels]
        self.dropped = set(SELECTIVE_MODULES)
        if plan.workload.attention is Attention.UNFUSED:
            self.dropped.add("core_attn")

    # Local sizes

    def width(self, dims: Sequence[str]) -> int:
        """Local elements of one token."""
        return math.prod(split_size(self.layer, name, self.plan) for name in dims if name not in (BATCH, SEQ))

    def tokens(self, place: str) -> int:
        return local_tokens(self.plan, place)

    def place(self, dims: Sequence[str]) -> str:
        return place_of(self.layer, dims)

    def local(self, tensor: str, place: str | None = None) -> int:
        """Local elements of a tensor, where it lies or as it would be in another place."""
        dims = self.layer.tensors[tensor].dims
        return self.tokens(place or self.place(dims)) * self.width(dims)

    def home(self, op: Op) -> str:
        """Where an op works."""
        if op.kind is OpKind.DISPATCH:
            return EXPERTS
        if op.kind in (OpKind.COMBINE, OpKind.ROUTER):
            return SPLIT
        return self.place((*self.layer.tensors[op.output].dims, *op.sums))

    # Compute

    def kernel(self, op: Op) -> Kernel:
        return kernel_for(op.kind.value, self.workload.attention.value)

    def seen_pairs(self, op: Op) -> float:
        """Query-key pairs that are not masked, over the local heads and tokens."""
        return self.tokens(WHOLE) * self.num_heads(op) * keys_seen(op, self.workload.seq_len)

    def square(self, op: Op) -> int:
        """All query-key pairs, masked ones too."""
        return self.tokens(WHOLE) * self.num_heads(op) * self.workload.seq_len

    def num_heads(self, op: Op) -> int:
        return self.width(self.layer.tensors[op.inputs[0]].dims[:-1])

    def op_time(self, op: Op) -> float:
        """Forward time of an op [s]."""
        home, kernel = self.home(op), self.kernel(op)
        elements = self.local(op.output, WHOLE if op.kind is OpKind.EMBEDDING else home)
        product = 2.0 * elements * math.prod(split_size(self.layer, name, self.plan) for name in op.sums)
        for name in op.inputs:
            own = self.place(self.layer.tensors[name].dims)
            elements += self.local(name, home if own == SPLIT else own)
        if kernel.engine is Engine.GEMM:
            elements += sum(num_weights(self.layer, weight.dims, self.plan) for weight in op.parameters)
        moved = float(self.size * elements)
        if kernel.score_traffic:
            moved += kernel.score_traffic * self.square(op)
        if kernel.engine is Engine.MEMORY:
            return float(memory_time(moved, self.device))
        if op.kind is OpKind.ATTENTION:
            pairs = self.square(op) if kernel.score_traffic else self.seen_pairs(op)
            product = pairs * pair_flops(self.layer, op)
        elif op.kind is OpKind.GROUPED_LINEAR:
            product *= self.workload.expert_imbalance
        return float(kernel_time(product, moved, self.device, kernel.engine, self.workload.precision.value))

    # Communication

    def exchanges(self) -> Iterator[tuple[str, Op, tuple[str, ...]]]:
        """(what, op, dims of the tensor that moves) in the forward pass; what is gathered once is read by all."""
        present: set[str] = set()
        for op in self.layer.ops:
            if self.home(op) == WHOLE:
                for name in op.inputs:
                    if self.place(self.layer.tensors[name].dims) == SPLIT and name not in present:
                        present.add(name)
                        yield GATHER, op, self.layer.tensors[name].dims
                if any(name in self.layer.dims and self.layer.dims[name].axis is Axis.TP for name in op.sums):
                    yield REDUCE, op, self.layer.tensors[op.output].dims
            elif op.kind is OpKind.DISPATCH:
                yield TRAVEL, op, self.layer.tensors[op.output].dims
                yield SPREAD, op, self.layer.tensors[op.output].dims
            if op.kind is OpKind.COMBINE:
                yield SPREAD, op, self.layer.tensors[op.inputs[0]].dims
                yield TRAVEL, op, self.layer.tensors[op.inputs[0]].dims

    def exchange_times(self, what: str, dims: tuple[str, ...]) -> tuple[float, float]:
        """Forward and backward time of an exchange [s]."""
        strategy, cluster = self.strategy, self.plan.cluster
        if what in (GATHER, REDUCE):
            num_bytes = self.size * self.tokens(WHOLE) * self.width(dims)
            ranks = group_by_level([(strategy.tp, 1)], cluster)
            once = float(collectives.reduce_scatter_time(num_bytes, ranks, self.links))
            if strategy.sequence_parallel:
                return once, once
            return (0.0, 2 * once) if what == GATHER else (2 * once, 0.0)
        rows = self.tokens(EXPERTS) * self.width(dims) * self.size
        if what == TRAVEL:
            share = rows / strategy.etp * self.workload.expert_imbalance
            ranks = group_by_level([(strategy.ep, strategy.etp)], cluster)
            once = float(collectives.all_to_all_time(share, ranks, self.links))
        else:
            ranks = group_by_level([(strategy.etp, 1)], cluster)
            once = float(collectives.all_gather_time(rows, ranks, self.links))
        return once, once

    def context_times(self, op: Op) -> tuple[float, float]:
        """Forward and backward communication of one attention over context shards [s]."""
        ranks = group_by_level([(self.strategy.cp, self.strategy.tp)], self.plan.cluster)
        if self.strategy.cp_kind is CpKind.RING:
            num_bytes = self.size * (self.local(op.inputs[1]) + self.local(op.inputs[2]))
            once = float(collectives.ring_exchange_time(num_bytes, ranks, self.links))
            return once, 2 * once
        tensors = (*op.inputs, op.output)
        parts = [collectives.all_to_all_time(self.size * self.local(name), ranks, self.links) for name in tensors]
        return math.fsum(parts), math.fsum(parts)

    def merge_times(self, op: Op) -> tuple[float, float]:
        """Forward and backward time of adding up a ring's parts: of the output, of the inputs' gradients [s]."""
        if self.strategy.cp_kind is not CpKind.RING:
            return 0.0, 0.0
        inputs = sum(self.local(name) for name in op.inputs)
        ahead, back = (
            float(memory_time(MERGE_BYTES * elements, self.device)) for elements in (self.local(op.output), inputs)
        )
        return (self.strategy.cp - 1) * ahead, (self.strategy.cp - 1) * back

    # Memory

    def kept(self, selective: bool) -> int:
        """Bytes kept for the backward pass without full recomputation: tensors once, and what kernels keep besides."""
        tensors: set[str] = set()
        again: set[str] = set()
        extra = 0
        for op in self.layer.ops:
            kernel = self.kernel(op)
            tensors |= set(op.inputs) if kernel.saves_inputs else set()
            tensors |= {op.output} if kernel.saves_output else set()
            if selective and op.module in self.dropped:
                if op.kind is not OpKind.ATTENTION:  # its output stays, for the projection
                    again.add(op.output)
                continue
            dims = self.layer.tensors[op.output].dims
            extra += kernel.element_bytes * self.local(op.output)
            extra += kernel.row_bytes * self.tokens(self.place(dims)) * self.width(dims[:-1])
            extra += kernel.input_bytes * self.local(op.inputs[0]) if kernel.input_bytes else 0
            if kernel.score_bytes:
                extra += kernel.score_bytes * self.square(op)
        again -= {self.layer.input or ""}
        return extra + self.size * sum(self.local(name) for name in tensors - again)

    def largest_working_set(self) -> int:
        """Bytes of the op with most: its output, its inputs, and gathered inputs beside their gradients."""
        most = 0
        for op in self.layer.ops:
            elements = self.local(op.output)
            for name in op.inputs:
                is_split = self.place(self.layer.tensors[name].dims) == SPLIT
                gathered = is_split and self.home(op) == WHOLE
                elements += 2 * self.local(name, WHOLE) if gathered else self.local(name)
            most = max(most, self.size * elements)
        return most

    def figures(self) -> LayerFigures:
        """All figures, from the ops alone."""
        layer, stack, none = self.layer, self.stack, Recompute.NONE
        times = [self.op_time(op) for op in layer.ops]
        backwards = [self.kernel(op).backward * time for op, time in zip(layer.ops, times, strict=True)]
        cheap = [time for op, time in zip(layer.ops, times, strict=True) if op.module in self.dropped]
        attention = [op for op in layer.ops if op.kind is OpKind.ATTENTION]
        window = math.fsum(time for op, time in zip(layer.ops, times, strict=True) if op in attention)
        window_back = math.fsum(time for op, time in zip(layer.ops, backwards, strict=True) if op in attention)
        context = [self.context_times(op) for op in attention]
        tp: list[tuple[float, float]] = []
        ep: list[float] = []
        for what, op, dims in self.exchanges():
            ahead, back = self.exchange_times(what, dims)
            if what in (GATHER, REDUCE):
                tp.append((ahead, back))
                cheap += [ahead] if op.module in self.dropped else []
            else:
                ep.append(ahead)
        floor, floor_back = (
            len(layer.ops) * value for value in (stack.launch_floor_forward, stack.launch_floor_backward)
        )
        window += max(0.0, floor - math.fsum(times))  # a device that waits for launches can receive meanwhile
        window_back += max(0.0, floor_back - math.fsum(backwards))
        if self.strategy.cp_kind is not CpKind.RING:
            window = window_back = 0.0  # an all-to-all stands between the products: nothing hides it
        merges = [self.merge_times(op) for op in attention]
        compute_forward = max(math.fsum(times), floor) + sum(ahead for ahead, _ in merges)
        compute_backward = max(math.fsum(backwards), floor_back) + sum(back for _, back in merges)
        cp_forward = max(0.0, math.fsum(pair[0] for pair in context) - window)
        cp_backward = max(0.0, math.fsum(pair[1] for pair in context) - window_back)
        tp_forward = math.fsum(pair[0] for pair in tp)
        full = math.fsum((compute_forward, tp_forward, *ep, cp_forward))
        entry = self.size * self.local(layer.input) if layer.input else 0
        saved = {
            none: entry if layer.opaque else self.kept(selective=False),
            Recompute.SELECTIVE: entry if layer.opaque else self.kept(selective=True),
            Recompute.FULL: entry,
        }
        most = self.largest_working_set()
        made_again = {
            op.output
            for op in layer.ops
            if op.module in self.dropped and op.kind is not OpKind.ATTENTION and op.output != layer.input
        }
        freed = max((self.size * self.local(name) for name in made_again), default=0)
        weights = [weight for op in layer.ops for weight in op.parameters]
        expert = [weight for weight in weights if any(layer.dims[name].axis is Axis.EP for name in weight.dims)]
        num_expert = sum(num_weights(layer, weight.dims, self.plan) for weight in expert)
        num_all = sum(num_weights(layer, weight.dims, self.plan) for weight in weights)
        return LayerFigures(
            compute_forward=compute_forward,
            compute_backward=compute_backward,
            tp_forward=tp_forward,
            tp_backward=math.fsum(pair[1] for pair in tp),
            ep_forward=math.fsum(ep),
            cp_forward=cp_forward,
            cp_backward=cp_backward,
            repeated={none: 0.0, Recompute.SELECTIVE: math.fsum(cheap), Recompute.FULL: full},
            saved=saved,
            working={none: most, Recompute.SELECTIVE: most + freed, Recompute.FULL: most + saved[none]},
            dense=num_all - num_expert + -(-layer.opaque_parameters // self.strategy.tp),
            expert=num_expert,
        )


def place_of(layer: Layer, dims: Sequence[str]) -> str:
    """Place of a tensor with these dims."""
    if CHOICES in dims:
        return EXPERTS
    return WHOLE if any(name in layer.dims and layer.dims[name].axis is Axis.TP for name in dims) else SPLIT


def local_tokens(plan: Plan, place: str) -> int:
    """Tokens of a microbatch that a rank has in a place."""
    strategy = plan.strategy
    total = strategy.microbatch_size * plan.workload.seq_len
    ways = strategy.cp * (strategy.tp if strategy.sequence_parallel and place != WHOLE else 1)
    return (total + ways - 1) // ways * (strategy.etp if place == EXPERTS else 1)


def keys_seen(op: Op, seq_len: int) -> float:
    """Keys that a query sees on average: query i of a causal attention sees min(i, window)."""
    window = min(seq_len, op.window if op.window else seq_len)
    if not op.causal:
        return float(window)
    growing = window * (window + 1) // 2
    return (growing + window * (seq_len - window)) / seq_len


def pair_flops(layer: Layer, op: Op) -> int:
    """FLOPs of one query-key pair of a head: a product of the head size for the score, one of the value size after."""
    query, value = (layer.tensors[op.inputs[index]].dims[-1] for index in (0, 2))
    return 2 * layer.dims[query].size + 2 * layer.dims[value].size


def sequence_flops(model: ModelGraph, seq_len: int) -> float:
    """FLOPs of forward and backward (two products for each) of one sequence, nothing split, padded or repeated.

    A layer without ops counts as one product of all its weights.
    """
    parts = []
    for block in model.blocks:
        layer = model.layer_types[block.layer_type]
        parts.append(6.0 * block.count * seq_len * layer.opaque_parameters)
        for op in layer.ops:
            widths = [layer.dims[name].size for name in layer.tensors[op.output].dims if name not in (BATCH, SEQ)]
            if op.kind is OpKind.ATTENTION:
                pairs = seq_len * math.prod(widths[:-1]) * keys_seen(op, seq_len)
                parts.append(3.0 * block.count * pairs * pair_flops(layer, op))
            elif op.kind in (OpKind.LINEAR, OpKind.GROUPED_LINEAR):
                summed = math.prod(layer.dims[name].size for name in op.sums if name in layer.dims)
                parts.append(6.0 * block.count * seq_len * math.prod(widths) * summed)
    return math.fsum(parts)
