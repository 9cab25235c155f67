"""Exporters by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hardware.errors import suggest
from planner.export.megatron import export_megatron
from planner.export.result import ExportResult
from planner.plan import Plan

EXPORTERS: Mapping[str, Callable[[Plan], ExportResult]] = {"megatron": export_megatron}
"""All exporters."""


def export_names() -> tuple[str, ...]:
    """Names that ``--to`` takes."""
    return tuple(EXPORTERS)


def export_plan(plan: Plan, to: str) -> ExportResult:
    """A plan as files of a launcher.

    Raises
    ------
    ValueError
        For an unknown name, and for a plan that the launcher would not run, with every broken rule.
    """
    if to not in EXPORTERS:
        raise ValueError(f"unknown export {to!r}{suggest(to, list(EXPORTERS))}; accepted: {', '.join(EXPORTERS)}")
    return EXPORTERS[to](plan)
