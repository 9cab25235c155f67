"""Rules of validity of each launcher: one source for search, checks and messages."""

from planner.targets.candidate import (
    CP_KINDS,
    DP_OUTER,
    PP_OUTER,
    RANK_ORDERS,
    RING,
    ULYSSES,
    Candidate,
    ModelFacts,
    candidate_of,
    model_facts,
)
from planner.targets.registry import accepting_targets, load_target, target_names
from planner.targets.rule import Level, Rule, Severity, Violation
from planner.targets.target import Target

__all__ = [
    "CP_KINDS",
    "DP_OUTER",
    "PP_OUTER",
    "RANK_ORDERS",
    "RING",
    "ULYSSES",
    "Candidate",
    "Level",
    "ModelFacts",
    "Rule",
    "Severity",
    "Target",
    "Violation",
    "accepting_targets",
    "candidate_of",
    "load_target",
    "model_facts",
    "target_names",
]
