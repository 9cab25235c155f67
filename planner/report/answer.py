"""The JSON of ``search`` and ``estimate``: stable keys, base units, no NaN."""

from __future__ import annotations

from collections.abc import Sequence

from planner.plan import Plan, prediction_json, proof_json, rounded
from planner.solvers.result import Alternative, Infeasibility, SearchResult
from planner.targets import Violation, accepting_targets

_FROM_PREDICTION = (
    "step_time",
    "tokens_per_second_per_device",
    "model_flops_utilization",
    "fits",
    "peak_memory",
    "memory_by_stage",
    "time_breakdown",
    "capacity",
    "budget",
)
_FROM_STRATEGY = (
    "zero_stage",
    "microbatch_size",
    "num_microbatches",
    "recompute",
    "recompute_layers",
    "layers_per_stage",
)


def estimate_json(plan: Plan, violations: Sequence[Violation]) -> dict[str, object]:
    """What one configuration takes."""
    return {**_configuration(plan), "violations": [item.to_json() for item in violations], "plan": plan.to_json()}


def search_json(result: SearchResult, *, layouts: str = "balanced") -> dict[str, object]:
    """The answer of a search; what a plan would say is ``null`` without one."""
    proof = proof_json(result.proof)
    scope = proof.pop("scope")
    why = result.infeasibility
    return {
        **(_no_configuration() if result.plan is None else _configuration(result.plan)),
        "violations": [],
        **{name: proof[name] for name in ("termination", "lower_bound", "gap", "space_size")},
        **{name: proof[name] for name in ("num_bounded", "num_evaluated")},
        "layouts": layouts,
        "scope": scope,
        "frontier": proof["frontier"],
        "reproducible": proof["reproducible"],
        "interrupted": result.interrupted,
        "search_time": result.search_time,
        "alternatives": [_alternative(other) for other in result.alternatives],
        "infeasibility": None if why is None else _infeasibility(why),
        "plan": None if result.plan is None else result.plan.to_json(),
    }


def _configuration(plan: Plan) -> dict[str, object]:
    prediction, strategy = prediction_json(plan.prediction), plan.strategy.to_json()
    return {
        **{name: prediction[name] for name in _FROM_PREDICTION},
        "degrees": plan.strategy.degrees,
        **{name: strategy[name] for name in _FROM_STRATEGY},
        "schedule": plan.strategy.schedule,
        "targets": list(accepting_targets(plan.strategy, plan.model, plan.cluster.num_devices, plan.workload)),
        "provenance": dict(plan.provenance),
    }


def _no_configuration() -> dict[str, object]:
    empty: dict[str, object] = dict.fromkeys((*_FROM_PREDICTION, "degrees", *_FROM_STRATEGY, "schedule"))
    return {**empty, "fits": False, "targets": [], "provenance": {}}


def _infeasibility(why: Infeasibility) -> dict[str, object]:
    return {
        "message": why.message,
        "suggestion": why.suggestion,
        "budget": why.budget,
        "missing": why.missing,
        "fits_with_memory": why.fits_with_memory,
        "fits_with_headroom": why.fits_with_headroom,
        "fits_with_devices": why.fits_with_devices,
        "nearest": None if why.nearest is None else _configuration(why.nearest),
    }


def _alternative(other: Alternative) -> dict[str, object]:
    strategy = other.plan.strategy
    return {
        "step_time": rounded(other.plan.prediction.step_time),
        "ratio": other.ratio,
        "reason": other.reason,
        "peak_memory": other.plan.prediction.peak_memory,
        "degrees": strategy.degrees,
        "zero_stage": strategy.zero_stage,
        "microbatch_size": strategy.microbatch_size,
        "num_microbatches": strategy.num_microbatches,
        "recompute": strategy.recompute.value,
        "layers_per_stage": list(strategy.layers_per_stage),
        "schedule": strategy.schedule,
    }
