"""What a search returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from planner.plan import Plan, Proof, Termination


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a search may stop, and how much it must show."""

    time_limit: float | None = None
    """Wall-clock seconds; a plan found under it is not reproducible."""
    max_work: int | None = None
    """Bounds plus evaluations; the reproducible limit."""
    within: float = 0.0
    """Search until nothing outside the named candidates can be within this share of the best."""
    top: int = 1
    """Number of distinct plans to prove best."""

    def __post_init__(self) -> None:
        if self.time_limit is not None and not self.time_limit > 0:
            raise ValueError(f"time_limit must be above 0 s, got {self.time_limit}")
        if self.max_work is not None and self.max_work < 1:
            raise ValueError(f"max_work must be at least 1, got {self.max_work}")
        if not 0 <= self.within < 1:
            raise ValueError(f"within must be at least 0 and below 1, got {self.within}")
        if not 1 <= self.top <= 1000:
            raise ValueError(f"top must be between 1 and 1000, got {self.top}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A moment of a search."""

    seconds: float
    """Since the search began."""
    best: float | None
    """Step time of the best plan so far [s]."""
    lower_bound: float
    """No plan is faster [s]."""
    num_bounded: int
    num_evaluated: int
    improved: bool
    """Whether the best plan has just changed."""
    degrees: Mapping[str, int] = field(default_factory=dict)
    """Of the best plan so far."""


ProgressCallback = Callable[[Progress], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another good plan, and why it loses."""

    plan: Plan
    ratio: float
    """Its step time over the best one's."""
    reason: str
    """In one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasibility:
    """Why nothing fits, and what would."""

    message: str
    """In prose: which stage of the nearest miss needs how many bytes for what, and against what."""
    nearest: Plan | None
    """The candidate whose fullest device needs least; ``None`` where no candidate keeps the rules."""
    missing: int | None
    """Bytes that the nearest miss lacks on its fullest device."""
    budget: int
    """What a plan may use of a device [bytes]."""
    fits_with_memory: int | None
    """Least device memory with which the nearest miss would fit, all else equal [bytes]."""
    fits_with_headroom: float | None
    """Largest headroom with which it would fit; ``None`` where even none is too much."""
    fits_with_devices: int | None
    """Number of devices of the same nodes that would fit; ``None`` where none was found."""
    suggestion: str
    """The smallest change that would fit, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The answer of ``planner.search``."""

    plan: Plan | None
    """The best plan; ``None`` where nothing fits or none was found."""
    proof: Proof
    alternatives: tuple[Alternative, ...]
    """Next best plans found with another mesh; the first ``top - 1`` are proven, the others only evaluated."""
    infeasibility: Infeasibility | None
    """Only where nothing fits."""
    interrupted: bool
    """Whether Ctrl-C stopped the search."""
    search_time: float
    """Wall-clock time [s]; not part of any plan."""

    @property
    def termination(self) -> Termination:
        """Why the search ended."""
        return self.proof.termination

    @property
    def lower_bound(self) -> float | None:
        """No candidate is faster [s]."""
        return self.proof.lower_bound

    @property
    def gap(self) -> float | None:
        """(step time - lower bound) / step time."""
        return self.proof.gap
