"""JSON Schema of the plan file, made from the records themselves, so that it cannot fall behind them."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from typing import Any

from pydantic import TypeAdapter

from planner.plan import FORMAT_VERSION, Prediction, Proof, StageMemory, Subtree, TimeBreakdown
from planner.strategy import Strategy
from planner.workload import Workload

Schema = dict[str, Any]

RECORDS = (Strategy, Prediction, StageMemory, TimeBreakdown, Proof, Subtree, Workload)
"""Records whose fields a plan file holds."""


def plan_schema() -> Schema:
    """A JSON Schema (draft 2020-12) that accepts every plan this version writes, and those of later minor versions."""
    definitions: Schema = {}
    for record in RECORDS:
        made = TypeAdapter(record).json_schema(ref_template="#/$defs/{model}")
        definitions |= made.pop("$defs", {})
        definitions[record.__name__] = made
    for record in RECORDS:
        _complete(definitions[record.__name__], record)
    _derived(definitions)
    properties: Schema = {
        "format_version": {
            "type": "string",
            "pattern": rf"^{FORMAT_VERSION.split('.')[0]}\.[0-9]{{1,6}}$",
            "description": f"{FORMAT_VERSION}; comes first. A minor version adds keys, a major one changes them.",
        },
        "cost_model_version": _text("Changes whenever a formula or constant changes a prediction."),
        "target": _text("Name of the target whose rules the plan keeps."),
        "headroom": {
            "type": "number",
            "minimum": 0,
            "exclusiveMaximum": 1,
            "description": "Share of memory left free.",
        },
        "strategy": _reference("Strategy", "What is chosen."),
        "mesh": _mesh(),
        "stages": {"type": "array", "minItems": 1, "items": _stage(), "description": "Virtual stages in order."},
        "schedule": _schedule(),
        "prediction": _reference("Prediction", "What the cost model says of it."),
        "proof": {
            "anyOf": [{"$ref": "#/$defs/Proof"}, {"type": "null"}],
            "description": "The certificate of the search; null for an estimate.",
        },
        "provenance": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "Kind of figure -> where it comes from; weakest names the weakest kind.",
        },
        "workload": _digested("The training job.", {"$ref": "#/$defs/Workload"}),
        "cluster": _digested("The resolved cluster.", {"required": ["device", "num_devices", "levels"]}),
        "model": _digested("The resolved model graph.", {"required": ["seq_len", "layer_types", "layers"]}),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Plan",
        "description": "A way to split training over devices, with prediction and proof. Base units: seconds, bytes, "
        "FLOPs, tokens.",
        "type": "object",
        "required": list(properties),
        "properties": properties,
        "$defs": dict(sorted(definitions.items())),
    }


def _complete(schema: Schema, record: type) -> None:
    """Files hold each field, and the docstring below a field says what it is."""
    schema["required"] = list(schema["properties"])
    schema["description"] = (record.__doc__ or "").strip()
    schema.pop("title", None)
    docs = _field_docs(record)
    for name, value in schema["properties"].items():
        value.pop("title", None)
        value.pop("default", None)
        value["description"] = docs.get(name, f"{name.replace('_', ' ').capitalize()}.")


def _field_docs(record: type) -> dict[str, str]:
    """Docstrings below the fields of a record."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for field, text in itertools.pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            docs[field.target.id] = str(text.value.value)
    return docs


def _derived(definitions: Schema) -> None:
    """Figures that files repeat for their readers."""
    stage, prediction = definitions["StageMemory"], definitions["Prediction"]
    stage["properties"] |= {
        "total": {"type": "integer", "description": "Sum of the terms [bytes]."},
        "binding": _text("Name of the largest term."),
    }
    prediction["properties"] |= {
        "fits": {"type": "boolean", "description": "Whether every device stays within the budget."},
        "peak_memory": {"type": "integer", "description": "Of the fullest device [bytes]."},
    }
    for schema in (stage, prediction):
        schema["required"] = list(schema["properties"])


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _count(description: str, minimum: int = 1) -> Schema:
    return {"type": "integer", "minimum": minimum, "description": description}


def _reference(name: str, description: str) -> Schema:
    return {"$ref": f"#/$defs/{name}", "description": description}


def _object(properties: Schema, description: str = "") -> Schema:
    schema: Schema = {"type": "object", "required": list(properties), "properties": properties}
    return {**schema, "description": description} if description else schema


def _mesh() -> Schema:
    properties = {
        "rank_order": _text("Axes from the innermost to the outermost."),
        "axes": {"type": "array", "items": {"type": "string"}, "description": "Axes from the outermost in."},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}, "description": "Their sizes."},
        "world_size": _count("Devices in use."),
    }
    return _object(properties, "Row-major order of the shape gives the global ranks.")


def _stage() -> Schema:
    run = _object({"type": _text("Layer type."), "count": _count("How many in a row.")})
    return _object(
        {
            "stage": _count("Virtual stage.", 0),
            "rank": _count("Pipeline rank.", 0),
            "first_layer": _count("Index of its first layer.", 0),
            "layers": {"type": "array", "items": run, "description": "Runs of equal layers, embedding and head too."},
            "recompute_layers": _count("Layers of it that recompute.", 0),
        }
    )


def _schedule() -> Schema:
    properties = {
        "name": _text("Name of the schedule."),
        "num_ranks": _count("Pipeline ranks."),
        "num_chunks": _count("Virtual stages of a rank."),
        "num_microbatches": _count("Microbatches of a step and replica."),
    }
    return _object(properties)


def _digested(description: str, schema: Schema) -> Schema:
    digest = {
        "type": "string",
        "pattern": "^[0-9a-f]{64}$",
        "description": "SHA-256 of the rest as canonical JSON.",
    }
    return {
        "description": description,
        "type": "object",
        "allOf": [schema, {"required": ["digest"], "properties": {"digest": digest}}],
    }
