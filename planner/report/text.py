"""The text of an answer: the plan at a glance, its memory and time, the certificate, the runners-up."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from planner.plan import Plan, Termination
from planner.report.layout import heading, paragraph, render
from planner.report.memory import memory_table
from planner.report.proof import alternatives_table, certificate, infeasible
from planner.report.summary import job_line, plan_line, rests_on, result_line, targets_line
from planner.report.timing import time_table
from planner.solvers.result import SearchResult
from planner.targets import Violation

WORDS = {
    Termination.OPTIMAL: ("optimal", "bold green"),
    Termination.FEASIBLE: ("best so far", "bold yellow"),
    Termination.INFEASIBLE: ("no plan fits", "bold red"),
    Termination.NO_PLAN_FOUND: ("no plan found", "bold red"),
}
"""How an ending reads, and its style."""


def search_text(result: SearchResult, *, colour: bool = False) -> str:
    """The answer of a search."""
    word, style = WORDS[result.termination]
    if result.plan is None:
        return render(*infeasible(result), colour=colour)
    seconds = result.plan.prediction.step_time
    parts: list[RenderableType] = [
        job_line(result.plan),
        Text.assemble((word, style), "  ", plan_line(result.plan)),
        result_line(result.plan),
        *_details(result.plan),
        "",
        *certificate(result.proof, seconds, result.search_time, interrupted=result.interrupted),
        *alternatives_table(result),
        "",
        targets_line(result.plan),
        *rests_on(result.plan),
    ]
    return render(*parts, colour=colour)


def estimate_text(plan: Plan, violations: Sequence[Violation] = (), *, colour: bool = False) -> str:
    """What one configuration takes."""
    if violations:
        verdict = ("breaks the rules", "bold red")
    elif plan.prediction.fits:
        verdict = ("fits", "bold green")
    else:
        verdict = ("does not fit", "bold red")
    parts: list[RenderableType] = [
        job_line(plan),
        Text.assemble(verdict, "  ", plan_line(plan)),
        result_line(plan),
        *_details(plan),
    ]
    if violations:
        parts += ["", heading(f"Rules of {plan.target} that it breaks", "planner rule CODE explains one")]
        parts += [paragraph(f"  {item.rule}: {item.message}") for item in violations]
    parts += ["", targets_line(plan), *rests_on(plan)]
    return render(*parts, colour=colour)


def plan_text(plan: Plan, *, colour: bool = False) -> str:
    """A plan as it was saved."""
    word, style = ("estimate", "bold") if plan.proof is None else WORDS[plan.proof.termination]
    parts: list[RenderableType] = [
        job_line(plan),
        Text.assemble((word, style), "  ", plan_line(plan)),
        result_line(plan),
        *_details(plan),
    ]
    if plan.proof is not None:
        parts += ["", *certificate(plan.proof, plan.prediction.step_time)]
    parts += ["", targets_line(plan), *rests_on(plan)]
    return render(*parts, colour=colour)


def _details(plan: Plan) -> list[RenderableType]:
    return ["", *memory_table(plan), "", *time_table(plan.prediction)]
