"""Where the time of a step goes."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import RenderableType

from hardware.units import format_time
from planner.plan import Prediction
from planner.report.layout import bar, heading, shares, table

NOISE = 1e-9
"""Terms below this share are what rounding leaves."""


def time_table(prediction: Prediction) -> list[RenderableType]:
    """A heading and a table of terms whose shares add up."""
    terms = {
        name: value
        for name, value in asdict(prediction.time_breakdown).items()
        if abs(value) > NOISE * prediction.step_time
    }
    total = prediction.time_breakdown.total
    made = table("", "time", "share")
    made.show_header = False
    made.add_column("", no_wrap=True)
    for (name, value), share in zip(terms.items(), shares(list(terms.values()), total), strict=True):
        made.add_row(name.replace("_", " "), format_time(value), share, bar(value / total if total else 0.0))
    made.add_row("step", format_time(total), "100.0 %", "", style="bold")
    return [heading("Time of a step", "seen from the busiest rank; communication as far as nothing hides it"), made]
