"""The arithmetic of a proof: parts add up to the space, and their bounds carry the claimed one."""

from __future__ import annotations

import math
from collections.abc import Iterator

from planner.plan import Plan, Proof, Subtree, Termination

DIGITS = 9
"""Significant digits in which search compares step times."""
CLOSE = 1e-9
"""Times this near to each other are one time, on whatever sides of a rounded digit they lie."""


def is_below(seconds: float, other: float) -> bool:
    """Whether a time is below another as search compares them."""
    return float(f"{seconds:.{DIGITS}g}") < float(f"{other:.{DIGITS}g}") and seconds < other * (1 - CLOSE)


def proof_problems(plan: Plan, proof: Proof) -> Iterator[str]:
    """What does not add up in the proof of a plan.

    Notes
    -----
    Parts that were closed by a bound, and parts left open by a limit, hold nothing faster than their bound, so the
    claimed bound may not exceed any of these. Rows of ``solved`` parts were taken apart into complete candidates: their
    bound is the least over those candidates before any was simulated. The plan is one of them, so that bound may lie
    below the claimed one, but not above the plan. After a limit, some of these candidates may be waiting: the claimed
    bound is then the least of the open parts, or, between that of the solved part and this, of what waits.
    """
    yield from _counts(proof)
    for part in proof.frontier:
        yield from _part_problems(part)
    if proof.termination not in (Termination.OPTIMAL, Termination.FEASIBLE):
        yield f"[termination] a search with a plan ends optimal or feasible, not {proof.termination}"
    if f"target {plan.target};" not in f"{proof.scope};":
        yield f"[scope] the proof's scope does not name the plan's target {plan.target}: {proof.scope}"
    if proof.lower_bound is None or not math.isfinite(proof.lower_bound):
        yield f"[lower bound] a plan needs one, the proof says {proof.lower_bound}"
    else:
        yield from _bound_problems(proof, plan.prediction.step_time, proof.lower_bound)


def _bound_problems(proof: Proof, step: float, bound: float) -> Iterator[str]:
    gap = (step - bound) / step
    if proof.gap is None or not abs(proof.gap - gap) <= CLOSE:
        yield f"[gap] the proof says {proof.gap}, (step time - lower bound) / step time is {gap}"
    if bound <= 0 or is_below(step, bound):
        yield f"[lower bound] {bound} s is not between 0 and the step time {step} s"
    if proof.termination is Termination.OPTIMAL and is_below(bound, step):
        yield f"[lower bound] an optimal plan's is its step time {step} s, the proof says {bound} s"
    solved = _bounds(proof, "solved")
    for name, low in solved:
        if is_below(step, low):
            yield f"[frontier] {name} holds the plan of {step} s, but says that nothing is below {low} s"
    for name, low in _bounds(proof, "bound", "open"):
        if is_below(low, bound):
            yield f"[frontier] {name} may hold plans of {low} s, below the lower bound {bound} s"
    if not solved:
        yield "[frontier] no part is solved, but the plan must come from one"
    least = min(step, *(low for _, low in solved), *(low for _, low in _bounds(proof, "open")), math.inf)
    if is_below(bound, least):
        yield f"[lower bound] {bound} s is below all that was solved or left open, the least of it has {least} s"


def _bounds(proof: Proof, *kinds: str) -> list[tuple[str, float]]:
    return [
        (part.name, part.lower_bound)
        for part in proof.frontier
        if _kind(part) in kinds and part.lower_bound is not None
    ]


def _counts(proof: Proof) -> Iterator[str]:
    total = sum(part.size for part in proof.frontier)
    if total != proof.space_size:
        yield f"[space size] the parts hold {total} candidates, the space {proof.space_size}"
    names = [part.name for part in proof.frontier]
    if len(set(names)) != len(names):
        yield f"[frontier] a part stands more than once: {', '.join(names)}"
    if proof.num_evaluated < 1:
        yield f"[counts] a plan was found with {proof.num_evaluated} evaluations"
    rows = sum(part.size for part in proof.frontier if part.name.endswith(("(B1)", "(B2)")))
    if proof.num_bounded < rows:
        yield f"[counts] {rows} rows were closed by bounds of their own, but only {proof.num_bounded} bounds computed"


def _kind(part: Subtree) -> str:
    return part.name.split(" ")[0]


def _part_problems(part: Subtree) -> Iterator[str]:
    kind = _kind(part)
    if part.size < 1:
        yield f"[frontier] {part.name} holds {part.size} candidates"
    if kind in ("rule", "memory", "not"):
        if part.lower_bound is not None:
            yield f"[frontier] {part.name} holds no candidate that could run, but has the bound {part.lower_bound}"
    elif kind in ("bound", "open", "solved"):
        if part.lower_bound is None or not (math.isfinite(part.lower_bound) and part.lower_bound > 0):
            yield f"[frontier] {part.name} needs a lower bound, it has {part.lower_bound}"
    else:
        yield f"[frontier] {part.name} is no kind of part"
