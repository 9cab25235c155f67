"""Exports: a plan as the files that a launcher reads."""

from planner.export.megatron import CHECKED_VERSION, megatron_arguments
from planner.export.megatron_reader import parse_layout, read_megatron_arguments
from planner.export.registry import export_names, export_plan
from planner.export.result import ExportResult

__all__ = [
    "CHECKED_VERSION",
    "ExportResult",
    "export_names",
    "export_plan",
    "megatron_arguments",
    "parse_layout",
    "read_megatron_arguments",
]
