"""The plan: everything an executor, a checker or a person needs, as one versioned record.

Files are written by ``planner.plan_file``; this module only knows the record and its JSON form. JSON is in base units
(seconds, bytes, tokens); keys are stable within a major ``format_version``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from hardware import Cluster
from planner.graph import ModelGraph
from planner.strategy import Strategy
from planner.workload import Workload

FORMAT_VERSION = "1.0"
"""Major: readers of another major refuse it. Minor: keys were added."""

COST_MODEL_VERSION = "1"
"""Changes whenever a formula or constant changes a prediction."""

SIGNIFICANT_DIGITS = 12
"""Digits of times in a plan: enough to compare, few enough to be equal on every machine."""


class Termination(StrEnum):
    """Why a search ended."""

    OPTIMAL = "optimal"
    """Nothing in the space is better, within the cost model."""
    FEASIBLE = "feasible"
    """A limit stopped the search; the plan is the best so far."""
    INFEASIBLE = "infeasible"
    """Proven that nothing in the space fits."""
    NO_PLAN_FOUND = "no_plan_found"
    """A limit stopped the search before any plan was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Peak memory of the devices of one pipeline rank, by term [bytes each]."""

    rank: int
    """Pipeline rank, from 0."""
    weights: int
    """Weights, or their shard under ZeRO-3."""
    gradients: int
    """Accumulated gradients, or their shard under ZeRO-2/3."""
    optimizer: int
    """Moments and master weights, or their shard."""
    activations: int
    """Kept for the backward passes in flight."""
    transient: int
    """Working memory of the largest op, or of a layer that is recomputed."""
    gathered: int
    """Unsharded weights and gradients of ZeRO-2/3."""
    runtime: int
    """Context and communicators."""

    @property
    def total(self) -> int:
        """Sum of the terms [bytes]."""
        return (
            self.weights
            + self.gradients
            + self.optimizer
            + self.activations
            + self.transient
            + self.gathered
            + self.runtime
        )

    @property
    def binding(self) -> str:
        """Name of the largest term."""
        terms = {name: value for name, value in asdict(self).items() if name != "rank"}
        return max(terms, key=lambda name: (terms[name], name))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBreakdown:
    """Where the step's time goes, seen from the busiest pipeline rank; the terms add up to the step [s each]."""

    compute: float
    """Matrix products, attention and memory-bound ops of forward and backward."""
    recompute: float
    """Forward work repeated in the backward pass, its collectives included."""
    tensor_parallel: float
    """Gathers and reductions of tensor-parallel regions."""
    context_parallel: float
    """What attention does not hide of the exchange of keys and values."""
    expert_parallel: float
    """Tokens to their experts and back."""
    data_parallel: float
    """Gathers, reductions and weight gathers that nothing hides."""
    optimizer: float
    """Update of the weights that the rank owns."""
    bubble: float
    """Waiting for other stages and for messages."""

    @property
    def total(self) -> float:
        """The step time [s]."""
        return float(sum(asdict(self).values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the cost model says of a strategy."""

    step_time: float
    """Time of one optimizer step [s]."""
    tokens_per_second_per_device: float
    """[tokens/s]"""
    model_flops_utilization: float
    """FLOPs of the model (no recomputation, causal attention counted by half) over the devices' peak, 0 to 1."""
    memory_by_stage: tuple[StageMemory, ...]
    """[pipeline rank]"""
    capacity: int
    """Device memory [bytes]."""
    budget: int
    """What a plan may use of it, headroom and reserve taken off [bytes]."""
    time_breakdown: TimeBreakdown
    """Of the busiest rank."""

    @property
    def peak_memory(self) -> int:
        """Of the fullest device [bytes]."""
        return max(stage.total for stage in self.memory_by_stage)

    @property
    def fits(self) -> bool:
        """Whether every device stays within the budget."""
        return self.peak_memory <= self.budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtree:
    """A part of the space that was closed by a bound, a rule or an evaluation."""

    name: str
    """What the part is: ``rule R5``, ``memory``, ``bound B0``, ``evaluated``, ..."""
    size: int
    """Outer candidates in it."""
    lower_bound: float | None
    """No candidate of it is faster than this [s]; ``None`` where none is legal or fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The certificate of a search: the whole space as closed subtrees."""

    termination: Termination
    """Why the search ended."""
    lower_bound: float | None
    """No candidate of the space is faster [s]; ``None`` where nothing fits."""
    gap: float | None
    """(step time - lower bound) / step time; ``None`` without a plan."""
    scope: str
    """The space in words: family of layouts, target, fixed keys."""
    space_size: int
    """Outer candidates, layouts and per-stage layer counts not counted."""
    num_bounded: int
    """Rows whose bound was computed."""
    num_evaluated: int
    """Complete candidates that were simulated."""
    frontier: tuple[Subtree, ...]
    """Sizes add up to ``space_size``."""
    reproducible: bool
    """False where a wall-clock limit stopped the search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A strategy for a model on a cluster, with prediction and proof."""

    model: ModelGraph
    """The resolved model."""
    cluster: Cluster
    """The resolved cluster."""
    workload: Workload
    """The resolved workload."""
    target: str
    """Name of the target whose rules it keeps."""
    headroom: float
    """Share of device memory left free."""
    strategy: Strategy
    """What every device does."""
    prediction: Prediction
    """What it takes."""
    proof: Proof | None
    """``None`` for an estimate."""
    provenance: Mapping[str, str]
    """Kind of figure -> where it comes from; ``weakest`` names the weakest kind."""

    def to_json(self) -> dict[str, object]:
        """Plain JSON values, ``format_version`` first."""
        return {
            "format_version": FORMAT_VERSION,
            "cost_model_version": COST_MODEL_VERSION,
            "target": self.target,
            "headroom": self.headroom,
            "strategy": self.strategy.to_json(),
            "mesh": mesh_json(self.strategy),
            "stages": stages_json(self.model, self.strategy),
            "schedule": {
                "name": self.strategy.schedule,
                "num_ranks": self.strategy.pp,
                "num_chunks": self.strategy.vpp,
                "num_microbatches": self.strategy.num_microbatches,
            },
            "prediction": prediction_json(self.prediction),
            "proof": None if self.proof is None else proof_json(self.proof),
            "provenance": dict(self.provenance),
            "workload": {**self.workload.to_json(), "digest": self.workload.digest()},
            "cluster": {**self.cluster.to_json(), "digest": self.cluster.digest()},
            "model": {**self.model.to_json(), "digest": self.model.digest()},
        }


def rounded(value: float) -> float:
    """A time or ratio as it stands in files: 12 significant digits."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def mesh_json(strategy: Strategy) -> dict[str, object]:
    """The mesh as axes from the outermost to the innermost, so that ranks in row-major order are global ranks."""
    dense = {"tp": strategy.tp, "cp": strategy.cp, "dp_shard": strategy.dp_shard, "dp_replicate": strategy.dp_replicate}
    names = ["dp_replicate", "dp_shard", "cp", "tp"]
    outer = strategy.rank_order.value.endswith("pp")
    names = ["pp", *names] if outer else ["dp_replicate", "dp_shard", "pp", "cp", "tp"]
    sizes = {**dense, "pp": strategy.pp}
    return {
        "rank_order": strategy.rank_order.value,
        "axes": names,
        "shape": [sizes[name] for name in names],
        "world_size": strategy.world_size,
    }


def stages_json(model: ModelGraph, strategy: Strategy) -> list[dict[str, object]]:
    """Contents of each virtual stage in order: its pipeline rank and its layers as runs of equal types."""
    return [
        {
            "stage": stage,
            "rank": stage % strategy.pp,
            "first_layer": first,
            "layers": [{"type": layer_type, "count": count} for layer_type, count in runs],
            "recompute_layers": strategy.recompute_layers[stage],
        }
        for stage, (first, runs) in enumerate(stage_contents(model, strategy.layers_per_stage))
    ]


def layer_sequence(model: ModelGraph) -> list[str]:
    """Layer types in order, one entry per layer."""
    return [block.layer_type for block in model.blocks for _ in range(block.count)]


def edge_layers(model: ModelGraph) -> tuple[int, int]:
    """How many layers at the start and at the end are not counted as layers of a stage (embedding, head): 0 or 1."""
    if model.num_layers < 2:
        return 0, 0
    first, last = model.blocks[0].layer_type, model.blocks[-1].layer_type
    has_embedding = first == "embedding" or any(op.kind == "embedding" for op in model.layer_types[first].ops)
    has_head = last == "head" or any(op.kind == "loss" for op in model.layer_types[last].ops)
    return int(has_embedding), int(has_head and model.num_layers > 1 + int(has_embedding))


def stage_contents(model: ModelGraph, layers_per_stage: tuple[int, ...]) -> list[tuple[int, list[tuple[str, int]]]]:
    """(index of the first layer, runs of (layer type, count)) of each virtual stage, embedding and head included."""
    sequence = layer_sequence(model)
    leading, trailing = edge_layers(model)
    if sum(layers_per_stage) != len(sequence) - leading - trailing:
        raise ValueError(
            f"layers_per_stage must add up to {len(sequence) - leading - trailing} layers, got {sum(layers_per_stage)}"
        )
    contents = []
    start = 0
    for stage, count in enumerate(layers_per_stage):
        extra = (leading if stage == 0 else 0) + (trailing if stage == len(layers_per_stage) - 1 else 0)
        runs: list[tuple[str, int]] = []
        for layer_type in sequence[start : start + count + extra]:
            if runs and runs[-1][0] == layer_type:
                runs[-1] = (layer_type, runs[-1][1] + 1)
            else:
                runs.append((layer_type, 1))
        contents.append((start, runs))
        start += count + extra
    return contents


def prediction_json(prediction: Prediction) -> dict[str, object]:
    """Plain JSON values of a prediction."""
    return {
        "step_time": rounded(prediction.step_time),
        "tokens_per_second_per_device": rounded(prediction.tokens_per_second_per_device),
        "model_flops_utilization": rounded(prediction.model_flops_utilization),
        "fits": prediction.fits,
        "peak_memory": prediction.peak_memory,
        "capacity": prediction.capacity,
        "budget": prediction.budget,
        "memory_by_stage": [
            {**asdict(stage), "total": stage.total, "binding": stage.binding} for stage in prediction.memory_by_stage
        ],
        "time_breakdown": {name: rounded(value) for name, value in asdict(prediction.time_breakdown).items()},
    }


def proof_json(proof: Proof) -> dict[str, object]:
    """Plain JSON values of a proof."""
    values = asdict(proof)
    values["termination"] = proof.termination.value
    for name in ("lower_bound", "gap"):
        if values[name] is not None:
            values[name] = rounded(values[name])
    values["frontier"] = [
        {**asdict(part), "lower_bound": None if part.lower_bound is None else rounded(part.lower_bound)}
        for part in proof.frontier
    ]
    return values


def prediction_from_json(values: Mapping[str, object]) -> Prediction:
    """The prediction that ``prediction_json`` wrote."""
    rows: list[dict[str, int]] = list(values["memory_by_stage"])  # type: ignore[call-overload]  # from a checked file
    stages = [StageMemory(**{name: row[name] for name in StageMemory.__slots__}) for row in rows]
    return Prediction(
        step_time=float(values["step_time"]),  # type: ignore[arg-type]
        tokens_per_second_per_device=float(values["tokens_per_second_per_device"]),  # type: ignore[arg-type]
        model_flops_utilization=float(values["model_flops_utilization"]),  # type: ignore[arg-type]
        memory_by_stage=tuple(stages),
        capacity=int(values["capacity"]),  # type: ignore[call-overload]
        budget=int(values["budget"]),  # type: ignore[call-overload]
        time_breakdown=TimeBreakdown(**values["time_breakdown"]),  # type: ignore[arg-type]
    )


def proof_from_json(values: Mapping[str, object]) -> Proof:
    """The proof that ``proof_json`` wrote."""
    known = dict(values)
    known["termination"] = Termination(str(known["termination"]))
    known["frontier"] = tuple(Subtree(**row) for row in known["frontier"])  # type: ignore[attr-defined]
    return Proof(**known)  # type: ignore[arg-type]
