"""``planner schema``."""

from __future__ import annotations

from hardware import cluster_schema
from hardware.errors import quote, suggest
from planner.cli.status import OK
from planner.cli.terminal import emit_json
from planner.plan_schema import plan_schema
from planner.readers import graph_schema

SCHEMAS = {"plan": plan_schema, "cluster": cluster_schema, "model": graph_schema}
"""Functions that make the schemas."""


def run_schema(name: str) -> int:
    """Print a JSON Schema."""
    if name not in SCHEMAS:
        raise ValueError(f"unknown format {quote(name)}{suggest(name, list(SCHEMAS))}; accepted: {', '.join(SCHEMAS)}")
    emit_json(SCHEMAS[name]())
    return OK
