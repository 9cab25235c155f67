"""A model as data: operators with named dims, layers, and the graph of layers.

Nothing here knows a device, a strategy or a cost. Which tensors autograd keeps and how fast an op runs are facts of an
implementation (``costmodels/kernels.yaml``); how dims are split over mesh axes is ``planner.sharding``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

BATCH = "batch"
"""Dim of sequences in a microbatch; its size is the microbatch size, so no layer declares it."""
SEQ = "seq"
"""Dim of query tokens of one sequence; its size is the workload's sequence length, so no layer declares it."""
CHOICES = "choices"
"""Dim of the experts that one token visits (top-k); tensors that have it live in the expert region."""


class OpKind(StrEnum):
    """What an op computes; the key of ``costmodels/kernels.yaml``."""

    LINEAR = "linear"
    GROUPED_LINEAR = "grouped_linear"
    ATTENTION = "attention"
    NORM = "norm"
    ACTIVATION = "activation"
    ROTARY = "rotary"
    RESIDUAL = "residual"
    DROPOUT = "dropout"
    EMBEDDING = "embedding"
    ROUTER = "router"
    DISPATCH = "dispatch"
    COMBINE = "combine"
    LOSS = "loss"


class Axis(StrEnum):
    """A mesh axis that may split a dim of a layer."""

    TP = "tp"
    EP = "ep"
    ETP = "etp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """A named dimension of a layer."""

    name: str
    """Unique within a layer."""
    size: int
    """Number of elements, at least 1."""
    granularity: int = 1
    """The dim may only be split into multiples of it [elements]."""
    axis: Axis | None = None
    """The mesh axis that splits it; ``None``: never split."""
    replicable: bool = False
    """Whether ranks may hold equal copies where the axis is larger than the dim (KV heads)."""
    padded: bool = False
    """Whether the dim is padded up to a multiple of granularity times degree (vocabulary)."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.granularity < 1:
            raise ValueError(
                f"dim {self.name}: size and granularity must be at least 1, got {self.size} and {self.granularity}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An activation of a layer."""

    name: str
    """Unique within a layer."""
    dims: tuple[str, ...]
    """Names of its dims; ``batch`` and ``seq`` are sized by the workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A weight of an op."""

    name: str
    """Unique within a layer."""
    dims: tuple[str, ...]
    """Names of its dims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operator: output[dims it keeps] = sum over the dims it sums of inputs and parameters."""

    name: str
    """Unique within a layer."""
    kind: OpKind
    """Which kernel family runs it."""
    inputs: tuple[str, ...]
    """Names of the tensors it reads."""
    output: str
    """Name of the tensor it writes."""
    sums: tuple[str, ...] = ()
    """Dims it sums over (the contracted dims of a matrix product)."""
    parameters: tuple[Parameter, ...] = ()
    """Its weights."""
    module: str | None = None
    """Name of the recompute module it belongs to (``layernorm``, ``core_attn``, ...); ``None``: only with full."""
    causal: bool = True
    """For attention: whether a query sees only keys before it."""
    window: int | None = None
    """For attention: the number of keys a query sees at most; ``None``: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A layer type: a small graph of ops, or an opaque block that only measurements describe."""

    name: str
    """The layer type's name, unique in the model."""
    dims: Mapping[str, Dim]
    """Its dims by name, without ``batch`` and ``seq``."""
    tensors: Mapping[str, Tensor]
    """Its activations by name."""
    ops: tuple[Op, ...]
    """In an order of execution; empty for an opaque layer."""
    input: str | None
    """Name of the tensor that comes from the layer before; ``None`` for the first layer."""
    output: str
    """Name of the tensor handed to the layer after."""
    opaque_parameters: int = 0
    """Parameters of an opaque layer, split evenly over tp [elements]."""

    def __post_init__(self) -> None:
        if self.opaque_parameters < 0:
            raise ValueError(f"layer {self.name}: parameters must be at least 0, got {self.opaque_parameters}")
        known = set(self.dims) | {BATCH, SEQ}
        for tensor in self.tensors.values():
            _check_names(self.name, f"tensor {tensor.name}", tensor.dims, known)
        made = {self.input} if self.input else set()
        for op in self.ops:
            for parameter in op.parameters:
                _check_names(self.name, f"parameter {parameter.name}", parameter.dims, known)
            _check_names(self.name, f"op {op.name}", op.sums, known)
            _check_names(self.name, f"op {op.name}", op.inputs, made)
            if op.output not in self.tensors:
                raise ValueError(f"layer {self.name}: op {op.name} writes the unknown tensor {op.output!r}")
            made.add(op.output)
        if self.ops and self.output not in made:
            raise ValueError(f"layer {self.name}: no op writes the output {self.output!r}")

    @property
    def opaque(self) -> bool:
        """Whether only measurements tell what the layer costs."""
        return not self.ops

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All weights, in the order of the ops."""
        return tuple(parameter for op in self.ops for parameter in op.parameters)

    def num_elements(self, dims: tuple[str, ...]) -> int:
        """Product of the sizes of dims that the layer declares [elements]."""
        return math.prod(self.dims[name].size for name in dims if name in self.dims)

    @property
    def num_parameters(self) -> int:
        """Number of weights, unpadded and unsharded."""
        return self.opaque_parameters + sum(self.num_elements(parameter.dims) for parameter in self.parameters)

    @property
    def is_moe(self) -> bool:
        """Whether the layer has experts."""
        return any(dim.axis is Axis.EP for dim in self.dims.values())


def _check_names(layer: str, what: str, names: tuple[str, ...], known: set[str] | set[str | None]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"layer {layer}: {what} names {name!r}, which is not known at that place")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A run of equal layers."""

    layer_type: str
    """Name of the layer type."""
    count: int
    """How many in a row, at least 1."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"block {self.layer_type}: count must be at least 1, got {self.count}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParameter:
    """A weight that several layer types use (a tied embedding): counted once, copied where stages differ."""

    name: str
    """Name of the parameter in each of the layer types."""
    layer_types: tuple[str, ...]
    """The first owns it, the others use a copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one layer type took on a device under one strategy, its collectives included."""

    layer_type: str
    """Name of the layer type."""
    device: str
    """Name of the device it ran on."""
    tp: int = 1
    """Tensor parallel degree."""
    cp: int = 1
    """Context parallel degree."""
    ep: int = 1
    """Expert parallel degree."""
    etp: int = 1
    """Expert tensor parallel degree."""
    microbatch_size: int
    """Sequences in the microbatch."""
    seq_len: int
    """Tokens of a sequence."""
    recompute: str = "none"
    """Recompute kind the backward time was taken with."""
    forward: float
    """Forward time of one layer and microbatch [s]."""
    backward: float
    """Backward time, recomputation included [s]."""
    saved: int | None = None
    """Bytes kept from forward to backward on each rank; ``None``: the analytic figure."""
    peak: int | None = None
    """Working memory above what is kept [bytes]; ``None``: the analytic figure."""

    def __post_init__(self) -> None:
        for name in ("tp", "cp", "ep", "etp", "microbatch_size", "seq_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"measurement of {self.layer_type}: {name} must be at least 1")
        for name in ("forward", "backward"):
            value = getattr(self, name)
            if not (0 <= value < math.inf):
                raise ValueError(f"measurement of {self.layer_type}: {name} must be at least 0 s and finite")
        for name in ("saved", "peak"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"measurement of {self.layer_type}: {name} must be at least 0 bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGraph:
    """A model: layer types, the order of layers, and the facts between layers."""

    name: str
    """What people call it."""
    family: str
    """The reader's family (``llama``, ...), ``graph`` for the planner's own format."""
    seq_len: int
    """Sequence length the model was made for, the default of a workload [tokens]."""
    layer_types: Mapping[str, Layer]
    """Layer types by name."""
    blocks: tuple[Block, ...]
    """The layers in order, as runs of equal ones."""
    shared_parameters: tuple[SharedParameter, ...] = ()
    """Weights used by several layer types."""
    measurements: tuple[Measurement, ...] = ()
    """Measured rows; they win over the analytic model."""
    notes: tuple[str, ...] = field(default=())
    """What the reader left out or assumed, in words for people."""

    def __post_init__(self) -> None:
        if not self.blocks:
            raise ValueError(f"model {self.name}: it has no layers")
        if self.seq_len < 1:
            raise ValueError(f"model {self.name}: seq_len must be at least 1 token, got {self.seq_len}")
        for block in self.blocks:
            if block.layer_type not in self.layer_types:
                raise ValueError(f"model {self.name}: unknown layer type {block.layer_type!r}")
        for row in self.measurements:
            if row.layer_type not in self.layer_types:
                raise ValueError(f"model {self.name}: a measurement names the unknown layer type {row.layer_type!r}")
        for shared in self.shared_parameters:
            for layer_type in shared.layer_types:
                layer = self.layer_types.get(layer_type)
                if layer is None or shared.name not in {parameter.name for parameter in layer.parameters}:
                    raise ValueError(f"model {self.name}: shared parameter {shared.name!r} is not in {layer_type!r}")

    @property
    def num_layers(self) -> int:
        """Number of layers, embedding and head included."""
        return sum(block.count for block in self.blocks)

    def count(self, layer_type: str) -> int:
        """How many layers of a type there are."""
        return sum(block.count for block in self.blocks if block.layer_type == layer_type)

    def num_shared(self, layer_type: str) -> int:
        """Weights of one layer of a type that another type owns [elements]."""
        layer = self.layer_types[layer_type]
        names = {shared.name for shared in self.shared_parameters if layer_type in shared.layer_types[1:]}
        return sum(layer.num_elements(parameter.dims) for parameter in layer.parameters if parameter.name in names)

    @property
    def num_parameters(self) -> int:
        """Number of weights; shared ones once, vocabulary unpadded."""
        return sum(
            block.count * (self.layer_types[block.layer_type].num_parameters - self.num_shared(block.layer_type))
            for block in self.blocks
        )

    @property
    def is_moe(self) -> bool:
        """Whether any layer has experts."""
        return any(self.layer_types[block.layer_type].is_moe for block in self.blocks)

    def dim(self, name: str) -> Dim | None:
        """The first dim of that name in the order of the layers, or ``None``."""
        for block in self.blocks:
            found = self.layer_types[block.layer_type].dims.get(name)
            if found is not None:
                return found
        return None

    def to_json(self) -> dict[str, object]:
        """The graph as plain JSON values, in base units; ``readers.graph_json`` reads it back."""
        return {
            "format_version": "1.0",
            "name": self.name,
            "family": self.family,
            "seq_len": self.seq_len,
            "layer_types": {name: _layer_json(layer) for name, layer in self.layer_types.items()},
            "layers": [{"type": block.layer_type, "count": block.count} for block in self.blocks],
            "shared_parameters": [
                {"name": shared.name, "layer_types": list(shared.layer_types)} for shared in self.shared_parameters
            ],
            "measurements": [_measurement_json(row) for row in self.measurements],
            "notes": list(self.notes),
        }

    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _layer_json(layer: Layer) -> dict[str, object]:
    output: dict[str, object] = {"dims": {name: _dim_json(dim) for name, dim in layer.dims.items()}}
    if layer.opaque:
        output["parameters"] = layer.opaque_parameters
    output["tensors"] = {name: list(tensor.dims) for name, tensor in layer.tensors.items()}
    output["ops"] = [_op_json(op) for op in layer.ops]
    output["input"] = layer.input
    output["output"] = layer.output
    return output


def _dim_json(dim: Dim) -> dict[str, object]:
    output: dict[str, object] = {"size": dim.size}
    if dim.granularity != 1:
        output["granularity"] = dim.granularity
    if dim.axis is not None:
        output["axis"] = dim.axis.value
    if dim.replicable:
        output["replicable"] = True
    if dim.padded:
        output["padded"] = True
    return output


def _op_json(op: Op) -> dict[str, object]:
    output: dict[str, object] = {
        "name": op.name,
        "kind": op.kind.value,
        "inputs": list(op.inputs),
        "output": op.output,
    }
    if op.sums:
        output["sums"] = list(op.sums)
    if op.parameters:
        output["parameters"] = {parameter.name: list(parameter.dims) for parameter in op.parameters}
    if op.module is not None:
        output["module"] = op.module
    if not op.causal:
        output["causal"] = False
    if op.window is not None:
        output["window"] = op.window
    return output


def _measurement_json(row: Measurement) -> dict[str, object]:
    output: dict[str, object] = {name: getattr(row, name) for name in Measurement.__slots__}
    return {name: value for name, value in output.items() if value is not None}
