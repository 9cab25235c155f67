"""A rule of validity: one condition, used for arrays of candidates in search and for one strategy in messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from planner.targets.candidate import Candidate, ModelFacts

Truth: TypeAlias = Any
"""A bool or a numpy array of bools."""

MAX_SCAN = 100_000
"""How far from a value the nearest legal one is looked for."""


class Level(StrEnum):
    """The step after which a rule can be decided."""

    CORE = "core"
    """Degrees and microbatches."""
    OUTER = "outer"
    """Sharding of states, placement, kind of context parallelism."""
    INNER = "inner"
    """Layers and recomputation of each stage; one candidate at a time."""


class Severity(StrEnum):
    """What breaking a rule means."""

    ERROR = "error"
    """The launcher refuses it, or computes something else."""
    WARNING = "warning"
    """It runs, and people should know."""
    DUPLICATE = "duplicate"
    """It runs, and another candidate is the same placement: search counts that one only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of validity."""

    code: str
    """Short name, such as ``R5``; once per level of a target."""
    title: str
    """What it asks for, in a few words."""
    formula: str
    """The condition that holds for legal candidates."""
    enforced_by: str
    """Who checks it, and where."""
    level: Level
    """When it can be decided."""
    severity: Severity = Severity.ERROR
    """What breaking it means."""
    holds: Callable[[Candidate, ModelFacts], Truth]
    """The condition; a bool, or an array of the candidate's shape."""
    message: Callable[[Candidate, ModelFacts], str]
    """One sentence for a single candidate that breaks it: the values, what is accepted, the nearest legal value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A rule that a strategy breaks."""

    rule: str
    """The rule's code."""
    message: str
    """One sentence with the values and what would be accepted."""

    def to_json(self) -> dict[str, str]:
        """Plain JSON values."""
        return {"rule": self.rule, "message": self.message}


def nearest(value: int, accepts: Callable[[int], Any], *, highest: int | None = None) -> str:
    """The nearest accepted values below and above one, as a message ends: ``nearest legal: 4, 8``."""
    top = value + MAX_SCAN if highest is None else min(highest, value + MAX_SCAN)
    below = _first(range(min(value - 1, top), max(0, value - MAX_SCAN), -1), accepts)
    above = _first(range(value + 1, top + 1), accepts)
    found = [str(number) for number in (below, above) if number is not None]
    return f"nearest legal: {', '.join(found)}" if found else "no value is legal"


def _first(values: Iterable[int], accepts: Callable[[int], Any]) -> int | None:
    return next((value for value in values if accepts(value)), None)
