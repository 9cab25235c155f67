"""JSON Schema of the graph JSON, for editors and for programs that write it."""

from enum import StrEnum

from hardware.errors import MAX_QUOTED
from planner.graph import Axis, OpKind
from planner.readers.config import MAX_LAYERS, MAX_POSITIONS, MAX_SIZE
from planner.readers.graph_json import DEGREES, MAX_DEGREE, MAX_TIME
from planner.readers.graph_layer import MAX_PARAMETERS
from planner.strategy import Recompute

_NUMBER = r"^\s*([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?\s*"

Schema = dict[str, object]


def graph_schema() -> Schema:
    """A JSON Schema (draft 2020-12) that accepts every graph the reader accepts.

    Notes
    -----
    What one value says about another (names that must be known, the order of ops) only the reader checks.
    """
    properties: Schema = {
        "format_version": {"type": "string", "pattern": r"^1\.[0-9]{1,6}$", "description": "1.0; comes first."},
        "name": _described("name", "What people call the model; default: the file's name."),
        "family": _described("name", "Where the graph comes from; default: graph."),
        "seq_len": _count(MAX_POSITIONS, "Sequence length the model is made for [tokens]."),
        "layer_types": _mapping("layer_type", "Layer types by name."),
        "layers": _list(_layers(), "The layers in order, as runs of equal ones.", minimum=1),
        "shared_parameters": _list(_shared_parameter(), "Weights that several layer types use (a tied embedding)."),
        "measurements": _list({"$ref": "#/$defs/measurement"}, "Measured rows; they win over the analytic model."),
        "notes": _list({"type": "string"}, "Sources and what was left out, in words for people."),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Model graph",
        "description": "A model as layers of operators with named dims, or as measured layers. Plain numbers are in "
        "base units (seconds, bytes); text carries its unit, such as '5.3 ms' or '1.2 GiB'.",
        **_object(properties, "format_version", "seq_len", "layer_types", "layers"),
        "$defs": {
            "name": {"type": "string", "pattern": r"\S", "maxLength": MAX_QUOTED},
            "dims": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
            "time": _quantity("number", MAX_TIME, "(s|ms|us|\u00b5s|\u03bcs|ns|min|h)"),
            "bytes": _quantity("integer", 10**18, "([kMGTP]|[KMGTP]i)?B"),
            "layer_type": _layer_type(),
            "dim": _dim(),
            "op": _op(),
            "measurement": _measurement(),
        },
    }


def _layer_type() -> Schema:
    properties: Schema = {
        "dims": _mapping("dim", "Dims without batch and seq, which the workload sizes."),
        "parameters": {
            "type": "integer",
            "minimum": 0,
            "maximum": MAX_PARAMETERS,
            "description": "Parameters of a layer without ops, which only measurements describe.",
        },
        "tensors": _mapping("dims", "Dims of each activation."),
        "ops": _list({"$ref": "#/$defs/op"}, "Operators in an order of execution; none: an opaque layer."),
        "input": {
            "anyOf": [{"$ref": "#/$defs/name"}, {"$ref": "#/$defs/dims"}, {"type": "null"}],
            "description": "Tensor from the layer before, or its dims if opaque; null for the first layer.",
        },
        "output": {
            "anyOf": [{"$ref": "#/$defs/name"}, {"$ref": "#/$defs/dims"}],
            "description": "Tensor for the layer after, or its dims if opaque.",
        },
    }
    return _object(properties, "output")


def _dim() -> Schema:
    size = _count(MAX_SIZE, "Number of elements.")
    properties: Schema = {
        "size": size,
        "granularity": _count(MAX_SIZE, "The dim may only be split into multiples of it; default 1."),
        "axis": _choice(Axis, "Mesh axis that splits it; absent: never split."),
        "replicable": _flag("Whether ranks hold equal copies where the axis is larger than the dim; default false."),
        "padded": _flag("Whether it is padded to a multiple of granularity times degree; default false."),
    }
    return {"anyOf": [size, _object(properties, "size")]}


def _op() -> Schema:
    properties: Schema = {
        "name": _described("name", "Unique in the layer."),
        "kind": _choice(OpKind, "Kernel family."),
        "inputs": _list({"type": "string"}, "Tensors it reads."),
        "output": _described("name", "Tensor it writes."),
        "sums": _described("dims", "Dims it sums over."),
        "parameters": _mapping("dims", "Dims of each weight."),
        "module": _described("name", "Recompute module it belongs to."),
        "causal": _flag("For attention: whether a query sees only keys before it; default true."),
        "window": _count(MAX_SIZE, "For attention: keys a query sees at most; absent: all."),
    }
    return _object(properties, "name", "kind", "inputs", "output")


def _layers() -> Schema:
    properties: Schema = {
        "type": _described("name", "Name of the layer type."),
        "count": _count(MAX_LAYERS, "How many in a row; default 1."),
    }
    return _object(properties, "type")


def _shared_parameter() -> Schema:
    properties: Schema = {
        "name": _described("name", "Name of the parameter in each of the layer types."),
        "layer_types": _list({"type": "string"}, "The first owns it, the others use a copy.", minimum=2),
    }
    return _object(properties, "name", "layer_types")


def _measurement() -> Schema:
    properties: Schema = {
        "layer_type": _described("name", "Layer type; may be left out if there is only one."),
        "device": _described("name", "Device it was measured on."),
        **{degree: _count(MAX_DEGREE, f"Degree {degree}; default 1.") for degree in DEGREES},
        "microbatch_size": _count(MAX_DEGREE, "Sequences in the microbatch."),
        "seq_len": _count(MAX_POSITIONS, "Tokens of a sequence; default: the model's."),
        "recompute": _choice(Recompute, "What the backward time recomputes; default none."),
        "forward": _described("time", "Forward time of one layer and microbatch, its collectives included."),
        "backward": _described("time", "Backward time, recomputation included."),
        "saved": _described("bytes", "Kept from forward to backward on each rank; absent: the analytic figure."),
        "peak": _described("bytes", "Working memory above what is kept; absent: the analytic figure."),
    }
    return _object(properties, "device", "microbatch_size", "forward", "backward")


def _object(properties: Schema, *required: str) -> Schema:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def _described(definition: str, description: str) -> Schema:
    return {"$ref": f"#/$defs/{definition}", "description": description}


def _mapping(definition: str, description: str) -> Schema:
    values: Schema = {"$ref": f"#/$defs/{definition}"}
    return {
        "type": "object",
        "propertyNames": {"$ref": "#/$defs/name"},
        "additionalProperties": values,
        "description": description,
    }


def _list(items: Schema, description: str, *, minimum: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": minimum, "description": description}


def _count(maximum: int, description: str) -> Schema:
    return {"type": "integer", "minimum": 1, "maximum": maximum, "description": description}


def _flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def _choice(known: type[StrEnum], description: str) -> Schema:
    return {"enum": [choice.value for choice in known], "description": description}


def _quantity(plain: str, maximum: float, unit: str) -> Schema:
    return {
        "anyOf": [
            {"type": plain, "minimum": 0, "maximum": maximum},
            {"type": "string", "pattern": _NUMBER + unit + r"\s*$"},
        ]
    }
