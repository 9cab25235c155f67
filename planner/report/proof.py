"""The certificate of a search, the runners-up, and why nothing fits."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from hardware.units import format_bytes, format_time
from planner.plan import Proof, Subtree, Termination
from planner.report.layout import heading, paragraph, table
from planner.report.memory import memory_table
from planner.report.summary import degrees_text
from planner.solvers.result import SearchResult

MAX_ALTERNATIVES = 9
"""More are left to the JSON."""


def certificate(
    proof: Proof, step_time: float, search_time: float | None = None, *, interrupted: bool = False
) -> list[RenderableType]:
    """What is proven, in which space, and how each part of the space was closed."""
    if proof.termination is Termination.OPTIMAL:
        claim = f"nothing in the space is faster than {format_time(step_time)}, gap 0"
    elif proof.lower_bound is None:
        claim = "a limit stopped the search before there was a lower bound"
    else:
        claim = f"nothing in the space is faster than {format_time(proof.lower_bound)}, gap {proof.gap or 0:.2%}"
    claim += " (interrupted)" if interrupted else ""
    return [
        heading("Certificate", "" if search_time is None else f"found in {format_time(search_time)}"),
        paragraph(f"  {proof.termination.value}: {claim}; {counts_text(proof)}"),
        *frontier_lines(proof),
        paragraph(f"  Space: {proof.scope}", indent="    ", style="dim"),
    ]


def counts_text(proof: Proof) -> str:
    """Sizes in words."""
    return f"{proof.space_size:,} candidates, {proof.num_bounded:,} bounds, {proof.num_evaluated:,} simulated"


def frontier_lines(proof: Proof) -> list[RenderableType]:
    """What closed how many candidates: rules, memory, bounds and solved parts, a line each."""
    kinds: dict[str, list[tuple[str, Subtree]]] = {}
    for part in proof.frontier:
        kind, detail = _split(part.name)
        kinds.setdefault(kind, []).append((detail, part))
    lines: list[RenderableType] = []
    for kind, parts in kinds.items():
        total = sum(part.size for _, part in parts)
        ordered = sorted(parts, key=lambda item: (-item[1].size, item[0]))
        said = ", ".join(_part_text(detail, part) for detail, part in ordered)
        share = f"{total / proof.space_size:.1%}" if proof.space_size else ""
        lines.append(paragraph(f"  {kind:<12} {total:>13,} {share:>6}  {said}", indent=" " * 37))
    return lines


def _split(name: str) -> tuple[str, str]:
    """What closed a part, and which of its kind: (rule, R5), (memory, B0), (not measured, )."""
    if name.startswith("rule "):
        return "rule", name.removeprefix("rule ")
    kind, _, detail = name.partition(" (")
    return kind, detail.rstrip(")")


def _part_text(detail: str, part: Subtree) -> str:
    bound = "" if part.lower_bound is None else f"from {format_time(part.lower_bound)}"
    return " ".join(text for text in (detail, f"{part.size:,}" if detail else "", bound) if text)


def alternatives_table(result: SearchResult) -> list[RenderableType]:
    """The next best plans found with another mesh, and why they lose."""
    if not result.alternatives:
        return []
    made = table("plan", "step", "ratio", "memory")
    made.add_column("why it loses", no_wrap=True)
    for other in result.alternatives[:MAX_ALTERNATIVES]:
        prediction = other.plan.prediction
        made.add_row(
            degrees_text(other.plan.strategy),
            format_time(prediction.step_time),
            f"{other.ratio:.3f}",
            format_bytes(prediction.peak_memory),
            Text(other.reason),
        )
    left_out = len(result.alternatives) - MAX_ALTERNATIVES
    note = "evaluated; only --top K proves their order"
    note += f"; {left_out} more in --json" if left_out > 0 else ""
    return ["", heading("Next best with another mesh", note), made]


def infeasible(result: SearchResult) -> Sequence[RenderableType]:
    """Why there is no plan."""
    proof, why = result.proof, result.infeasibility
    parts: list[RenderableType] = []
    if why is not None:
        parts += [paragraph(why.message, indent="  "), paragraph(why.suggestion)]
        if why.nearest is not None:
            parts += ["", heading("Nearest miss"), *memory_table(why.nearest)]
    elif proof.lower_bound is not None:
        parts.append(paragraph(f"A limit stopped the search; no plan is faster than {format_time(proof.lower_bound)}."))
    else:
        parts.append(Text("A limit stopped the search."))
    return [
        *parts,
        "",
        heading("Certificate", f"{format_time(result.search_time)}"),
        paragraph(f"  {proof.termination.value}: {counts_text(proof)}"),
        *frontier_lines(proof),
        paragraph(f"  Space: {proof.scope}", indent="    ", style="dim"),
    ]
