"""A target: what one launcher, or any, can run."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from planner.graph import ModelGraph
from planner.strategy import Strategy
from planner.targets.candidate import Candidate, Integer, ModelFacts, candidate_of, model_facts
from planner.targets.rule import Level, Rule, Severity, Violation
from planner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The rules of a launcher, and what they leave open."""

    name: str
    """As ``--target`` takes it."""
    rules: tuple[Rule, ...]
    """In the order of their levels."""
    uniform_recompute: bool
    """Whether all virtual stages recompute the same number of layers (or all they have)."""
    allow_empty_end_stages: bool
    """Whether the first stage may hold the embedding alone, and the last the head alone."""

    def __post_init__(self) -> None:
        keys = [(rule.code, rule.level) for rule in self.rules]
        if len(set(keys)) < len(keys):
            raise ValueError(f"target {self.name}: a code may stand once per level")

    def rules_of(self, level: Level | str) -> tuple[Rule, ...]:
        """Rules that are decided at a level."""
        return tuple(rule for rule in self.rules if rule.level == level)

    def core_rules(self) -> tuple[Rule, ...]:
        """Rules on degrees and microbatches."""
        return self.rules_of(Level.CORE)

    def outer_rules(self) -> tuple[Rule, ...]:
        """Rules on sharding of states and placement."""
        return self.rules_of(Level.OUTER)

    def rules_named(self, code: str) -> tuple[Rule, ...]:
        """Rules of a code, in any case of letters; one per level at most."""
        return tuple(rule for rule in self.rules if rule.code.lower() == code.lower())

    def masks(self, candidate: Candidate, facts: ModelFacts, level: Level | str) -> list[tuple[str, NDArray[np.bool_]]]:
        """Which of many candidates keep each rule of a level, duplicates included.

        Parameters
        ----------
        candidate
            Arrays of one shape (ints among them stand for all), decided up to the level.
        facts
            Model and workload.
        level
            ``core`` or ``outer``; ``inner`` for a single candidate.

        Returns
        -------
        list
            (code, mask) in the order of the rules; True where the rule holds. [as the candidate]
        """
        shape = np.broadcast_shapes(*(np.shape(value) for value in _arrays(candidate)))
        return [
            (rule.code, np.broadcast_to(np.asarray(rule.holds(candidate, facts), dtype=bool), shape))
            for rule in self.rules_of(level)
            if rule.severity is not Severity.WARNING
        ]

    def violations(
        self, strategy: Strategy, graph: ModelGraph, num_devices: int, workload: Workload
    ) -> list[Violation]:
        """Rules that a strategy breaks, so that the target would not run it; empty if it would."""
        return self._broken(strategy, graph, num_devices, workload, Severity.ERROR)

    def warnings(self, strategy: Strategy, graph: ModelGraph, num_devices: int, workload: Workload) -> list[Violation]:
        """What the target runs, but people should know."""
        return self._broken(strategy, graph, num_devices, workload, Severity.WARNING)

    def _broken(
        self, strategy: Strategy, graph: ModelGraph, num_devices: int, workload: Workload, severity: Severity
    ) -> list[Violation]:
        candidate, facts = candidate_of(strategy, num_devices), model_facts(graph, workload)
        return [
            Violation(rule=rule.code, message=rule.message(candidate, facts))
            for rule in self.rules
            if rule.severity is severity and not rule.holds(candidate, facts)
        ]


_INNER_FIELDS = ("layers_per_stage", "recompute", "recompute_layers")


def _arrays(candidate: Candidate) -> list[Integer]:
    values = [getattr(candidate, field.name) for field in fields(candidate) if field.name not in _INNER_FIELDS]
    return [value for value in values if value is not None]
